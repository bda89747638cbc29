//! `checkpoint`: the file that keeps the cache index across restarts.

use std::path::Path;
use std::time::Duration;

use wornpath_yaml::{Node, Parameter, Problem, ProblemKind, Takes};

use crate::diagnostics::Diagnostics;
use crate::section::Section;
use crate::settings::CheckpointSettings;

#[rustfmt::skip]
pub(crate) const CHECKPOINT: &[Parameter] = &[
    Parameter::required("file", Takes::Text, "The checkpoint file, on a local disk; its folder must exist."),
    Parameter::with_default("every", Takes::Time, "30s", "Interval between writes; it is also written at shutdown."),
];

pub(crate) fn checkpoint(root: &Node, diagnostics: &mut Diagnostics) -> Option<CheckpointSettings> {
    let node = root.get("checkpoint")?;
    let section =
        Section::of(Some(node), "checkpoint", node.span, CHECKPOINT, &mut diagnostics.problems);
    diagnostics.check_nonzero(&section, "every");
    let written: String = section.maybe("file")?;
    let is_folder = diagnostics.environment.is_folder(Path::new(&written)) == Some(true);
    let path = diagnostics.environment.output_path(Path::new(&written)).filter(|_| !is_folder);
    let Some(file) = path else {
        let why = if is_folder { "which is a folder" } else { "whose folder does not exist" };
        let message = format!("`file` of `checkpoint` is `{written}`, {why}");
        let kind = if is_folder { ProblemKind::BadParameter } else { ProblemKind::NotFound };
        let problem = Problem::new(kind, section.at("file"), message);
        diagnostics.problems.push(
            problem.cure(
                "give a file in an existing folder; relative paths start at this file's folder",
            ),
        );
        return None;
    };
    Some(CheckpointSettings { file, every: section.or("every", Duration::from_secs(30)) })
}
