//! Prompts that a described pod holds.

use serde_json::Value;
use wornpath_index::Tier;
use wornpath_yaml::{
    Node, Parameter, Problem, ProblemKind, SettingEntry, SettingValues, Takes, Yaml, json,
};

use crate::name::Name;

/// A prompt that a pod holds.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HeldPrompt {
    /// What it is.
    pub prompt: HeldText,
    /// The adapter that it was computed with.
    pub lora: Option<Name>,
    /// The salt that keeps it apart from equal prompts.
    pub salt: Option<String>,
    /// On which tier.
    pub tier: Tier,
    /// Only this many leading tokens.
    pub first: Option<usize>,
}

/// The prompt itself.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum HeldText {
    /// Token ids.
    Tokens(Vec<u32>),
    /// Text, tokenized as it is.
    Text(String),
    /// A conversation, rendered as that of a request.
    Messages(Vec<Value>),
}

#[rustfmt::skip]
pub(crate) const HOLDS: &[Parameter] = &[
    Parameter::optional("tokens", Takes::Texts, "Token ids."),
    Parameter::optional("text", Takes::Text, "Text, tokenized as it is."),
    Parameter::optional("lora", Takes::Text, "The adapter that it was computed with, one of the pod's `loras`."),
    Parameter::optional("salt", Takes::Text, "The salt that keeps it apart, as `cache_salt` of a request."),
    Parameter::with_default("tier", Takes::OneOf(&["gpu", "host", "disk", "other"]), "gpu", "Where it lies."),
    Parameter::optional("first", Takes::Whole(0, u64::MAX), "Only this many leading tokens."),
];

/// Reads `holds` of a pod that can serve these adapters.
pub(super) fn holds(
    pod: &SettingEntry<'_>,
    loras: &[Name],
    problems: &mut Vec<Problem>,
) -> Vec<HeldPrompt> {
    let Some((key, value)) = pod.settings.iter().find(|(key, _)| key.text() == Some("holds"))
    else {
        return Vec::new();
    };
    let whole = Node { span: key.span, value: Yaml::Map(vec![(key.clone(), value.clone())]) };
    let mut held = Vec::new();
    for entry in SettingEntry::list(&whole, "holds", problems) {
        let settings = SettingValues::read(&entry, HOLDS, &["messages"], problems);
        let prompt = match text(&entry, &settings) {
            Ok(prompt) => prompt,
            Err(problem) => {
                problems.push(problem);
                continue;
            }
        };
        let lora = settings.maybe::<String>("lora").map(Name::from);
        if let Some(lora) = lora.as_ref().filter(|lora| !loras.contains(lora)) {
            let span = settings.find("lora").map_or(entry.span, |setting| setting.span);
            let message = format!("`lora` of `holds` is `{lora}`, which the pod does not serve");
            problems.push(
                Problem::new(ProblemKind::BadParameter, span, message)
                    .cure(format!("add `{lora}` to `loras` of the pod")),
            );
        }
        let tier = match settings.or("tier", "gpu") {
            "host" => Tier::Host,
            "disk" => Tier::Disk,
            "other" => Tier::Other,
            _ => Tier::Gpu,
        };
        held.push(HeldPrompt {
            prompt,
            lora,
            salt: settings.maybe("salt"),
            tier,
            first: settings.maybe("first"),
        });
    }
    held
}

fn text(entry: &SettingEntry<'_>, settings: &SettingValues) -> Result<HeldText, Problem> {
    let messages = entry.settings.iter().find(|(key, _)| key.text() == Some("messages"));
    match (settings.maybe::<Vec<String>>("tokens"), settings.maybe("text"), messages) {
        (Some(ids), None, None) => tokens(&ids, entry, settings),
        (None, Some(text), None) => Ok(HeldText::Text(text)),
        (None, None, Some((_, list))) => conversation(list),
        _ => {
            let message = "a held prompt is one of `tokens`, `text` and `messages`";
            let cure = "give one of them: `tokens: [1, 2, 3]`, `text: …` or \
                        `messages: [{role: user, content: …}]`";
            Err(Problem::new(ProblemKind::BadParameter, entry.span, message).cure(cure))
        }
    }
}

fn tokens(
    ids: &[String],
    entry: &SettingEntry<'_>,
    settings: &SettingValues,
) -> Result<HeldText, Problem> {
    let mut tokens = Vec::new();
    for id in ids {
        let span = settings.find("tokens").map_or(entry.span, |setting| setting.span);
        tokens.push(id.parse().map_err(|_| {
            let message = format!("`{id}` in `tokens` of `holds` is not a token id");
            let cure = format!("give whole numbers from 0 to {}", u32::MAX);
            Problem::new(ProblemKind::BadParameter, span, message).cure(cure)
        })?);
    }
    Ok(HeldText::Tokens(tokens))
}

fn conversation(list: &Node) -> Result<HeldText, Problem> {
    let wrong = |node: &Node, message: String| {
        let cure = "write each as `{role: user, content: …}`";
        Err(Problem::new(ProblemKind::BadParameter, node.span, message).cure(cure))
    };
    let Yaml::List(items) = &list.value else {
        return wrong(list, format!("`messages` of `holds` is {}, not a list", list.kind()));
    };
    for item in items {
        if item.get("role").and_then(Node::text).is_none() {
            return wrong(item, "a message has no `role`".to_owned());
        }
    }
    Ok(HeldText::Messages(items.iter().map(deep_json).collect()))
}

/// A value of any depth as JSON; reading YAML has bounded it.
fn deep_json(node: &Node) -> Value {
    match &node.value {
        Yaml::List(items) => items.iter().map(deep_json).collect(),
        Yaml::Map(entries) => entries
            .iter()
            .map(|(key, value)| (key.text().unwrap_or_default().to_owned(), deep_json(value)))
            .collect(),
        _ => json(node).unwrap_or_default(),
    }
}
