//! `password_file` and `password_env`: the password of a broker or a database, which is never in the
//! configuration itself.

use std::path::Path;

use wornpath_events::has_password;
use wornpath_yaml::{Parameter, Problem, ProblemKind, Takes};

use crate::diagnostics::Diagnostics;
use crate::section::Section;

#[rustfmt::skip]
pub(crate) const PASSWORD: &[Parameter] = &[
    Parameter::optional("password_file", Takes::Text, "File with the password. The user is in the address (`redis://user@host:6379`); without a user, it is a token for NATS and the password of the default user for Redis."),
    Parameter::optional("password_env", Takes::Text, "Environment variable with the password, instead of `password_file`."),
];

/// The password, if there is one. Its value is never shown.
pub(crate) fn password(section: &Section<'_>, diagnostics: &mut Diagnostics) -> Option<String> {
    let file = section.maybe::<String>("password_file");
    let (key, read) = match (&file, section.maybe::<String>("password_env")) {
        (None, None) => return None,
        (Some(_), Some(_)) => {
            let message = "both `password_file` and `password_env` are set";
            let span = section.at("password_env");
            let problem = Problem::new(ProblemKind::Conflict, span, message);
            diagnostics.problems.push(problem.cure("keep one of them"));
            return None;
        }
        (Some(file), None) => {
            diagnostics.note_secret("password_file", file);
            diagnostics.files.push(file.into());
            let text = diagnostics.environment.text(Path::new(file));
            ("password_file", text.map_err(|error| format!("cannot read file `{file}`: {error}")))
        }
        (None, Some(name)) => {
            let value = diagnostics.environment.variable(&name);
            ("password_env", value.ok_or(format!("environment variable `{name}` is not set")))
        }
    };
    let read = read.map(|text| text.trim_end_matches(['\r', '\n']).to_owned());
    let error = match read {
        Ok(password) if !password.is_empty() => return Some(password),
        Ok(_) => "the password is empty".to_owned(),
        Err(error) => error,
    };
    let problem = Problem::new(ProblemKind::NotFound, section.at(key), format!("`{key}`: {error}"));
    diagnostics.problems.push(problem.cure(if key == "password_file" {
        "give the path of a file that contains the password and nothing else"
    } else {
        "set it where wornpath is started, or use `password_file`"
    }));
    None
}

/// Whether the address under `key` contains a password, which is reported. The address is hidden in
/// all messages.
pub(crate) fn refuse_in_address(
    section: &Section<'_>,
    key: &'static str,
    diagnostics: &mut Diagnostics,
) -> bool {
    if !section.maybe::<String>(key).is_some_and(|address| has_password(&address)) {
        return false;
    }
    let span = section.at(key);
    diagnostics.mask(span);
    let message = format!("`{key}` contains a password; a configuration must not contain secrets");
    let problem = Problem::new(ProblemKind::Unsafe, span, message);
    diagnostics.problems.push(problem.cure(
        "remove it from the address (keep `user@`), and give `password_file` or `password_env`",
    ));
    true
}
