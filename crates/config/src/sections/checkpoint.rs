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
    let given = Path::new(&written);
    let wrong_kind = if diagnostics.environment.is_folder(given) == Some(true) {
        Some("which is a folder")
    } else if diagnostics.environment.is_special(given) {
        Some("which is not a regular file")
    } else {
        None
    };
    let path = diagnostics.environment.output_path(given).filter(|_| wrong_kind.is_none());
    let Some(file) = path else {
        let why = wrong_kind.unwrap_or("whose folder does not exist");
        let message = format!("`file` of `checkpoint` is `{written}`, {why}");
        let is_wrong_kind = wrong_kind.is_some();
        let kind = if is_wrong_kind { ProblemKind::BadParameter } else { ProblemKind::NotFound };
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
