//! Parses YAML into a tree whose every value has a position.
//!
//! Serde-based readers lose the position of a value, and a diagnostic needs it. What could be read
//! in two ways is an error: a key twice, a tag, an anchor, a second document.

use std::collections::HashMap;

use saphyr_parser::{Event, Parser, ScalarStyle, Span as Range, Tag};

use crate::problem::{Problem, ProblemKind};
use crate::span::Span;

/// Bounds the recursion, so that no document can exhaust the stack.
const DEEPEST: usize = 32;

/// YAML allows 1024 characters for a key in this style, and each of ours may be printed as an
/// escape of several.
const LONGEST_KEY: usize = 128;

/// A value and its position.
#[derive(Clone, PartialEq, Debug)]
pub struct Node {
    /// Line, column and length in the document.
    pub span: Span,
    /// The value itself.
    pub value: Yaml,
}

/// A YAML value. Scalars keep their text; the reader of a setting gives it a type.
#[derive(Clone, PartialEq, Debug)]
pub enum Yaml {
    /// Nothing, `~` or `null`.
    Null,
    /// Text as written. A quoted scalar is text even if it looks like a number.
    Scalar {
        /// The text.
        text: String,
        /// Whether it was quoted.
        quoted: Quoted,
    },
    /// Values in order.
    List(Vec<Node>),
    /// Keys and values in order; a key is a scalar and stands once.
    Map(Vec<(Node, Node)>),
}

/// Whether a scalar was quoted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Quoted {
    /// Plain.
    No,
    /// Quoted, or a block of text.
    Yes,
}

impl Node {
    pub(crate) const fn null(span: Span) -> Self {
        Self { span, value: Yaml::Null }
    }

    /// The text of a scalar, quoted or not.
    #[must_use]
    pub fn text(&self) -> Option<&str> {
        match &self.value {
            Yaml::Scalar { text, .. } => Some(text),
            _ => None,
        }
    }

    /// The kind of value, as messages name it.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match &self.value {
            Yaml::Null => "nothing",
            Yaml::Scalar { quoted: Quoted::Yes, .. } => "text",
            Yaml::Scalar { text, .. } if text.parse::<f64>().is_ok() => "a number",
            Yaml::Scalar { .. } => "text",
            Yaml::List(_) => "a list",
            Yaml::Map(_) => "a map",
        }
    }

    /// The value of a key.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&Node> {
        let Yaml::Map(entries) = &self.value else { return None };
        entries.iter().find(|(known, _)| known.text() == Some(key)).map(|(_, value)| value)
    }
}

/// Parses the one document in `text`.
///
/// # Errors
/// If `text` is not YAML, is empty, or uses a part of YAML that is not accepted.
pub fn parse(text: &str) -> Result<Node, Problem> {
    let mut reader = YamlReader { parser: Parser::new_from_str(text), end: Span::default() };
    loop {
        match reader.next()? {
            (Event::StreamStart | Event::DocumentStart(_) | Event::Nothing, _) => {}
            (Event::StreamEnd | Event::DocumentEnd, _) => {
                return Err(Problem::new(ProblemKind::Syntax, reader.end, "the file is empty")
                    .cure("a profile needs at least `pick: round_robin`, a configuration `pods: [{url: …}]`"));
            }
            (event, range) => {
                let node = reader.node(event, range, 0)?;
                return reader.end(node);
            }
        }
    }
}

struct YamlReader<'a> {
    parser: Parser<'a, saphyr_parser::StrInput<'a>>,
    end: Span,
}

impl<'a> YamlReader<'a> {
    fn next(&mut self) -> Result<(Event<'a>, Range), Problem> {
        match self.parser.next() {
            Some(Ok((event, range))) => {
                self.end = span(range);
                Ok((event, range))
            }
            Some(Err(error)) => {
                let mark = error.marker();
                let at = Span { line: mark.line().max(1), column: mark.col() + 1, length: 1 };
                Err(Problem::new(ProblemKind::Syntax, at, format!("not YAML: {}", error.info()))
                    .cure("check indentation, colons and brackets here and on the line before"))
            }
            None => Ok((Event::StreamEnd, Range::default())),
        }
    }

    fn node(&mut self, event: Event<'a>, range: Range, depth: usize) -> Result<Node, Problem> {
        let at = span(range);
        if depth > DEEPEST {
            return Err(Problem::new(ProblemKind::Syntax, at, "nested more than 32 levels deep")
                .cure("no document needs more than six levels"));
        }
        if let Event::Scalar(_, _, anchor, tag)
        | Event::SequenceStart(anchor, tag)
        | Event::MappingStart(anchor, tag) = &event
        {
            check_plain(at, *anchor, tag.as_deref())?;
        }
        match event {
            Event::Scalar(text, style, ..) => {
                let plain = style == ScalarStyle::Plain;
                if plain && matches!(&*text, "" | "~" | "null") {
                    return Ok(Node::null(at));
                }
                let quoted = if plain { Quoted::No } else { Quoted::Yes };
                Ok(Node { span: at, value: Yaml::Scalar { text: text.into_owned(), quoted } })
            }
            Event::SequenceStart(..) => {
                let mut items = Vec::new();
                loop {
                    match self.next()? {
                        (Event::SequenceEnd, _) => break,
                        (event, range) => items.push(self.node(event, range, depth + 1)?),
                    }
                }
                Ok(Node { span: at, value: Yaml::List(items) })
            }
            Event::MappingStart(..) => self.map(at, depth),
            Event::Alias(_) => {
                Err(Problem::new(ProblemKind::Syntax, at, "aliases (`*name`) are not supported")
                    .cure("write the value out"))
            }
            _ => Err(Problem::new(ProblemKind::Syntax, at, "expected a value").cure("give one")),
        }
    }

    fn map(&mut self, at: Span, depth: usize) -> Result<Node, Problem> {
        let mut entries: Vec<(Node, Node)> = Vec::new();
        let mut first: HashMap<String, Span> = HashMap::new();
        loop {
            let (event, range) = self.next()?;
            if event == Event::MappingEnd {
                break;
            }
            let key = self.node(event, range, depth + 1)?;
            let (event, range) = self.next()?;
            let value = self.node(event, range, depth + 1)?;
            let Some(name) = key.text() else {
                let message = format!("a key is {}, not text", key.kind());
                return Err(Problem::new(ProblemKind::Syntax, key.span, message)
                    .cure("keys are plain words; did a `{` or `[` open by mistake?"));
            };
            if name.chars().count() > LONGEST_KEY {
                let message = format!("a key has more than {LONGEST_KEY} characters");
                return Err(Problem::new(ProblemKind::Syntax, key.span, message)
                    .cure("give it a shorter name; did a quote open by mistake?"));
            }
            if let Some(first) = first.insert(name.to_owned(), key.span) {
                let message = format!("duplicate key `{name}`");
                return Err(Problem::new(ProblemKind::Syntax, key.span, message)
                    .also(first, "first given here")
                    .cure("remove one of them"));
            }
            entries.push((key, value));
        }
        Ok(Node { span: at, value: Yaml::Map(entries) })
    }

    /// Refuses a second document.
    fn end(&mut self, node: Node) -> Result<Node, Problem> {
        loop {
            match self.next()? {
                (Event::StreamEnd, _) => return Ok(node),
                (Event::DocumentStart(_), range) => {
                    return Err(Problem::new(
                        ProblemKind::Syntax,
                        span(range),
                        "more than one document",
                    )
                    .cure("give each document a file of its own"));
                }
                _ => {}
            }
        }
    }
}

/// Refuses anchors and tags.
fn check_plain(at: Span, anchor: usize, tag: Option<&Tag>) -> Result<(), Problem> {
    let refuse = |message, cure| Err(Problem::new(ProblemKind::Syntax, at, message).cure(cure));
    match (anchor, tag) {
        (0, None) => Ok(()),
        (_, Some(tag)) => refuse(
            format!("tags (`{tag}`) are not supported"),
            "remove it; quote a value that is text",
        ),
        _ => refuse(
            "anchors (`&name`) are not supported".to_owned(),
            "remove it, and write the value out",
        ),
    }
}

fn span(range: Range) -> Span {
    let start = range.start;
    let end = range.end;
    let length = if start.line() == end.line() { end.col().saturating_sub(start.col()) } else { 1 };
    Span { line: start.line().max(1), column: start.col() + 1, length: length.max(1) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_has_its_position() {
        let node = parse("pick: max_score\nscore:\n  - least_load: {weight: 2}\n").unwrap();
        let pick = node.get("pick").unwrap();
        assert_eq!((pick.span.line, pick.span.column, pick.span.length), (1, 7, 9));
        let Yaml::List(scorers) = &node.get("score").unwrap().value else { panic!() };
        let weight = scorers[0].get("least_load").unwrap().get("weight").unwrap();
        assert_eq!((weight.span.line, weight.span.column), (3, 26));
        assert_eq!(weight.text(), Some("2"));
    }

    #[test]
    fn ambiguous_yaml_is_refused() {
        let error = |text: &str| parse(text).unwrap_err().message().to_owned();
        assert_eq!(error("a: 1\na: 2\n"), "duplicate key `a`");
        assert_eq!(error("a: 1\n---\nb: 2\n"), "more than one document");
        assert_eq!(error("a: &x 1\n"), "anchors (`&name`) are not supported");
        assert_eq!(error("a: [&x b]\nc: *x\n"), "anchors (`&name`) are not supported");
        assert_eq!(error("a: !text {b: 1}\n"), "tags (`!text`) are not supported");
        assert_eq!(error("[a]: 1\n"), "a key is a list, not text");
        assert_eq!(error(&"[".repeat(100)), "nested more than 32 levels deep");
        assert_eq!(error(&format!("{}: 1", "k".repeat(129))), "a key has more than 128 characters");
        assert_eq!(error(""), "the file is empty");
        assert!(error("a: [1\n").starts_with("not YAML: "));
    }
}
