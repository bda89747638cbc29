//! Parameters declared as data: their values are checked, their defaults filled in and their
//! reference written from one table, without running the code that uses them.

use std::fmt::{self, Write};
use std::time::Duration;

use serde_json::Value as Json;

use crate::node::{Node, Quoted, Yaml};
use crate::writer;

/// One parameter of a plugin, a step or a section.
#[derive(Clone, Copy, Debug)]
pub struct Parameter {
    /// Its key in YAML.
    pub name: &'static str,
    /// The type and the bounds of its value.
    pub takes: Takes,
    /// What its absence means.
    pub absent: Absent,
    /// What it is for, in one sentence, for the reference.
    pub doc: &'static str,
}

/// What the absence of a parameter means.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Absent {
    /// An error: the parameter is required.
    Refused,
    /// Nothing: the parameter is optional.
    Fine,
    /// The same as this default, written as in YAML.
    Means(&'static str),
}

/// The type and the bounds of a parameter's value.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Takes {
    /// `true` or `false`.
    Flag,
    /// A whole number within bounds.
    Whole(u64, u64),
    /// A number within bounds.
    Number(f64, f64),
    /// A time such as `500ms`, `30s`, `2m` or `1h`.
    Time,
    /// A number of bytes within bounds, such as `64KiB` or `16MiB`.
    Size(u64, u64),
    /// Any text.
    Text,
    /// One of these words.
    OneOf(&'static [&'static str]),
    /// A list of texts.
    Texts,
    /// A map from words to numbers of zero or more, such as `{gpu: 1, host: 0.5}`.
    Numbers,
    /// A map from names to plain values, such as `{stream: false}`.
    Fields,
    /// The same, with lists and maps among the values.
    Trees,
    /// A value that its owner reads itself, such as a nested plugin; described by this text.
    Nested(&'static str),
}

impl Parameter {
    /// A parameter that must be given.
    #[must_use]
    pub const fn required(name: &'static str, takes: Takes, doc: &'static str) -> Self {
        Self { name, takes, absent: Absent::Refused, doc }
    }

    /// A parameter that may be left out.
    #[must_use]
    pub const fn optional(name: &'static str, takes: Takes, doc: &'static str) -> Self {
        Self { name, takes, absent: Absent::Fine, doc }
    }

    /// A parameter with a default, written as in YAML.
    #[must_use]
    pub const fn with_default(
        name: &'static str,
        takes: Takes,
        default: &'static str,
        doc: &'static str,
    ) -> Self {
        Self { name, takes, absent: Absent::Means(default), doc }
    }
}

impl fmt::Display for Takes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Flag => f.write_str("`true` or `false`"),
            Self::Whole(0, u64::MAX) => f.write_str("a whole number"),
            Self::Whole(least, u64::MAX) => write!(f, "a whole number of at least {least}"),
            Self::Whole(least, most) => write!(f, "a whole number from {least} to {most}"),
            Self::Number(least, most) if *most == f64::INFINITY => {
                write!(f, "a number of at least {least}")
            }
            Self::Number(least, most) => write!(f, "a number from {least} to {most}"),
            Self::Time => f.write_str("a time such as `500ms`, `30s` or `2m`"),
            Self::Size(least, most) => {
                write!(f, "a size from {} to {}", sized(*least), sized(*most))
            }
            Self::Text => f.write_str("text"),
            Self::OneOf(words) => {
                let words: Vec<_> = words.iter().map(|word| format!("`{word}`")).collect();
                write!(f, "one of {}", words.join(", "))
            }
            Self::Texts => f.write_str("a list of texts"),
            Self::Numbers => f.write_str("a map from words to numbers of at least 0"),
            Self::Fields => f.write_str("a map from names to texts, numbers or flags"),
            Self::Trees => f.write_str("a map from names to values"),
            Self::Nested(description) => f.write_str(description),
        }
    }
}

/// A checked value of a parameter.
#[derive(Clone, PartialEq, Debug)]
pub enum Value {
    /// Of [`Takes::Flag`].
    Flag(bool),
    /// Of [`Takes::Whole`] and [`Takes::Size`].
    Whole(u64),
    /// Of [`Takes::Number`].
    Number(f64),
    /// Of [`Takes::Time`].
    Time(Duration),
    /// Of [`Takes::Text`].
    Text(String),
    /// Of [`Takes::OneOf`].
    Word(&'static str),
    /// Of [`Takes::Texts`].
    Texts(Vec<String>),
    /// Of [`Takes::Numbers`].
    Numbers(Vec<(String, f64)>),
    /// Of [`Takes::Fields`] and [`Takes::Trees`].
    Fields(Vec<(String, Json)>),
}

impl Takes {
    /// The value of `node`, if it has this type and is within bounds. Nested values have none.
    #[must_use]
    pub fn read(self, node: &Node) -> Option<Value> {
        match (self, &node.value) {
            (Self::Texts, Yaml::List(items)) => {
                let texts: Option<_> =
                    items.iter().map(|item| item.text().map(str::to_owned)).collect();
                texts.map(Value::Texts)
            }
            (Self::Numbers, Yaml::Map(entries)) => {
                let number = |(key, value): &(Node, Node)| {
                    let number = number(value).filter(|number| *number >= 0.0)?;
                    Some((key.text()?.to_owned(), number))
                };
                entries.iter().map(number).collect::<Option<_>>().map(Value::Numbers)
            }
            (Self::Fields, Yaml::Map(entries)) => {
                let field =
                    |(key, value): &(Node, Node)| Some((key.text()?.to_owned(), json(value)?));
                entries.iter().map(field).collect::<Option<_>>().map(Value::Fields)
            }
            (Self::Trees, Yaml::Map(entries)) => {
                let field =
                    |(key, value): &(Node, Node)| Some((key.text()?.to_owned(), tree(value)?));
                entries.iter().map(field).collect::<Option<_>>().map(Value::Fields)
            }
            (takes, Yaml::Scalar { text, quoted }) => takes.scalar(text, *quoted),
            _ => None,
        }
    }

    fn scalar(self, text: &str, quoted: Quoted) -> Option<Value> {
        let plain = (quoted == Quoted::No).then_some(text);
        match self {
            Self::Flag => match plain? {
                "true" => Some(Value::Flag(true)),
                "false" => Some(Value::Flag(false)),
                _ => None,
            },
            Self::Whole(least, most) => {
                let whole = plain?.replace('_', "").parse().ok()?;
                (least..=most).contains(&whole).then_some(Value::Whole(whole))
            }
            Self::Number(least, most) => {
                let number = decimal(plain?)?;
                (least..=most).contains(&number).then_some(Value::Number(number))
            }
            // The unit makes it text, quoted or not.
            Self::Time => time(text).map(Value::Time),
            Self::Size(least, most) => {
                size(text).filter(|size| (least..=most).contains(size)).map(Value::Whole)
            }
            Self::Text => Some(Value::Text(text.to_owned())),
            Self::OneOf(words) => {
                words.iter().find(|word| **word == text).map(|word| Value::Word(word))
            }
            Self::Texts => Some(Value::Texts(vec![text.to_owned()])),
            Self::Numbers | Self::Fields | Self::Trees | Self::Nested(_) => None,
        }
    }
}

/// A finite number that was not quoted.
#[must_use]
pub fn number(node: &Node) -> Option<f64> {
    match &node.value {
        Yaml::Scalar { text, quoted: Quoted::No } => decimal(text),
        _ => None,
    }
}

/// A finite number; `1_000` is one too.
fn decimal(text: &str) -> Option<f64> {
    text.replace('_', "").parse().ok().filter(|number: &f64| number.is_finite())
}

/// A scalar as JSON; `None` for a list or a map.
#[must_use]
pub fn json(node: &Node) -> Option<Json> {
    match &node.value {
        Yaml::Null => Some(Json::Null),
        Yaml::Scalar { text, quoted: Quoted::Yes } => Some(Json::from(text.as_str())),
        Yaml::Scalar { text, quoted: Quoted::No } => {
            Some(serde_json::from_str(text).unwrap_or_else(|_| Json::from(text.as_str())))
        }
        Yaml::List(_) | Yaml::Map(_) => None,
    }
}

/// Any value as JSON, if the keys of its maps are text.
fn tree(node: &Node) -> Option<Json> {
    match &node.value {
        Yaml::List(items) => items.iter().map(tree).collect::<Option<_>>().map(Json::Array),
        Yaml::Map(entries) => {
            let field = |(key, value): &(Node, Node)| Some((key.text()?.to_owned(), tree(value)?));
            entries.iter().map(field).collect::<Option<_>>().map(Json::Object)
        }
        Yaml::Null | Yaml::Scalar { .. } => json(node),
    }
}

/// `1.5s`, `30ms`, `2m`, `1h`, `50us`; to the microsecond, up to what a float counts exactly.
fn time(text: &str) -> Option<Duration> {
    const LONGEST_MICROS: f64 = (1_u64 << f64::MANTISSA_DIGITS) as f64;
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.')?;
    let micros = match &text[digits..] {
        "us" => 1.0,
        "ms" => 1e3,
        "s" => 1e6,
        "m" => 60e6,
        "h" => 3_600e6,
        _ => return None,
    };
    let micros = (text[..digits].parse::<f64>().ok()? * micros).round();
    (micros < LONGEST_MICROS).then(|| Duration::from_micros(micros as u64))
}

const UNITS: [(&str, u64); 3] = [("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];

/// `16MiB`, or a bare number of bytes.
fn size(text: &str) -> Option<u64> {
    for (unit, bytes) in UNITS {
        if let Some(count) = text.strip_suffix(unit) {
            return count.parse::<u64>().ok()?.checked_mul(bytes);
        }
    }
    text.replace('_', "").parse().ok()
}

/// A size in the largest unit that it is a whole number of.
fn sized(size: u64) -> String {
    let unit = UNITS.iter().find(|(_, bytes)| size >= *bytes && size.is_multiple_of(*bytes));
    unit.map_or_else(|| format!("{size} B"), |(unit, bytes)| format!("{}{unit}", size / bytes))
}

/// As YAML that parses back to the same value.
impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Flag(flag) => write!(f, "{flag}"),
            Self::Whole(whole) => write!(f, "{whole}"),
            Self::Number(number) => write!(f, "{number}"),
            Self::Time(time) => f.write_str(&writer::time(*time)),
            Self::Text(text) => f.write_str(&writer::quoted(text)),
            Self::Word(word) => f.write_str(word),
            Self::Texts(texts) => {
                let texts: Vec<_> = texts.iter().map(|text| writer::quoted(text)).collect();
                write!(f, "[{}]", texts.join(", "))
            }
            Self::Numbers(numbers) => map(f, numbers, f64::to_string),
            Self::Fields(fields) => map(f, fields, |value| match value {
                Json::String(text) => writer::quoted(text),
                other => other.to_string(),
            }),
        }
    }
}

fn map<T>(
    f: &mut fmt::Formatter<'_>,
    entries: &[(String, T)],
    value: impl Fn(&T) -> String,
) -> fmt::Result {
    let entry = |(key, of): &(String, T)| format!("{}: {}", writer::word(key), value(of));
    write!(f, "{{{}}}", entries.iter().map(entry).collect::<Vec<_>>().join(", "))
}

/// A Rust type that a checked value converts to.
pub trait FromValue: Sized {
    /// The value, if it is of this type.
    fn from_value(value: &Value) -> Option<Self>;
}

macro_rules! from_value {
    ($($type:ty: $pattern:pat => $out:expr;)*) => {$(
        impl FromValue for $type {
            fn from_value(value: &Value) -> Option<Self> {
                match value { $pattern => $out, _ => None }
            }
        }
    )*};
}

from_value! {
    bool: Value::Flag(flag) => Some(*flag);
    u64: Value::Whole(whole) => Some(*whole);
    u32: Value::Whole(whole) => u32::try_from(*whole).ok();
    usize: Value::Whole(whole) => usize::try_from(*whole).ok();
    f64: Value::Number(number) => Some(*number);
    Duration: Value::Time(time) => Some(*time);
    String: Value::Text(text) => Some(text.clone());
    &'static str: Value::Word(word) => Some(word);
    Vec<String>: Value::Texts(texts) => Some(texts.clone());
    Vec<(String, Json)>: Value::Fields(fields) => Some(fields.clone());
    Vec<(String, f64)>: Value::Numbers(numbers) => Some(numbers.clone());
}

/// Appends the table of `parameters` to `page`, as Markdown.
pub fn parameter_table(parameters: &[Parameter], page: &mut String) {
    if parameters.is_empty() {
        return;
    }
    page.push_str("\n| parameter | takes | default | |\n|---|---|---|---|\n");
    for Parameter { name, takes, absent, doc } in parameters {
        let default = match absent {
            Absent::Refused => "required".to_owned(),
            Absent::Fine => "none".to_owned(),
            Absent::Means(text) => format!("`{text}`"),
        };
        let _ = writeln!(page, "| `{name}` | {takes} | {default} | {doc} |");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(takes: Takes, text: &str) -> Option<String> {
        let node = crate::node::parse(text).unwrap();
        takes.read(&node).map(|value| value.to_string())
    }

    #[test]
    fn values_print_as_yaml_that_reads_back() {
        assert_eq!(read(Takes::Time, "1.5s").unwrap(), "1500ms");
        assert_eq!(read(Takes::Time, "2m").unwrap(), "120s");
        assert_eq!(read(Takes::Time, "'2m'").unwrap(), "120s");
        assert_eq!(read(Takes::Size(0, 1 << 30), "'16MiB'").unwrap(), "16777216");
        assert_eq!(read(Takes::Whole(1, 9_999), "1_024").unwrap(), "1024");
        assert_eq!(read(Takes::Number(0.0, 1e9), "1_024.5").unwrap(), "1024.5");
        assert_eq!(read(Takes::Size(0, 1 << 30), "16MiB").unwrap(), "16777216");
        assert_eq!(read(Takes::Size(0, 1 << 30), "16777216").unwrap(), "16777216");
        assert_eq!(read(Takes::Texts, "[a, b]").unwrap(), r#"["a", "b"]"#);
        assert_eq!(read(Takes::Texts, "a").unwrap(), r#"["a"]"#);
        assert_eq!(read(Takes::Numbers, "{gpu: 1, host: 0.5}").unwrap(), "{gpu: 1, host: 0.5}");
        assert_eq!(read(Takes::OneOf(&["x", "y"]), "y").unwrap(), "y");
        assert_eq!(read(Takes::Time, "0.1us").unwrap(), "0s", "below the resolution");
        let fields = r#"{"a: b": "1", c: 1, "null": ~, d: "\n"}"#;
        assert_eq!(
            read(Takes::Fields, fields).unwrap(),
            r#"{"a: b": "1", c: 1, "null": null, d: "\n"}"#
        );
    }

    #[test]
    fn another_type_and_a_value_out_of_bounds_are_refused() {
        assert_eq!(read(Takes::Whole(1, 8), "9"), None);
        assert_eq!(read(Takes::Whole(1, 8), "'4'"), None, "quoted, so it is text");
        assert_eq!(read(Takes::Number(0.0, 1.0), "nan"), None);
        assert_eq!(read(Takes::Number(0.0, f64::INFINITY), "inf"), None);
        assert_eq!(read(Takes::Time, "9007199254.740992s"), None, "too long to be exact");
        assert_eq!(read(Takes::Time, "30"), None, "a bare number has no unit");
        assert_eq!(read(Takes::Flag, "yes"), None);
        assert_eq!(read(Takes::Size(1, 1 << 20), "2MiB"), None);
        assert_eq!(read(Takes::Size(1, 1 << 20), "1MB"), None, "a megabyte is no power of two");
        assert_eq!(Takes::Size(1, 1 << 20).to_string(), "a size from 1 B to 1MiB");
        assert_eq!(read(Takes::Numbers, "{gpu: -1}"), None);
    }
}
