//! The problems found while a configuration is read, and the checks that several sections share.

use std::path::PathBuf;
use std::time::Duration;

use wornpath_yaml::{Problem, ProblemKind, Problems, Span, nearest};

use crate::env::Environment;
use crate::secret::{KeyDigest, SecretFile};
use crate::section::{Section, refused};

/// Words in the names of keys to which people give secrets.
const SECRET_WORDS: [&str; 7] =
    ["auth", "credential", "header", "key", "password", "secret", "token"];

/// How to write a digest.
pub(crate) const DIGEST_CURE: &str =
    "a digest is `sha256:` followed by the output of `printf %s SECRET | sha256sum`";

/// Where a value belongs: the key, and the section that has it.
#[derive(Clone, Copy)]
pub(crate) struct Label<'a> {
    pub(crate) owner: &'a str,
    pub(crate) key: &'a str,
}

/// Problems found so far, and the files that the configuration names.
pub(crate) struct Diagnostics<'a> {
    pub(crate) environment: &'a dyn Environment,
    /// In the configuration itself.
    pub(crate) problems: Vec<Problem>,
    /// In files that it names.
    pub(crate) other_files: Vec<Problems>,
    /// Files with certificates and keys, for the file watcher.
    pub(crate) files: Vec<PathBuf>,
    /// Files with secrets, whose permissions are checked.
    pub(crate) secrets: Vec<SecretFile>,
    /// Values that may be secrets and must not be shown.
    masked: Vec<Span>,
}

impl<'a> Diagnostics<'a> {
    pub(crate) fn new(environment: &'a dyn Environment) -> Self {
        Self {
            environment,
            problems: Vec::new(),
            other_files: Vec::new(),
            files: Vec::new(),
            secrets: Vec::new(),
            masked: Vec::new(),
        }
    }

    /// Notes that `key` names a file with a secret.
    pub(crate) fn note_secret(&mut self, key: &'static str, file: &str) {
        self.secrets.push(SecretFile { key, path: PathBuf::from(file) });
    }

    /// Reads a digest. An invalid value may be the secret itself, so it is never shown.
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

    /// A refused address as a message may show it. One that may contain a password, before `@` or
    /// in a query, is hidden in the message and in the quoted source line.
    pub(crate) fn shown_address<'t>(&mut self, address: &'t str, span: Span) -> &'t str {
        if !address.contains(['@', '?']) {
            return address;
        }
        self.masked.push(span);
        "…"
    }

    /// Hides a value in the quoted source line.
    pub(crate) fn mask(&mut self, span: Span) {
        self.masked.push(span);
    }

    /// Reports a name that is already in `names`, and adds it.
    pub(crate) fn check_unique(
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

    /// Whether `name` is one of `known`; reports it if not.
    pub(crate) fn check_known<'n>(
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

    /// Reports a blank or unprintable `name` of a section.
    pub(crate) fn check_section_name(&mut self, section: &Section<'_>, owner: &str, cure: &str) {
        if let Some(name) = section.maybe::<String>("name") {
            let label = Label { owner, key: "name" };
            self.check_name(label, &name, section.at("name"), cure);
        }
    }

    /// Reports a blank name, and one with control characters, which a terminal would interpret.
    pub(crate) fn check_name(&mut self, label: Label<'_>, name: &str, span: Span, cure: &str) {
        let rule = if name.trim().is_empty() {
            "a name must not be blank"
        } else if name.chars().any(char::is_control) {
            "a name must not contain control characters"
        } else {
            return;
        };
        let shown = name.escape_debug().to_string();
        self.problems.push(refused(label.owner, label.key, &shown, span, &rule).cure(cure));
    }

    /// Reports a duration of zero where a timeout or an interval is needed.
    pub(crate) fn check_nonzero(&mut self, section: &Section<'_>, key: &'static str) {
        if section.maybe(key) == Some(Duration::ZERO) {
            let problem = Problem::new(
                ProblemKind::BadParameter,
                section.at(key),
                format!("`{key}` is zero"),
            );
            self.problems.push(problem.cure("give a duration above zero, such as `5s`"));
        }
    }

    /// The source text for messages, with possible secrets masked.
    pub(crate) fn shown(&self, text: &str) -> String {
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        let unknown = self.problems.iter().filter_map(|problem| unknown_secret(problem, &lines));
        let masked: Vec<Span> = unknown.chain(self.masked.iter().copied()).collect();
        for span in masked {
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

/// What follows an unknown key in its line, if the key is named like a secret.
fn unknown_secret(problem: &Problem, lines: &[String]) -> Option<Span> {
    let is_unknown =
        matches!(problem.kind(), ProblemKind::UnknownKey | ProblemKind::UnknownParameter);
    let span = problem.span();
    let line = lines.get(span.line - 1).filter(|_| is_unknown)?;
    let key: String = line.chars().skip(span.column - 1).take(span.length).collect();
    let key = key.to_lowercase();
    let is_secret = SECRET_WORDS.iter().any(|word| key.contains(word));
    let length = line.chars().count();
    is_secret.then_some(Span { column: span.column + span.length, length, ..span })
}
