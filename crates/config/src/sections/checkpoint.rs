//! `checkpoint`: where what is known of pods is kept over a restart.

use std::path::Path;
use std::time::Duration;

use wornpath_routing::document::Node;
use wornpath_routing::{Parameter, Problem, ProblemKind, Takes};

use crate::diagnostics::Diagnostics;
use crate::section::Section;
use crate::settings::CheckpointSettings;

#[rustfmt::skip]
pub(crate) const CHECKPOINT: &[Parameter] = &[
    Parameter::required("file", Takes::Text, "The checkpoint file, on a local disk; its folder must exist."),
    Parameter::with_default("every", Takes::Time, "30s", "Interval between writes; it is also written at shutdown."),
];

pub(crate) fn checkpoint(root: &Node, notes: &mut Diagnostics) -> Option<CheckpointSettings> {
    let node = root.get("checkpoint")?;
    let name = ("checkpoint", node.span);
    let section = Section::of(Some(node), name, CHECKPOINT, &mut notes.problems);
    notes.must_not_be_zero(&section, "every");
    let written: String = section.maybe("file")?;
    let is_folder = notes.outside.is_folder(Path::new(&written)) == Some(true);
    let place = notes.outside.place(Path::new(&written)).filter(|_| !is_folder);
    let Some(file) = place else {
        let why = if is_folder { "which is a folder" } else { "whose folder does not exist" };
        let message = format!("`file` of `checkpoint` is `{written}`, {why}");
        let kind = if is_folder { ProblemKind::BadParameter } else { ProblemKind::NotFound };
        let problem = Problem::new(kind, section.at("file"), message);
        notes.problems.push(
            problem.cure("give a file in an existing folder; relative paths start at this file's folder"),
        );
        return None;
    };
    Some(CheckpointSettings { file, every: section.or("every", Duration::from_secs(30)) })
}
