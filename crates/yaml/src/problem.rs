//! Diagnostics: what is wrong with a document, where, and the cure, printed as a compiler prints
//! errors.

use std::collections::HashSet;
use std::fmt;

use serde_json::{Value, json};

use crate::snippet::{SnippetLines, SnippetText, Span};

/// The most problems that are printed; JSON has all of them.
const MOST_SHOWN: usize = 100;

/// The rule that a document breaks. Its code is stable, so that programs can match it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ProblemKind {
    /// Not YAML, or not the shape of what it should be.
    Syntax,
    /// A key that has no meaning there.
    UnknownKey,
    /// No plugin of that stage has the name.
    UnknownPlugin,
    /// The plugin has no such parameter.
    UnknownParameter,
    /// A parameter's value has the wrong type or is out of range.
    BadParameter,
    /// A parameter without default is not given.
    MissingParameter,
    /// A slot is read that no plugin writes.
    NoWriter,
    /// Two plugins write one slot.
    TwoWriters,
    /// The writer comes after the reader.
    WrongOrder,
    /// Preparers wait for each other.
    Cycle,
    /// A plugin that another one needs is missing.
    MissingDependency,
    /// Two plugins exclude each other.
    Conflict,
    /// A weight below zero, or no weight above it.
    BadWeight,
    /// Scores in different units are added.
    MixedScales,
    /// A step names a selector that does not exist.
    NoSelector,
    /// No pod can play a step's role.
    NoPodForRole,
    /// A name that nothing in the configuration has.
    NotFound,
    /// Something is given twice that must be given once.
    Twice,
    /// It would grant access or show data that must stay closed.
    Unsafe,
    /// Something that can never have an effect.
    Unreachable,
}

impl ProblemKind {
    /// The rules of profiles.
    pub const OF_PROFILES: [Self; 16] = [
        Self::Syntax,
        Self::UnknownKey,
        Self::UnknownPlugin,
        Self::UnknownParameter,
        Self::BadParameter,
        Self::MissingParameter,
        Self::NoWriter,
        Self::TwoWriters,
        Self::WrongOrder,
        Self::Cycle,
        Self::MissingDependency,
        Self::Conflict,
        Self::BadWeight,
        Self::MixedScales,
        Self::NoSelector,
        Self::NoPodForRole,
    ];

    /// The rules that only whole configurations can break.
    pub const OF_CONFIGURATIONS: [Self; 4] =
        [Self::NotFound, Self::Twice, Self::Unsafe, Self::Unreachable];

    /// A stable word for programs.
    #[must_use]
    pub const fn code(self) -> &'static str {
        match self {
            Self::Syntax => "syntax",
            Self::UnknownKey => "unknown-key",
            Self::UnknownPlugin => "unknown-plugin",
            Self::UnknownParameter => "unknown-parameter",
            Self::BadParameter => "bad-parameter",
            Self::MissingParameter => "missing-parameter",
            Self::NoWriter => "no-writer",
            Self::TwoWriters => "two-writers",
            Self::WrongOrder => "wrong-order",
            Self::Cycle => "cycle",
            Self::MissingDependency => "missing-dependency",
            Self::Conflict => "conflict",
            Self::BadWeight => "bad-weight",
            Self::MixedScales => "mixed-scales",
            Self::NoSelector => "no-selector",
            Self::NoPodForRole => "no-pod-for-role",
            Self::NotFound => "not-found",
            Self::Twice => "twice",
            Self::Unsafe => "unsafe",
            Self::Unreachable => "unreachable",
        }
    }
}

/// One broken rule.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Problem {
    kind: ProblemKind,
    span: Span,
    message: String,
    also: Vec<(Span, String)>,
    cure: String,
}

impl Problem {
    /// A broken rule, where it is broken, and how.
    pub fn new(kind: ProblemKind, span: Span, message: impl Into<String>) -> Self {
        Self { kind, span, message: message.into(), also: Vec::new(), cure: String::new() }
    }

    /// Adds a second position that explains the problem, with a note.
    #[must_use]
    pub fn also(mut self, span: Span, note: impl Into<String>) -> Self {
        self.also.push((span, note.into()));
        self
    }

    /// Sets the cure: what to write instead.
    #[must_use]
    pub fn cure(mut self, cure: impl Into<String>) -> Self {
        self.cure = cure.into();
        self
    }

    /// The rule that is broken.
    #[must_use]
    pub const fn kind(&self) -> ProblemKind {
        self.kind
    }

    /// The position of the problem.
    #[must_use]
    pub const fn span(&self) -> Span {
        self.span
    }

    /// What is wrong, in one sentence.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.message
    }
}

/// All problems of one file.
#[derive(Clone, PartialEq, Eq)]
pub struct Problems {
    subject: &'static str,
    file: String,
    text: String,
    problems: Vec<Problem>,
}

impl Problems {
    /// The problems of `file`, whose content is `text` and which should be a `subject`.
    #[must_use]
    pub fn new(subject: &'static str, file: &str, text: &str, mut problems: Vec<Problem>) -> Self {
        problems.sort_by_key(|problem| (problem.span.line, problem.span.column));
        // Two steps may share a selector, and each reports its problems.
        let mut seen = HashSet::new();
        problems.retain(|it| seen.insert((it.kind, it.span, it.message.clone())));
        Self { subject, file: file.to_owned(), text: text.to_owned(), problems }
    }

    /// The problems in the order of the file.
    #[must_use]
    pub fn all(&self) -> &[Problem] {
        &self.problems
    }

    /// As JSON, for programs: a list of `{code, file, line, column, length, message, cure, also}`.
    #[must_use]
    pub fn to_json(&self) -> Value {
        let problem = |problem: &Problem| {
            let also = problem.also.iter().map(|(span, note)| {
                json!({"line": span.line, "column": span.column, "length": span.length, "note": note})
            });
            let also: Vec<_> = also.collect();
            let Span { line, column, length } = problem.span;
            json!({
                "code": problem.kind.code(), "file": self.file, "line": line, "column": column,
                "length": length, "message": problem.message, "cure": problem.cure, "also": also,
            })
        };
        self.problems.iter().map(problem).collect()
    }
}

/// As a compiler prints errors: message, position, marked line, cure.
impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lines = SnippetLines::of(&self.text);
        for problem in self.problems.iter().take(MOST_SHOWN) {
            let Span { line, column, .. } = problem.span;
            writeln!(f, "error[{}]: {}", problem.kind.code(), SnippetText(&problem.message))?;
            writeln!(f, " --> {}:{line}:{column}", self.file)?;
            lines.show(f, problem.span, '^', "")?;
            for (span, note) in &problem.also {
                lines.show(f, *span, '-', note)?;
            }
            writeln!(f, "  = cure: {}\n", SnippetText(&problem.cure))?;
        }
        let count = self.problems.len();
        if count > MOST_SHOWN {
            writeln!(f, "and {} more after these", count - MOST_SHOWN)?;
        }
        let noun = if count == 1 { "problem" } else { "problems" };
        writeln!(f, "{}: {count} {noun}; the {} is not usable", self.file, self.subject)
    }
}

impl fmt::Debug for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for Problems {}
