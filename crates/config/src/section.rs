//! One map of the file: its declared parameters, and the position of each value.

use std::fmt::Display;
use std::str::FromStr;

use wornpath_yaml::{
    FromValue, Node, Parameter, Problem, ProblemKind, SettingEntry, SettingValues, Span, Yaml,
};

/// A map whose parameters were read.
pub(crate) struct Section<'a> {
    entry: SettingEntry<'a>,
    settings: SettingValues,
}

impl<'a> Section<'a> {
    /// Reads `parameters`; keys in `nested` are read by the caller.
    pub(crate) fn read(
        entry: SettingEntry<'a>,
        parameters: &[Parameter],
        nested: &[&'static str],
        problems: &mut Vec<Problem>,
    ) -> Self {
        let settings = SettingValues::read(&entry, parameters, nested, problems);
        Self { entry, settings }
    }

    /// Reads the map `name`. If it is absent, every parameter has its default, and problems are
    /// reported at `span`.
    pub(crate) fn of(
        node: Option<&'a Node>,
        name: &'static str,
        span: Span,
        parameters: &[Parameter],
        problems: &mut Vec<Problem>,
    ) -> Self {
        let empty = SettingEntry { name, span, settings: &[] };
        match node {
            Some(node) => Self::map(node, name, parameters, &[], problems),
            None => Self::read(empty, parameters, &[], problems),
        }
    }

    /// Reads the map `name`; keys in `nested` are read by the caller.
    pub(crate) fn map(
        node: &'a Node,
        name: &'static str,
        parameters: &[Parameter],
        nested: &[&'static str],
        problems: &mut Vec<Problem>,
    ) -> Self {
        match map(node, name) {
            Ok(entry) => Self::read(entry, parameters, nested, problems),
            Err(problem) => {
                problems.push(problem);
                let empty = SettingEntry { name, span: node.span, settings: &[] };
                // Missing parameters of a section of the wrong kind are no further problems.
                Self::read(empty, parameters, nested, &mut Vec::new())
            }
        }
    }

    /// Its position.
    pub(crate) const fn span(&self) -> Span {
        self.entry.span
    }

    /// The value of a key.
    pub(crate) fn node(&self, key: &str) -> Option<&'a Node> {
        self.entry.settings.iter().find(|(name, _)| name.text() == Some(key)).map(|(_, node)| node)
    }

    /// The position of a key's value, or of the section if the key is absent.
    pub(crate) fn at(&self, key: &str) -> Span {
        self.node(key).map_or(self.entry.span, |node| node.span)
    }

    /// An optional parameter; `None` if it is absent or was refused.
    pub(crate) fn maybe<T: FromValue>(&self, key: &str) -> Option<T> {
        self.settings.maybe(key)
    }

    /// A parameter that is required or has a default; `otherwise` if it was refused.
    pub(crate) fn or<T: FromValue>(&self, key: &str, otherwise: T) -> T {
        self.settings.or(key, otherwise)
    }

    /// The items of a list of texts, each with its position.
    pub(crate) fn texts(&self, key: &str) -> Vec<(String, Span)> {
        let texts: Vec<String> = self.maybe(key).unwrap_or_default();
        let spans: Vec<_> = match self.node(key).map(|node| &node.value) {
            Some(Yaml::List(items)) => items.iter().map(|item| item.span).collect(),
            _ => vec![self.at(key); texts.len()],
        };
        texts.into_iter().zip(spans).collect()
    }

    /// Parses the text of a key; `cure` describes the expected form.
    pub(crate) fn parsed<T>(
        &self,
        key: &'static str,
        cure: &str,
        problems: &mut Vec<Problem>,
    ) -> Option<T>
    where
        T: FromStr<Err: Display>,
    {
        let text: String = self.maybe(key)?;
        match text.parse() {
            Ok(parsed) => Some(parsed),
            Err(error) => {
                problems
                    .push(refused(self.entry.name, key, &text, self.at(key), &error).cure(cure));
                None
            }
        }
    }
}

/// The problem of a value that cannot be parsed.
pub(crate) fn refused(
    owner: &str,
    key: &str,
    text: &str,
    span: Span,
    error: &dyn Display,
) -> Problem {
    let message = format!("`{key}` of `{owner}` is `{text}`: {error}");
    Problem::new(ProblemKind::BadParameter, span, message)
}

/// The maps in the list under `key`.
pub(crate) fn maps<'a>(
    root: &'a Node,
    key: &'static str,
    problems: &mut Vec<Problem>,
) -> Vec<SettingEntry<'a>> {
    let items = match root.get(key).map(|node| (&node.value, node)) {
        None | Some((Yaml::Null, _)) => return Vec::new(),
        Some((Yaml::List(items), _)) => items,
        Some((_, node)) => {
            let message = format!("`{key}` must be a list, not {}", node.kind());
            problems.push(
                Problem::new(ProblemKind::Syntax, node.span, message)
                    .cure("write each entry on its own line, starting with `- `"),
            );
            return Vec::new();
        }
    };
    let mut entries = Vec::new();
    for item in items {
        match map(item, key) {
            Ok(entry) => entries.push(entry),
            Err(problem) => problems.push(problem),
        }
    }
    entries
}

fn map<'a>(node: &'a Node, key: &'static str) -> Result<SettingEntry<'a>, Problem> {
    match &node.value {
        Yaml::Null => Ok(SettingEntry { name: key, span: node.span, settings: &[] }),
        Yaml::Map(settings) => Ok(SettingEntry { name: key, span: node.span, settings }),
        _ => {
            let message = format!("`{key}` must be a map, not {}", node.kind());
            Err(Problem::new(ProblemKind::Syntax, node.span, message)
                .cure("write one `key: value` per line, or `{key: value, …}`"))
        }
    }
}
