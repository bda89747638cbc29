//! A fleet described in YAML: pods, their loads, and the prompts they hold.
//!
//! For `wornpath explain` and `wornpath check --fleet`, and for whoever wants to try a profile without
//! engines. Only reads the description; whoever uses it brings tokenizers and builds the index.

mod build;

use std::num::NonZeroUsize;
use std::time::Duration;

use wornpath_index::Tier;

pub use build::{BuildError, BuiltFleet};

use crate::fleet::{Breaker, EventTrust, Health, PodFacts, Topology};
use crate::name::Role;
use crate::parameter::{Parameter, Takes};
use crate::problem::{Kind, Problem, Problems};
use crate::settings::{Entry, Settings};
use crate::yaml::{self, Node, Yaml};

/// A described fleet.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct FleetDescription {
    /// The models that are served.
    pub models: Vec<DescribedModel>,
    /// The pods.
    pub pods: Vec<DescribedPod>,
}

/// A model as described.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DescribedModel {
    /// Its name.
    pub name: String,
    /// Tokens in a block.
    pub block_size: NonZeroUsize,
    /// Where its tokenizer is; `bytes` takes every byte for a token.
    pub tokenizer: Option<String>,
}

/// A pod as described.
#[derive(Clone, PartialEq, Debug)]
pub struct DescribedPod {
    /// Who it is.
    pub facts: PodFacts,
    /// Requests in flight.
    pub requests: u32,
    /// Prompt tokens still to compute.
    pub prefill_tokens: u64,
    /// Tokens in decoding contexts.
    pub decode_tokens: u64,
    /// Requests waiting in the engine.
    pub waiting: u32,
    /// Share of the KV cache in use.
    pub kv_usage: f64,
    /// Whether it answers.
    pub health: Health,
    /// Whether failures keep requests away.
    pub breaker: Breaker,
    /// How far its events can be trusted.
    pub trust: EventTrust,
    /// How long its events have been silent; none if it never sent any.
    pub silence: Option<Duration>,
    /// The prompts it holds.
    pub holds: Vec<HeldPrompt>,
}

/// A prompt that a pod holds.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HeldPrompt {
    /// What it is.
    pub prompt: HeldText,
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
}

pub(crate) const MODEL: &[Parameter] = &[
    Parameter::required("name", Takes::Text, "Its name."),
    Parameter::with_default("block_size", Takes::Whole(1, 1 << 20), "16", "Tokens in a block."),
    Parameter::optional("tokenizer", Takes::Text, "Folder of its `tokenizer.json`, or `bytes`."),
];

#[rustfmt::skip]
pub(crate) const POD: &[Parameter] = &[
    Parameter::required("name", Takes::Text, "What it is called."),
    Parameter::optional("endpoint", Takes::Text, "Its address; by default its name."),
    Parameter::optional("rank", Takes::Whole(0, 65_535), "Its data-parallel rank."),
    Parameter::optional("models", Takes::Texts, "Models that it serves; by default all."),
    Parameter::with_default("roles", Takes::Texts, "[serve]", "Roles that it can play."),
    Parameter::with_default("loras", Takes::Texts, "[]", "Adapters that it can serve."),
    Parameter::with_default("labels", Takes::Fields, "{}", "Its labels."),
    Parameter::optional("context_tokens", Takes::Whole(1, 1 << 31), "The longest prompt plus answer."),
    Parameter::optional("kv_tokens", Takes::Whole(1, u64::MAX), "How many tokens its KV cache holds."),
    Parameter::optional("engine", Takes::Text, "Which engine profile tells its speed."),
    Parameter::optional("host", Takes::Text, "Its machine."),
    Parameter::optional("rack", Takes::Text, "Its rack."),
    Parameter::optional("zone", Takes::Text, "Its zone."),
    Parameter::optional("region", Takes::Text, "Its region."),
    Parameter::with_default("requests", Takes::Whole(0, 1 << 20), "0", "Requests in flight."),
    Parameter::with_default("prefill_tokens", Takes::Whole(0, u64::MAX), "0", "Prompt tokens still to compute."),
    Parameter::with_default("decode_tokens", Takes::Whole(0, u64::MAX), "0", "Tokens in decoding contexts."),
    Parameter::with_default("waiting", Takes::Whole(0, 1 << 20), "0", "Requests that wait in the engine."),
    Parameter::with_default("kv_usage", Takes::Number(0.0, 1.0), "0", "Share of the KV cache in use."),
    Parameter::with_default("health", Takes::OneOf(&["up", "draining", "down"]), "up", "Whether it answers."),
    Parameter::with_default("breaker", Takes::OneOf(&["closed", "half_open", "open"]), "closed", "Its breaker."),
    Parameter::with_default("events", Takes::OneOf(&["exact", "unsure", "partial", "guessed"]), "exact", "How far its events can be trusted."),
    Parameter::optional("silence", Takes::Time, "How long its events have been silent; `0s` by default."),
];

#[rustfmt::skip]
pub(crate) const HOLDS: &[Parameter] = &[
    Parameter::optional("tokens", Takes::Texts, "Token ids."),
    Parameter::optional("text", Takes::Text, "Text, tokenized as it is."),
    Parameter::with_default("tier", Takes::OneOf(&["gpu", "host", "disk", "other"]), "gpu", "Where it lies."),
    Parameter::optional("first", Takes::Whole(0, u64::MAX), "Only this many leading tokens."),
];

impl FleetDescription {
    /// Reads a description. `file` is what problems call it.
    ///
    /// # Errors
    /// Everything that is wrong with it.
    pub fn read(file: &str, text: &str) -> Result<Self, Problems> {
        let mut problems = Vec::new();
        let described = match yaml::parse(text) {
            Ok(root) => description(&root, &mut problems),
            Err(problem) => {
                problems.push(problem);
                Self::default()
            }
        };
        if problems.is_empty() {
            Ok(described)
        } else {
            Err(Problems::new("fleet", file, text, problems))
        }
    }

    /// The roles that somebody can play.
    #[must_use]
    pub fn roles(&self) -> Vec<Role> {
        let mut roles = Vec::new();
        for role in self.pods.iter().flat_map(|pod| &pod.facts.roles) {
            if !roles.contains(role) {
                roles.push(role.clone());
            }
        }
        roles
    }
}

fn description(root: &Node, problems: &mut Vec<Problem>) -> FleetDescription {
    if let Yaml::Map(entries) = &root.value {
        let stray = entries
            .iter()
            .filter(|(key, _)| !["models", "pods"].contains(&key.text().unwrap_or_default()));
        for (key, _) in stray {
            let message = format!("a fleet has no key `{}`", key.text().unwrap_or_default());
            problems.push(
                Problem::new(Kind::UnknownKey, key.span, message).cure("it has: models, pods"),
            );
        }
    }
    let mut fleet = FleetDescription::default();
    for entry in maps(root, "models", problems) {
        let settings = Settings::read(&entry, MODEL, &[], problems);
        fleet.models.push(DescribedModel {
            name: settings.or("name", String::new()),
            block_size: NonZeroUsize::new(settings.or("block_size", 16))
                .unwrap_or(NonZeroUsize::MIN),
            tokenizer: settings.maybe("tokenizer"),
        });
    }
    let served: Vec<_> = fleet.models.iter().map(|model| model.name.clone()).collect();
    for entry in maps(root, "pods", problems) {
        let pod = pod(&entry, &served, problems);
        if fleet.pods.iter().any(|other| other.facts.name == pod.facts.name) {
            let message = format!("two pods are called `{}`", pod.facts.name);
            problems.push(
                Problem::new(Kind::Syntax, entry.span, message).cure("give each a name of its own"),
            );
        }
        fleet.pods.push(pod);
    }
    if fleet.pods.is_empty() && problems.is_empty() {
        let problem = Problem::new(Kind::Syntax, root.span, "the fleet has no pods");
        problems.push(problem.cure("describe at least one: `pods: [{name: a}]`"));
    }
    fleet
}

/// The maps in the list under `key`.
fn maps<'a>(root: &'a Node, key: &'static str, problems: &mut Vec<Problem>) -> Vec<Entry<'a>> {
    let Some(node) = root.get(key) else { return Vec::new() };
    let wrong = |node: &Node| {
        let message = format!("`{key}` must be a list of maps; this is {}", node.kind());
        Problem::new(Kind::Syntax, node.span, message).cure("write `- name: …` for each")
    };
    let Yaml::List(items) = &node.value else {
        problems.push(wrong(node));
        return Vec::new();
    };
    let mut entries = Vec::new();
    for item in items {
        match &item.value {
            Yaml::Map(settings) => entries.push(Entry { name: key, span: item.span, settings }),
            _ => problems.push(wrong(item)),
        }
    }
    entries
}

fn pod(entry: &Entry<'_>, served: &[String], problems: &mut Vec<Problem>) -> DescribedPod {
    let settings = Settings::read(entry, POD, &["holds"], problems);
    let text = |name| settings.maybe::<String>(name);
    let texts = |name| settings.maybe::<Vec<String>>(name);
    let name = text("name").unwrap_or_default();
    let label = |(key, value): (String, serde_json::Value)| {
        let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        (key.into(), value.into())
    };
    let labels: Vec<(String, serde_json::Value)> = settings.maybe("labels").unwrap_or_default();
    let facts = PodFacts {
        endpoint: text("endpoint").unwrap_or_else(|| name.clone()).into(),
        name: name.into(),
        rank: settings.maybe("rank"),
        roles: texts("roles").unwrap_or_default().iter().map(|role| Role::named(role)).collect(),
        models: texts("models")
            .unwrap_or_else(|| served.to_vec())
            .into_iter()
            .map(Into::into)
            .collect(),
        loras: texts("loras").unwrap_or_default().into_iter().map(Into::into).collect(),
        context_tokens: settings.maybe("context_tokens"),
        kv_tokens: settings.maybe("kv_tokens"),
        engine: text("engine").map(Into::into),
        labels: labels.into_iter().map(label).collect(),
        topology: Topology {
            host: text("host").map(Into::into),
            rack: text("rack").map(Into::into),
            zone: text("zone").map(Into::into),
            region: text("region").map(Into::into),
        },
    };
    DescribedPod {
        facts,
        requests: settings.or("requests", 0),
        prefill_tokens: settings.or("prefill_tokens", 0),
        decode_tokens: settings.or("decode_tokens", 0),
        waiting: settings.or("waiting", 0),
        kv_usage: settings.or("kv_usage", 0.0),
        health: match settings.or("health", "up") {
            "draining" => Health::Draining,
            "down" => Health::Down,
            _ => Health::Up,
        },
        breaker: match settings.or("breaker", "closed") {
            "half_open" => Breaker::HalfOpen,
            "open" => Breaker::Open,
            _ => Breaker::Closed,
        },
        trust: match settings.or("events", "exact") {
            "unsure" => EventTrust::Unsure,
            "partial" => EventTrust::Partial,
            "guessed" => EventTrust::Guessed,
            _ => EventTrust::Exact,
        },
        silence: Some(settings.or("silence", Duration::ZERO)),
        holds: holds(entry, problems),
    }
}

fn holds(entry: &Entry<'_>, problems: &mut Vec<Problem>) -> Vec<HeldPrompt> {
    let Some((key, value)) = entry.settings.iter().find(|(key, _)| key.text() == Some("holds"))
    else {
        return Vec::new();
    };
    let whole = Node { span: key.span, value: Yaml::Map(vec![(key.clone(), value.clone())]) };
    let mut held = Vec::new();
    for entry in maps(&whole, "holds", problems) {
        let settings = Settings::read(&entry, HOLDS, &[], problems);
        let ids = settings
            .maybe::<Vec<String>>("tokens")
            .map(|ids| ids.iter().map(|id| id.parse().ok()).collect::<Option<Vec<u32>>>());
        let prompt = match (ids, settings.maybe("text")) {
            (Some(Some(ids)), None) => HeldText::Tokens(ids),
            (None, Some(text)) => HeldText::Text(text),
            _ => {
                let problem = Problem::new(
                    Kind::BadParameter,
                    entry.span,
                    "a held prompt is `tokens` or `text`",
                );
                problems.push(problem.cure("give one of them: `tokens: [1, 2, 3]` or `text: …`"));
                continue;
            }
        };
        let tier = match settings.or("tier", "gpu") {
            "host" => Tier::Host,
            "disk" => Tier::Disk,
            "other" => Tier::Other,
            _ => Tier::Gpu,
        };
        held.push(HeldPrompt { prompt, tier, first: settings.maybe("first") });
    }
    held
}

#[cfg(test)]
mod tests;
