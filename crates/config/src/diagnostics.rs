//! What is taken down while a configuration is read, and the rules that several sections share.

use std::path::PathBuf;
use std::time::Duration;

use wornpath_routing::document::nearest;
use wornpath_routing::{Problem, ProblemKind, Problems, Span};

use crate::env::Environment;
use crate::section::{Section, refused};
use crate::settings::KeyDigest;

/// How to get a digest.
pub(crate) const DIGEST_CURE: &str =
    "a digest is `sha256:` followed by the output of `printf %s SECRET | sha256sum`";

/// Problems so far.
pub(crate) struct Diagnostics<'a> {
    pub(crate) outside: &'a dyn Environment,
    /// In the configuration itself.
    pub(crate) problems: Vec<Problem>,
    /// In files that it names.
    pub(crate) elsewhere: Vec<Problems>,
    /// Certificates and keys that it names, for whoever watches them.
    pub(crate) files: Vec<PathBuf>,
    /// What may be a secret and must not be shown.
    masked: Vec<Span>,
}

impl<'a> Diagnostics<'a> {
    pub(crate) fn new(outside: &'a dyn Environment) -> Self {
        let (files, masked) = (Vec::new(), Vec::new());
        Self { outside, problems: Vec::new(), elsewhere: Vec::new(), files, masked }
    }

    /// A digest. What is none may be the secret itself, so nobody is shown it.
    pub(crate) fn digest(&mut self, section: &Section<'_>, key: &'static str) -> Option<KeyDigest> {
        let text: String = section.maybe(key)?;
        match text.parse() {
            Ok(digest) => Some(digest),
            Err(error) => {
                let span = section.at(key);
                self.masked.push(span);
                let message = format!("`{key}` is not a digest: {error}");
                self.problems
                    .push(Problem::new(ProblemKind::Unsafe, span, message).cure(DIGEST_CURE));
                None
            }
        }
    }

    /// An address that is refused, as it may be shown: without a password that may be in it, there and where it stands.
    pub(crate) fn shown_address<'t>(&mut self, address: &'t str, span: Span) -> &'t str {
        if !address.contains('@') {
            return address;
        }
        self.masked.push(span);
        "…"
    }

    /// Takes down a name that was given before.
    pub(crate) fn only_once(
        &mut self,
        names: &mut Vec<(String, Span)>,
        what: &str,
        name: &str,
        span: Span,
    ) {
        let first = names.iter().find(|(known, _)| known == name && !name.is_empty());
        if let Some((_, first)) = first {
            self.problems.push(
                Problem::new(ProblemKind::Twice, span, format!("duplicate {what} `{name}`"))
                    .also(*first, "first defined here")
                    .cure("make them unique, or remove one"),
            );
        }
        names.push((name.to_owned(), span));
    }

    /// Whether a name is known; takes it down if not.
    pub(crate) fn must_be_known<'n>(
        &mut self,
        what: &str,
        name: &str,
        span: Span,
        known: impl Iterator<Item = &'n str>,
    ) -> bool {
        let known: Vec<_> = known.collect();
        if known.contains(&name) {
            return true;
        }
        let cure = match nearest(name, known.iter().copied()) {
            Some(near) => format!("did you mean `{near}`?"),
            None if known.is_empty() => format!("the configuration defines no {what}; add one"),
            None => format!("available: {}", known.join(", ")),
        };
        let message = format!("unknown {what} `{name}`");
        self.problems.push(Problem::new(ProblemKind::NotFound, span, message).cure(cure));
        false
    }

    /// Takes down a `name` without anything in it.
    pub(crate) fn must_be_called_something(
        &mut self,
        section: &Section<'_>,
        owner: &str,
        cure: &str,
    ) {
        if let Some(name) = section.maybe::<String>("name") {
            self.must_be_a_name((owner, "name"), (&name, section.at("name")), cure);
        }
    }

    /// Takes down a name without anything in it, which nobody could ask for, and one that terminals would obey.
    pub(crate) fn must_be_a_name(
        &mut self,
        (owner, key): (&str, &str),
        (name, span): (&str, Span),
        cure: &str,
    ) {
        let rule = if name.trim().is_empty() {
            "a name must not be blank"
        } else if name.chars().any(char::is_control) {
            "a name must not contain control characters"
        } else {
            return;
        };
        let shown = name.escape_debug().to_string();
        self.problems.push(refused(owner, key, &shown, span, &rule).cure(cure));
    }

    /// Takes down a time of nothing where something would then never stop.
    pub(crate) fn must_not_be_zero(&mut self, section: &Section<'_>, key: &'static str) {
        if section.maybe(key) == Some(Duration::ZERO) {
            let problem = Problem::new(
                ProblemKind::BadParameter,
                section.at(key),
                format!("`{key}` is zero"),
            );
            self.problems.push(problem.cure("give a duration above zero, such as `5s`"));
        }
    }

    /// The text to show problems in, without what may be a secret.
    pub(crate) fn shown(&self, text: &str) -> String {
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        for span in &self.masked {
            if let Some(line) = lines.get_mut(span.line - 1) {
                let hidden = span.column - 1..span.column - 1 + span.length;
                *line = (0..)
                    .zip(line.chars())
                    .map(|(at, c)| if hidden.contains(&at) { '*' } else { c })
                    .collect();
            }
        }
        lines.join("\n")
    }
}
