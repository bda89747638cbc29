//! The settings that a document gives for declared parameters: checked, with defaults filled in.

use crate::node::{Node, Yaml, parse};
use crate::parameter::{Absent, FromValue, Parameter, Takes, Value};
use crate::problem::{Problem, ProblemKind};
use crate::span::Span;

/// One named entry of a document: `name` or `name: {parameters}`.
#[derive(Clone, Debug)]
pub struct SettingEntry<'a> {
    /// Its name, as messages show it.
    pub name: &'a str,
    /// The position of the name.
    pub span: Span,
    /// The parameters that it gives, unchecked.
    pub settings: &'a [(Node, Node)],
}

impl<'a> SettingEntry<'a> {
    /// Reads a name, or a map of one name to its parameters. Messages call it a `what`.
    ///
    /// # Errors
    /// If `node` is neither.
    pub fn read(node: &'a Node, what: &str) -> Result<Self, Problem> {
        let wrong = |span, message: String| {
            let cure = "write `name` or `name: {parameter: value}`";
            Err(Problem::new(ProblemKind::Syntax, span, message).cure(cure))
        };
        match &node.value {
            Yaml::Scalar { text, .. } => Ok(Self { name: text, span: node.span, settings: &[] }),
            Yaml::Map(entries) => match &entries[..] {
                [(key, value)] => Self::named(key, value),
                [] => wrong(node.span, format!("a {what} without a name")),
                [_, (second, _), ..] => {
                    let name = second.text().unwrap_or_default();
                    wrong(second.span, format!("`{name}` is beside a {what}, not inside it"))
                }
            },
            _ => wrong(node.span, format!("expected a {what}, found {}", node.kind())),
        }
    }

    /// Reads the list of maps under `key` of `root`; each entry is named `key`. An absent key is an
    /// empty list.
    pub fn list(root: &'a Node, key: &'static str, problems: &mut Vec<Problem>) -> Vec<Self> {
        let Some(node) = root.get(key) else { return Vec::new() };
        let not_maps = |node: &Node| {
            let message = format!("`{key}` must be a list of maps; this is {}", node.kind());
            Problem::new(ProblemKind::Syntax, node.span, message).cure("write `- name: …` for each")
        };
        let Yaml::List(items) = &node.value else {
            problems.push(not_maps(node));
            return Vec::new();
        };
        let mut entries = Vec::new();
        for item in items {
            match &item.value {
                Yaml::Map(settings) => entries.push(Self { name: key, span: item.span, settings }),
                _ => problems.push(not_maps(item)),
            }
        }
        entries
    }

    /// Reads a key and the map of its parameters.
    ///
    /// # Errors
    /// If `value` is not a map.
    pub fn named(key: &'a Node, value: &'a Node) -> Result<Self, Problem> {
        let name = key.text().unwrap_or_default();
        match &value.value {
            Yaml::Null => Ok(Self { name, span: key.span, settings: &[] }),
            Yaml::Map(settings) => Ok(Self { name, span: key.span, settings }),
            _ => {
                let message = format!("the parameters of `{name}` are {}, not a map", value.kind());
                Err(Problem::new(ProblemKind::Syntax, value.span, message)
                    .cure("write them as `{parameter: value}`"))
            }
        }
    }
}

/// Reports every key that is not among `known`.
pub fn unknown_keys(
    entries: &[(Node, Node)],
    known: &[&'static str],
    owner: &str,
    problems: &mut Vec<Problem>,
) {
    for (key, _) in entries {
        let name = key.text().unwrap_or_default();
        if known.contains(&name) {
            continue;
        }
        let cure = match nearest(name, known.iter().copied()) {
            Some(near) => format!("did you mean `{near}`?"),
            None => format!("use one of: {}", known.join(", ")),
        };
        let message = format!("{owner} has no key `{name}`");
        problems.push(Problem::new(ProblemKind::UnknownKey, key.span, message).cure(cure));
    }
}

/// A parameter's value and its position.
#[derive(Clone, Debug)]
pub struct Setting {
    /// The parameter.
    pub name: &'static str,
    /// The position of the value; of the owner if the value is the default.
    pub span: Span,
    /// The value.
    pub value: GivenSetting,
}

/// The value of a setting.
#[derive(Clone, Debug)]
pub enum GivenSetting {
    /// A checked value.
    Value(Value),
    /// A nested value of [`Takes::Nested`], which its owner reads.
    Nested(Node),
}

/// The checked parameters of a plugin, a step or a section.
#[derive(Clone, Debug, Default)]
pub struct SettingValues {
    all: Vec<Setting>,
}

impl SettingValues {
    /// Reads what `entry` gives for `parameters`. Keys in `reserved` are left to the caller.
    /// Problems are added to `problems`, and the settings without problems are returned all the
    /// same.
    pub fn read(
        entry: &SettingEntry<'_>,
        parameters: &[Parameter],
        reserved: &[&'static str],
        problems: &mut Vec<Problem>,
    ) -> Self {
        let mut all = Vec::new();
        for (key, value) in entry.settings {
            let name = key.text().unwrap_or_default();
            let known = parameters.iter().find(|known| known.name == name);
            match known {
                _ if reserved.contains(&name) => {}
                None => problems.push(unknown_parameter(entry.name, parameters, reserved, key)),
                Some(Parameter { name, takes, .. }) => match takes.given(value) {
                    Some(given) => {
                        // A list or a map has no span of its own that could be marked.
                        let span = value.text().map_or(key.span, |_| value.span);
                        all.push(Setting { name, span, value: given });
                    }
                    None => problems.push(bad_parameter(entry.name, *takes, key, value)),
                },
            }
        }
        for parameter in parameters {
            if entry.settings.iter().any(|(key, _)| key.text() == Some(parameter.name)) {
                continue;
            }
            match parameter.absent {
                Absent::Fine => {}
                Absent::Means(text) => all.push(default(parameter, text, entry.span)),
                Absent::Refused => problems.push(missing_parameter(entry, parameter)),
            }
        }
        Self { all }
    }

    /// All settings, defaults included.
    #[must_use]
    pub fn all(&self) -> &[Setting] {
        &self.all
    }

    /// As YAML: `name: {parameter: value}`. `nested` has the text of each nested value.
    #[must_use]
    pub fn line(&self, name: &str, nested: &[(&'static str, String)]) -> String {
        let setting = |setting: &Setting| match &setting.value {
            GivenSetting::Value(value) => Some(format!("{}: {value}", setting.name)),
            GivenSetting::Nested(_) => {
                let (name, line) = nested.iter().find(|(name, _)| *name == setting.name)?;
                let line = if line.contains(':') { format!("{{{line}}}") } else { line.clone() };
                Some(format!("{name}: {line}"))
            }
        };
        let settings: Vec<_> = self.all.iter().filter_map(setting).collect();
        if settings.is_empty() {
            name.to_owned()
        } else {
            format!("{name}: {{{}}}", settings.join(", "))
        }
    }

    /// The setting of a parameter, if it is given or has a default.
    #[must_use]
    pub fn find(&self, name: &str) -> Option<&Setting> {
        self.all.iter().find(|setting| setting.name == name)
    }

    /// The value of a parameter; `None` if it is absent or was refused.
    ///
    /// # Panics
    /// If the parameter is declared as another type.
    #[must_use]
    pub fn maybe<T: FromValue>(&self, name: &str) -> Option<T> {
        let GivenSetting::Value(value) = &self.find(name)?.value else { return None };
        let typed = T::from_value(value);
        Some(typed.unwrap_or_else(|| panic!("parameter `{name}` is declared as another type")))
    }

    /// The value of a parameter, or `otherwise` if it is absent or was refused.
    #[must_use]
    pub fn or<T: FromValue>(&self, name: &str, otherwise: T) -> T {
        self.maybe(name).unwrap_or(otherwise)
    }
}

impl Takes {
    fn given(self, node: &Node) -> Option<GivenSetting> {
        match self {
            Self::Nested(_) => Some(GivenSetting::Nested(node.clone())),
            takes => takes.read(node).map(GivenSetting::Value),
        }
    }
}

/// The default of a parameter. Tests read every declared default.
fn default(parameter: &Parameter, text: &'static str, span: Span) -> Setting {
    let Parameter { name, takes, .. } = *parameter;
    let value = parse(text).ok().and_then(|node| takes.given(&node));
    let value = value.unwrap_or_else(|| panic!("default `{text}` of `{name}` is no {takes}"));
    Setting { name, span, value }
}

fn missing_parameter(entry: &SettingEntry<'_>, parameter: &Parameter) -> Problem {
    let name = parameter.name;
    let owner = entry.name;
    let message = format!("`{owner}` requires `{name}`");
    let cure = format!("give `{name}`: {}", parameter.takes);
    Problem::new(ProblemKind::MissingParameter, entry.span, message).cure(cure)
}

fn unknown_parameter(
    owner: &str,
    parameters: &[Parameter],
    reserved: &[&'static str],
    key: &Node,
) -> Problem {
    let name = key.text().unwrap_or_default();
    let known: Vec<_> =
        parameters.iter().map(|known| known.name).chain(reserved.iter().copied()).collect();
    let cure = match nearest(name, known.iter().copied()) {
        Some(near) => format!("did you mean `{near}`?"),
        None if known.is_empty() => format!("`{owner}` takes none; remove it"),
        None => format!("use one of: {}", known.join(", ")),
    };
    let message = format!("`{owner}` has no parameter `{name}`");
    Problem::new(ProblemKind::UnknownParameter, key.span, message).cure(cure)
}

fn bad_parameter(owner: &str, takes: Takes, key: &Node, value: &Node) -> Problem {
    let name = key.text().unwrap_or_default();
    let found = |node: &Node| match node.text() {
        Some(text) => format!("`{text}`"),
        None => node.kind().to_owned(),
    };
    let Some(part) = bad_part(takes, value) else {
        let message = format!("`{name}` of `{owner}` is {}", found(value));
        let problem = Problem::new(ProblemKind::BadParameter, value.span, message);
        return problem.cure(format!("give {takes}"));
    };
    let message = format!("{} in `{name}` of `{owner}` is {}", part.name, found(part.node));
    Problem::new(ProblemKind::BadParameter, part.node.span, message)
        .cure(format!("give {}", part.wanted))
}

/// The part of a map or list that makes the whole value wrong.
struct BadPart<'a> {
    /// As messages call it.
    name: String,
    node: &'a Node,
    /// The type that it should have.
    wanted: &'static str,
}

fn bad_part(takes: Takes, value: &Node) -> Option<BadPart<'_>> {
    match (takes, &value.value) {
        (Takes::Numbers | Takes::Fields, Yaml::Map(entries)) => {
            let is_bad = |(key, value): &&(Node, Node)| {
                let map = Yaml::Map(vec![(key.clone(), value.clone())]);
                takes.read(&Node { span: value.span, value: map }).is_none()
            };
            let (key, node) = entries.iter().find(is_bad)?;
            let wanted = match takes {
                Takes::Numbers => "a number of at least 0",
                _ => "text, a number or a flag",
            };
            Some(BadPart { name: format!("`{}`", key.text().unwrap_or_default()), node, wanted })
        }
        (Takes::Texts, Yaml::List(items)) => {
            let node = items.iter().find(|item| item.text().is_none())?;
            Some(BadPart { name: "an item".to_owned(), node, wanted: "text" })
        }
        _ => None,
    }
}

/// The nearest of `known`, if it differs in at most a third of the letters, or in one.
pub fn nearest<'a>(word: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let most = (word.chars().count() / 3).max(1);
    known
        .map(|other| (distance(word, other), other))
        .filter(|(distance, _)| *distance <= most)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, other)| other)
}

/// Letters to insert, delete or replace (Levenshtein), one row at a time.
fn distance(from: &str, to: &str) -> usize {
    let to: Vec<char> = to.chars().collect();
    let mut row: Vec<usize> = (0..=to.len()).collect();
    for (deleted, letter) in from.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = deleted + 1;
        for (at, other) in to.iter().enumerate() {
            let replaced = diagonal + usize::from(letter != *other);
            diagonal = row[at + 1];
            row[at + 1] = replaced.min(row[at] + 1).min(diagonal + 1);
        }
    }
    row[to.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_misspelling_is_recognised_and_another_word_is_not() {
        let known = ["cache_affinity", "least_load", "healthy"];
        assert_eq!(nearest("cache_afinity", known.into_iter()), Some("cache_affinity"));
        assert_eq!(nearest("leastload", known.into_iter()), Some("least_load"));
        assert_eq!(nearest("random", known.into_iter()), None);
        assert_eq!(distance("kitten", "sitting"), 3);
    }
}
