//! Diagnostics: what is wrong with a document, where, and the cure, printed as a compiler prints
//! errors.

use std::collections::HashSet;
use std::fmt;

use annotate_snippets::{AnnotationKind, Level, Renderer, Snippet, normalize_untrusted_str};
use serde_json::{Value, json};

use crate::span::{LineStarts, Span};

/// The most problems that are printed; JSON has all of them.
const MOST_SHOWN: usize = 100;
/// The most columns of a line that are shown; the marked part is always among them.
const WIDEST: usize = 120;

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

    /// What is wrong and what to do, for a value that has no line to show.
    #[must_use]
    pub fn sentence(&self) -> String {
        if self.cure.is_empty() {
            return self.message.clone();
        }
        format!("{}; {}", self.message, self.cure)
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

/// As a compiler prints errors: message, position, marked lines, cure.
impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lines = LineStarts::of(&self.text);
        let renderer = Renderer::plain().term_width(WIDEST);
        for problem in self.problems.iter().take(MOST_SHOWN) {
            let primary = AnnotationKind::Primary.span(lines.bytes(problem.span));
            let also = problem
                .also
                .iter()
                .map(|(span, note)| AnnotationKind::Context.span(lines.bytes(*span)).label(note));
            let source = Snippet::source(&self.text).path(&self.file);
            let cure =
                Level::HELP.with_name("cure").message(normalize_untrusted_str(&problem.cure));
            let report = Level::ERROR
                .primary_title(&problem.message)
                .id(problem.kind.code())
                .element(source.annotation(primary).annotations(also))
                .element(cure);
            writeln!(f, "{}\n", renderer.render(&[report]))?;
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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn shown(text: &str, span: Span, also: Span) -> String {
        let problem =
            Problem::new(ProblemKind::Syntax, span, "wrong").also(also, "because of this");
        Problems::new("configuration", "a.yaml", text, vec![problem.cure("mend it")]).to_string()
    }

    fn at(line: usize, column: usize, length: usize) -> Span {
        Span { line, column, length }
    }

    #[test]
    fn the_marked_part_of_a_long_line_is_shown() {
        let text = format!("{}wrong{}", "a".repeat(10_000), "b".repeat(10_000));
        let out = shown(&text, at(1, 10_001, 5), at(1, 10_001, 5));
        assert!(out.contains("awrongb") && out.contains("^^^^^"), "{out}");
        let whole = shown(&text, at(1, 1, 20_005), at(1, 1, 1));
        assert!(whole.lines().all(|line| line.chars().count() < 160), "{whole}");
    }

    #[test]
    fn control_characters_are_replaced_and_marks_stay_aligned() {
        let out = shown("\u{1b}[2J\tx\u{202e}y: 東京 wrong\n", at(1, 14, 5), at(1, 14, 5));
        assert!(!out.contains(['\u{1b}', '\u{202e}', '\t']), "{out:?}");
        let lines: Vec<_> = out.lines().collect();
        let column = |line: &str, text: &str| {
            line[..line.find(text).unwrap()]
                .chars()
                .map(|c| 1 + usize::from(('\u{3000}'..'\u{a000}').contains(&c)))
                .sum()
        };
        let marked: usize = column(lines[3], "wrong");
        assert_eq!(marked, column(lines[4], "^^^^^"), "{out}");
        let message = Problem::new(ProblemKind::Syntax, at(1, 1, 1), "a\u{7}\u{1b}[2Jb");
        let out = Problems::new("configuration", "a.yaml", "x", vec![message.cure("\u{7}")]);
        assert!(!out.to_string().contains(['\u{7}', '\u{1b}']), "{out}");
    }

    #[test]
    fn several_positions_are_marked_in_one_snippet() {
        let text = "first: 1\nsecond: 2\nthird: 3\nfourth: 4\nfifth: 5\nfirst: 6\n";
        let out = shown(text, at(6, 1, 5), at(1, 1, 5));
        assert_eq!(
            out,
            "\
error[syntax]: wrong
 --> a.yaml:6:1
  |
1 | first: 1
  | ----- because of this
...
6 | first: 6
  | ^^^^^
  |
  = cure: mend it

a.yaml: 1 problem; the configuration is not usable
"
        );
    }

    proptest! {
        #[test]
        fn every_position_of_every_text_can_be_shown(
            text in "[a-z:é東\u{202e}\t \r\n]{0,40}",
            line in 0_usize..6, column in 0_usize..50, length in 0_usize..60,
        ) {
            let out = shown(&text, at(line, column, length), at(1, 1, 1));
            prop_assert!(out.contains("error[syntax]: wrong"), "{}", out);
        }
    }
}
