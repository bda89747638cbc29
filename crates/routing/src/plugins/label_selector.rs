//! Label selectors in Kubernetes syntax: `zone in (a, b), gpu = h100, !spot`.
//!
//! All requirements, separated by commas, must hold. `=`, `==` and `in` require a value; `!=` and
//! `notin` also hold for a pod without the label; a bare name requires the label, and `!name` its
//! absence.

use crate::name::Name;

/// A parsed selector.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct LabelSelector {
    requirements: Vec<Requirement>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
struct Requirement {
    label: Name,
    test: Test,
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum Test {
    OneOf(Vec<Name>),
    NoneOf(Vec<Name>),
    Present,
    Absent,
}

/// A selector that does not parse, with the column of the first unexpected character.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("column {column} of `{text}`: expected {expected}, found {found}")]
pub(crate) struct LabelSelectorError {
    text: String,
    column: usize,
    expected: &'static str,
    found: String,
}

impl LabelSelector {
    pub(crate) fn parse(text: &str) -> Result<Self, LabelSelectorError> {
        let mut parser = SelectorParser { text, at: 0 };
        let mut requirements = vec![parser.requirement()?];
        while parser.accept(",") {
            requirements.push(parser.requirement()?);
        }
        if parser.rest().is_empty() {
            Ok(Self { requirements })
        } else {
            Err(parser.expected("`,` or end of input"))
        }
    }

    /// Whether all requirements hold. Compares numbers, not strings.
    pub(crate) fn matches(&self, labels: &[(Name, Name)]) -> bool {
        self.first_unmet(labels).is_none()
    }

    /// The first requirement that the labels do not meet, as text.
    pub(crate) fn unmet(&self, labels: &[(Name, Name)]) -> Option<String> {
        self.first_unmet(labels).map(Requirement::to_string)
    }

    fn first_unmet(&self, labels: &[(Name, Name)]) -> Option<&Requirement> {
        self.requirements.iter().find(|requirement| {
            let found = labels.iter().find(|(label, _)| *label == requirement.label);
            !requirement.test.holds(found.map(|(_, value)| value))
        })
    }
}

impl Test {
    fn holds(&self, value: Option<&Name>) -> bool {
        match self {
            Self::OneOf(values) => value.is_some_and(|value| values.contains(value)),
            Self::NoneOf(values) => value.is_none_or(|value| !values.contains(value)),
            Self::Present => value.is_some(),
            Self::Absent => value.is_none(),
        }
    }
}

impl std::fmt::Display for Requirement {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { label, test } = self;
        let list = |values: &[Name]| values.iter().map(Name::as_str).collect::<Vec<_>>().join(", ");
        match test {
            Test::OneOf(values) if values.len() == 1 => write!(f, "{label} = {}", values[0]),
            Test::NoneOf(values) if values.len() == 1 => write!(f, "{label} != {}", values[0]),
            Test::OneOf(values) => write!(f, "{label} in ({})", list(values)),
            Test::NoneOf(values) => write!(f, "{label} notin ({})", list(values)),
            Test::Present => write!(f, "{label}"),
            Test::Absent => write!(f, "!{label}"),
        }
    }
}

struct SelectorParser<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> SelectorParser<'a> {
    fn requirement(&mut self) -> Result<Requirement, LabelSelectorError> {
        if self.accept("!") {
            return Ok(Requirement { label: self.word("a label")?.into(), test: Test::Absent });
        }
        let label = self.word("a label")?.into();
        let test = if self.accept("!=") {
            Test::NoneOf(vec![self.word("a value")?.into()])
        } else if self.accept("==") || self.accept("=") {
            Test::OneOf(vec![self.word("a value")?.into()])
        } else if self.accept_word("in") {
            Test::OneOf(self.values()?)
        } else if self.accept_word("notin") {
            Test::NoneOf(self.values()?)
        } else if self.rest().is_empty() || self.rest().starts_with(',') {
            Test::Present
        } else {
            return Err(self.expected("`=`, `!=`, `in`, `notin` or `,`"));
        };
        Ok(Requirement { label, test })
    }

    fn values(&mut self) -> Result<Vec<Name>, LabelSelectorError> {
        if !self.accept("(") {
            return Err(self.expected("`(`"));
        }
        let mut values = vec![self.word("a value")?.into()];
        while self.accept(",") {
            values.push(self.word("a value")?.into());
        }
        if self.accept(")") { Ok(values) } else { Err(self.expected("`,` or `)`")) }
    }

    fn word(&mut self, expected: &'static str) -> Result<&'a str, LabelSelectorError> {
        let word = leading_word(self.rest());
        if word.is_empty() {
            return Err(self.expected(expected));
        }
        self.at += word.len();
        Ok(word)
    }

    fn accept_word(&mut self, word: &str) -> bool {
        leading_word(self.rest()) == word && self.accept(word)
    }

    fn accept(&mut self, symbol: &str) -> bool {
        let is_next = self.rest().starts_with(symbol);
        self.at += if is_next { symbol.len() } else { 0 };
        is_next
    }

    /// The rest of the text, after leading spaces.
    fn rest(&mut self) -> &'a str {
        let rest = self.text[self.at..].trim_start();
        self.at = self.text.len() - rest.len();
        rest
    }

    fn expected(&mut self, expected: &'static str) -> LabelSelectorError {
        let found = match (leading_word(self.rest()), self.rest().chars().next()) {
            (_, None) => "end of input".to_owned(),
            ("", Some(character)) => format!("`{character}`"),
            (word, _) => format!("`{word}`"),
        };
        let column = self.text[..self.at].chars().count() + 1;
        LabelSelectorError { text: self.text.to_owned(), column, expected, found }
    }
}

/// The characters that Kubernetes allows in labels.
fn leading_word(text: &str) -> &str {
    let inside = |c: char| c.is_alphanumeric() || matches!(c, '-' | '_' | '.' | '/');
    &text[..text.find(|c: char| !inside(c)).unwrap_or(text.len())]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels() -> Vec<(Name, Name)> {
        [("zone", "a"), ("gpu", "h100"), ("example.com/tier", "gold")]
            .map(|(label, value)| (label.into(), value.into()))
            .to_vec()
    }

    #[test]
    fn requirements_hold_as_kubernetes_defines_them() {
        let cases = [
            ("zone=a", true),
            ("zone == b", false),
            ("zone!=b", true),
            ("rack != r1", true),
            ("zone in (a, b)", true),
            ("zone notin (a,b)", false),
            ("rack notin (r1)", true),
            ("rack in (r1)", false),
            ("gpu", true),
            ("!gpu", false),
            ("! rack", true),
            ("zone=a, gpu=h100, example.com/tier=gold", true),
            ("zone=a,gpu=a100", false),
            ("index, in in (notin)", false),
        ];
        for (text, expected) in cases {
            let selector = LabelSelector::parse(text).unwrap();
            assert_eq!(selector.matches(&labels()), expected, "{text}");
        }
    }

    #[test]
    fn the_first_unmet_requirement_is_named() {
        let selector = LabelSelector::parse("gpu, zone in (b, c), !spot").unwrap();
        assert_eq!(selector.unmet(&labels()).unwrap(), "zone in (b, c)");
        assert_eq!(selector.unmet(&[]).unwrap(), "gpu");
    }

    #[test]
    fn errors_point_at_the_column() {
        let cases = [
            ("", "column 1 of ``: expected a label, found end of input"),
            ("zone=", "column 6 of `zone=`: expected a value, found end of input"),
            ("zone in a", "column 9 of `zone in a`: expected `(`, found `a`"),
            ("zone in (a", "column 11 of `zone in (a`: expected `,` or `)`, found end of input"),
            (
                "zone is a",
                "column 6 of `zone is a`: expected `=`, `!=`, `in`, `notin` or `,`, found `is`",
            ),
            ("ünder=ö b", "column 9 of `ünder=ö b`: expected `,` or end of input, found `b`"),
            ("a,,b", "column 3 of `a,,b`: expected a label, found `,`"),
        ];
        for (text, message) in cases {
            assert_eq!(LabelSelector::parse(text).unwrap_err().to_string(), message);
        }
    }
}
