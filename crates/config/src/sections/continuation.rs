//! `continuation`: going on with broken streams on other pods.

use wornpath_yaml::{Node, Parameter, Problem, ProblemKind, Takes};

use crate::continuation::{ContinuationMode, ContinuationSettings};
use crate::diagnostics::Diagnostics;
use crate::section::Section;

#[rustfmt::skip]
pub(crate) const CONTINUATION: &[Parameter] = &[
    Parameter::with_default("mode", Takes::OneOf(&["on", "off"]), "off", "`on`: streams that can be continued are. `off`: a stream whose pod is lost ends with an error event."),
    Parameter::with_default("most", Takes::Whole(1, 16), "2", "How often one stream is continued."),
    Parameter::with_default("kept", Takes::Size(1 << 10, 1 << 30), "1MiB", "Maximum size of the request body and the text of one stream; longer ones are not continued."),
    Parameter::with_default("memory", Takes::Size(1 << 20, 1 << 40), "256MiB", "Maximum total size of what is kept of all streams. A stream that finds no room is not continued."),
];

pub(crate) fn continuation(root: &Node, diagnostics: &mut Diagnostics) -> ContinuationSettings {
    let default = ContinuationSettings::default();
    let node = root.get("continuation");
    let problems = &mut diagnostics.problems;
    let section = Section::of(node, "continuation", root.span, CONTINUATION, problems);
    let is_on = section.or("mode", "off") == "on";
    let settings = ContinuationSettings {
        mode: if is_on { ContinuationMode::On } else { ContinuationMode::Off },
        most: section.or("most", default.most),
        kept: section.or("kept", default.kept),
        memory: section.or("memory", default.memory),
    };
    if settings.kept > settings.memory {
        let message = "`kept` is more than `memory`, so a stream of that size is never kept";
        let problem = Problem::new(ProblemKind::Unreachable, section.at("kept"), message);
        diagnostics.problems.push(problem.cure("raise `memory`, or lower `kept`"));
    }
    settings
}
