//! `access_log`: where a line about each finished request goes, and which requests get one.

use std::path::Path;

use wornpath_yaml::{Node, Parameter, Problem, ProblemKind, Takes};

use crate::diagnostics::Diagnostics;
use crate::section::Section;
use crate::settings::{AccessLogSettings, AccessLogTarget, LogFormat, LoggedFailures};

pub(crate) const FORMATS: &[&str] = &["json", "text"];

#[rustfmt::skip]
pub(crate) const ACCESS_LOG: &[Parameter] = &[
    Parameter::with_default("to", Takes::Text, "stdout", "`stdout`, `stderr`, or a file in an existing folder. A file is opened anew on SIGHUP and on every reload, so it can be rotated."),
    Parameter::with_default("format", Takes::OneOf(FORMATS), "json", "`json`: an object per line. `text`: the time and then `name=value`, for people."),
    Parameter::with_default("share", Takes::Number(0.0, 1.0), "1", "Share of the requests that get a line."),
    Parameter::with_default("failures", Takes::OneOf(&["all", "sampled"]), "all", "`all`: requests with a status of 400 or above, a broken response or a client that disconnected get a line whatever `share` says. `sampled`: they are sampled like the others."),
];

pub(crate) fn access_log(root: &Node, diagnostics: &mut Diagnostics) -> Option<AccessLogSettings> {
    let node = root.get("access_log")?;
    let section =
        Section::of(Some(node), "access_log", node.span, ACCESS_LOG, &mut diagnostics.problems);
    let failures = match section.or("failures", "all") {
        "sampled" => LoggedFailures::Sampled,
        _ => LoggedFailures::All,
    };
    Some(AccessLogSettings {
        to: target(&section, diagnostics)?,
        format: LogFormat::named(section.or("format", "json")),
        share: section.or("share", 1.0),
        failures,
    })
}

fn target(section: &Section<'_>, diagnostics: &mut Diagnostics) -> Option<AccessLogTarget> {
    let written = section.or("to", "stdout".to_owned());
    match written.as_str() {
        "stdout" => return Some(AccessLogTarget::Stdout),
        "stderr" => return Some(AccessLogTarget::Stderr),
        _ => {}
    }
    let given = Path::new(&written);
    let is_folder = diagnostics.environment.is_folder(given) == Some(true);
    let path = diagnostics.environment.output_path(given).filter(|_| !is_folder);
    if path.is_none() {
        let why = if is_folder { "which is a folder" } else { "whose folder does not exist" };
        let message = format!("`to` of `access_log` is `{written}`, {why}");
        let problem = Problem::new(ProblemKind::NotFound, section.at("to"), message);
        let cure = "write `stdout`, `stderr`, or a file in an existing folder";
        diagnostics.problems.push(problem.cure(cure));
    }
    path.map(AccessLogTarget::File)
}
