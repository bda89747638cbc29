//! Parameters as a profile gives them: read, checked, and filled in with their defaults.

use crate::parameter::{Absent, FromValue, Parameter, Takes, Value};
use crate::plugin::Stage;
use crate::problem::{Problem, ProblemKind, Span};
use crate::suggest::nearest;
use crate::yaml::{Node, Yaml};

/// One entry in a profile: `name` or `name: {parameters}`.
#[derive(Clone, Debug)]
pub struct SettingEntry<'a> {
    /// What it is called.
    pub name: &'a str,
    /// Where it stands.
    pub span: Span,
    /// Its parameters.
    pub settings: &'a [(Node, Node)],
}

impl<'a> SettingEntry<'a> {
    /// A plugin of a stage.
    pub(crate) fn plugin(node: &'a Node, stage: Stage) -> Result<Self, Problem> {
        let key = stage.key();
        let cure = format!("write `{key}` plugins as `name` or `name: {{parameter: value}}`");
        Self::read(node, "plugin").map_err(|problem| problem.cure(cure))
    }

    /// A named thing; `what` it is, for messages.
    ///
    /// # Errors
    /// If it is neither a name nor a name with parameters.
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
                    wrong(second.span, format!("`{name}` stands beside a {what}, not in it"))
                }
            },
            _ => wrong(node.span, format!("expected a {what}, found {}", node.kind())),
        }
    }

    /// A key and the map of its parameters.
    ///
    /// # Errors
    /// If they are no map.
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

/// Takes down keys that nobody reads.
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
            None => format!("it has: {}", known.join(", ")),
        };
        let message = format!("{owner} has no key `{name}`");
        problems.push(Problem::new(ProblemKind::UnknownKey, key.span, message).cure(cure));
    }
}

/// A parameter's value and where it was given; its owner's place if it is the default.
#[derive(Clone, Debug)]
pub(crate) struct Setting {
    pub(crate) name: &'static str,
    pub(crate) span: Span,
    pub(crate) value: GivenSetting,
}

#[derive(Clone, Debug)]
pub(crate) enum GivenSetting {
    Value(Value),
    /// A nested plugin, made when its owner asks for it.
    Plugin(Node),
}

/// The checked parameters of a plugin, a step or a section.
#[derive(Clone, Debug, Default)]
pub struct PluginSettings {
    pub(crate) all: Vec<Setting>,
}

impl PluginSettings {
    /// Reads what `entry` gives for `parameters`; keys in `reserved` are somebody else's. Every
    /// problem is added to `problems`; what could be read is returned all the same.
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
                        // A value of several parts has no place of its own that could be marked.
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

    /// As it would be written: `name: {parameter: value}`, nested plugins as they are given.
    pub(crate) fn line(&self, name: &str, nested: &[(&'static str, String)]) -> String {
        let setting = |setting: &Setting| match &setting.value {
            GivenSetting::Value(value) => Some(format!("{}: {value}", setting.name)),
            GivenSetting::Plugin(_) => {
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

    pub(crate) fn find(&self, name: &str) -> Option<&Setting> {
        self.all.iter().find(|setting| setting.name == name)
    }

    /// A parameter that may be left out.
    ///
    /// # Panics
    /// If it is declared as another type.
    #[must_use]
    pub fn maybe<T: FromValue>(&self, name: &str) -> Option<T> {
        let GivenSetting::Value(value) = &self.find(name)?.value else { return None };
        let taken = T::from_value(value);
        Some(taken.unwrap_or_else(|| panic!("parameter `{name}` is declared as another type")))
    }

    /// A parameter that is required or has a default. `None` only if its value was refused.
    #[must_use]
    pub fn or<T: FromValue>(&self, name: &str, otherwise: T) -> T {
        self.maybe(name).unwrap_or(otherwise)
    }
}

impl Takes {
    fn given(self, node: &Node) -> Option<GivenSetting> {
        match self {
            Self::Picker => Some(GivenSetting::Plugin(node.clone())),
            takes => takes.read(node).map(GivenSetting::Value),
        }
    }
}

/// A declared default. That it can be read is what the registry's own test shows.
fn default(parameter: &Parameter, text: &'static str, span: Span) -> Setting {
    let (name, takes) = (parameter.name, parameter.takes);
    let value = crate::yaml::parse(text).ok().and_then(|node| takes.given(&node));
    let value = value.unwrap_or_else(|| panic!("default `{text}` of `{name}` is no {takes}"));
    Setting { name, span, value }
}

fn missing_parameter(entry: &SettingEntry<'_>, parameter: &Parameter) -> Problem {
    let (name, owner) = (parameter.name, entry.name);
    let message = format!("`{owner}` needs `{name}`, which is not given");
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
        None => format!("it has: {}", known.join(", ")),
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
    let (span, message, wanted) = match culprit(takes, value) {
        None => {
            (value.span, format!("`{name}` of `{owner}` is {}", found(value)), takes.to_string())
        }
        Some((part, within, wanted)) => {
            let message = format!("{part} in `{name}` of `{owner}` is {}", found(within));
            (within.span, message, wanted.to_owned())
        }
    };
    Problem::new(ProblemKind::BadParameter, span, message).cure(format!("give {wanted}"))
}

/// The part of a map or list that is not what it should be: what it is called, and what it should be.
fn culprit(takes: Takes, value: &Node) -> Option<(String, &Node, &'static str)> {
    match (takes, &value.value) {
        (Takes::Numbers | Takes::Fields, Yaml::Map(entries)) => {
            let alone = |(key, value): &&(Node, Node)| {
                let map = Yaml::Map(vec![(key.clone(), value.clone())]);
                takes.read(&Node { span: value.span, value: map }).is_none()
            };
            let (key, value) = entries.iter().find(alone)?;
            let wanted = match takes {
                Takes::Numbers => "a number of at least 0",
                _ => "text, a number or a flag",
            };
            Some((format!("`{}`", key.text().unwrap_or_default()), value, wanted))
        }
        (Takes::Texts, Yaml::List(items)) => {
            let item = items.iter().find(|item| item.text().is_none())?;
            Some(("an item".to_owned(), item, "text"))
        }
        _ => None,
    }
}
