//! A fleet described in YAML: pods, their loads, and the prompts they hold.
//!
//! For `wornpath explain` and `wornpath check --fleet`, which try a profile without engines. This
//! module only reads the description; the caller brings tokenizers and builds the index.

mod build;
mod holds;

use std::num::NonZeroUsize;
use std::time::Duration;

use wornpath_yaml::{
    Node, Parameter, Problem, ProblemKind, Problems, SettingEntry, SettingValues, Takes, Yaml,
    nearest, parse, unknown_keys,
};

pub use build::{BuildError, BuiltFleet};
pub(crate) use holds::HOLDS;
pub use holds::{HeldPrompt, HeldText};

use crate::fleet::{BreakerState, EventTrust, Health, PodFacts, Topology};
use crate::name::Role;

/// A described fleet.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct FleetSpec {
    /// The models that are served.
    pub models: Vec<ModelSpec>,
    /// The pods.
    pub pods: Vec<PodSpec>,
}

/// A model as described.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ModelSpec {
    /// Its name.
    pub name: String,
    /// Tokens in a block.
    pub block_size: NonZeroUsize,
    /// Where its tokenizer is; `bytes` takes every byte for a token.
    pub tokenizer: Option<String>,
}

/// A pod as described.
#[derive(Clone, PartialEq, Debug)]
pub struct PodSpec {
    /// Its facts.
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
    pub breaker: BreakerState,
    /// How far its events can be trusted.
    pub trust: EventTrust,
    /// How long its events have been silent; none if it never sent any.
    pub silence: Option<Duration>,
    /// The prompts it holds.
    pub holds: Vec<HeldPrompt>,
}

pub(crate) const MODEL: &[Parameter] = &[
    Parameter::required("name", Takes::Text, "Its name."),
    Parameter::with_default("block_size", Takes::Whole(1, 1 << 20), "16", "Tokens in a block."),
    Parameter::optional("tokenizer", Takes::Text, "Folder of its `tokenizer.json`, or `bytes`."),
];

#[rustfmt::skip]
pub(crate) const POD: &[Parameter] = &[
    Parameter::required("name", Takes::Text, "What it is called."),
    Parameter::optional("url", Takes::Text, "Its address; by default its name."),
    Parameter::optional("rank", Takes::Whole(0, 65_535), "Its data-parallel rank."),
    Parameter::optional("model", Takes::Texts, "The models it serves, by name; by default all."),
    Parameter::with_default("role", Takes::Texts, "[serve]", "Its roles in a plan."),
    Parameter::with_default("loras", Takes::Texts, "[]", "Adapters that it can serve."),
    Parameter::with_default("labels", Takes::Fields, "{}", "Its labels."),
    Parameter::optional("context_tokens", Takes::Whole(1, 1 << 31), "The longest prompt plus answer."),
    Parameter::optional("kv_tokens", Takes::Whole(1, u64::MAX), "How many tokens its KV cache holds."),
    Parameter::optional("speed", Takes::Text, "Fitted speed model, for profiles that predict latencies."),
    Parameter::optional("host", Takes::Text, "Its machine."),
    Parameter::optional("rack", Takes::Text, "Its rack."),
    Parameter::optional("zone", Takes::Text, "Its zone."),
    Parameter::optional("region", Takes::Text, "Its region."),
    Parameter::optional("requests", Takes::Whole(0, 1 << 20), "Requests in flight; by default as few as can have its tokens."),
    Parameter::with_default("prefill_tokens", Takes::Whole(0, 1 << 31), "0", "Prompt tokens still to compute, by one of the requests if others decode, else by all of them."),
    Parameter::with_default("decode_tokens", Takes::Whole(0, 1 << 31), "0", "Tokens in decoding contexts, evenly in all the other requests."),
    Parameter::with_default("waiting", Takes::Whole(0, 1 << 20), "0", "Requests that wait in the engine."),
    Parameter::with_default("kv_usage", Takes::Number(0.0, 1.0), "0", "Share of the KV cache in use."),
    Parameter::with_default("health", Takes::OneOf(&["up", "draining", "down"]), "up", "Whether it answers."),
    Parameter::with_default("breaker", Takes::OneOf(&["closed", "half_open", "open", "resting", "avoided"]), "closed", "Its breaker."),
    Parameter::with_default("event_trust", Takes::OneOf(&["exact", "unsure", "partial", "guessed"]), "exact", "How far its events can be trusted."),
    Parameter::optional("silence", Takes::Time, "How long its events have been silent; `0s` by default."),
];

/// Keys of a pod that had a name of their own before they were called as in `wornpath.yaml`.
const RENAMED: [(&str, &str); 5] = [
    ("models", "model"),
    ("roles", "role"),
    ("engine", "speed"),
    ("endpoint", "url"),
    ("events", "event_trust"),
];

impl FleetSpec {
    /// Reads a description. Problems name it `file`.
    ///
    /// # Errors
    /// All its problems.
    pub fn read(file: &str, text: &str) -> Result<Self, Problems> {
        let mut problems = Vec::new();
        let described = match parse(text) {
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

    /// The roles that pods have.
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

fn description(root: &Node, problems: &mut Vec<Problem>) -> FleetSpec {
    if let Yaml::Map(entries) = &root.value {
        unknown_keys(entries, &["models", "pods"], "a fleet", problems);
    }
    let mut fleet = FleetSpec::default();
    for entry in SettingEntry::list(root, "models", problems) {
        let settings = SettingValues::read(&entry, MODEL, &[], problems);
        let name: String = settings.or("name", String::new());
        let twin = fleet.models.iter().find(|other| other.name == name).map(|_| "models");
        problems.extend(misnamed(&settings, twin));
        fleet.models.push(ModelSpec {
            name,
            block_size: NonZeroUsize::new(settings.or("block_size", 16))
                .unwrap_or(NonZeroUsize::MIN),
            tokenizer: settings.maybe("tokenizer"),
        });
    }
    let served: Vec<_> = fleet.models.iter().map(|model| model.name.clone()).collect();
    for entry in SettingEntry::list(root, "pods", problems) {
        let present = with_present_names(&entry, problems);
        let entry = SettingEntry { settings: &present, ..entry };
        let settings = SettingValues::read(&entry, POD, &["holds"], problems);
        let pod = pod(&entry, &settings, &served, problems);
        let twin = fleet.pods.iter().find(|other| other.facts.name == pod.facts.name);
        problems.extend(misnamed(&settings, twin.map(|_| "pods")));
        fleet.pods.push(pod);
    }
    if fleet.pods.is_empty() && problems.is_empty() {
        let problem = Problem::new(ProblemKind::Syntax, root.span, "the fleet has no pods");
        problems.push(problem.cure("describe at least one: `pods: [{name: a}]`"));
    }
    fleet
}

/// The settings without those that have another name now, which are problems.
fn with_present_names(entry: &SettingEntry<'_>, problems: &mut Vec<Problem>) -> Vec<(Node, Node)> {
    let mut kept = Vec::new();
    for (key, value) in entry.settings {
        let Some((old, now)) = RENAMED.iter().find(|(old, _)| key.text() == Some(old)) else {
            kept.push((key.clone(), value.clone()));
            continue;
        };
        let message = format!("`{old}` of `pods` is called `{now}` now, as in `wornpath.yaml`");
        let problem = Problem::new(ProblemKind::UnknownParameter, key.span, message);
        problems.push(problem.cure(format!("write `{now}`")));
    }
    kept
}

/// The problem with the name of a pod or a model: it is empty, or taken.
fn misnamed(settings: &SettingValues, twins: Option<&str>) -> Option<Problem> {
    let setting = settings.find("name")?;
    let name: String = settings.maybe("name")?;
    let message = match twins {
        _ if name.is_empty() => "a name is empty".to_owned(),
        Some(twins) => format!("two {twins} are called `{name}`"),
        None => return None,
    };
    Some(
        Problem::new(ProblemKind::Syntax, setting.span, message)
            .cure("give each a name of its own"),
    )
}

fn pod(
    entry: &SettingEntry<'_>,
    settings: &SettingValues,
    served: &[String],
    problems: &mut Vec<Problem>,
) -> PodSpec {
    problems.extend(impossible(entry, settings, served));
    let text = |name| settings.maybe::<String>(name);
    let texts = |name| settings.maybe::<Vec<String>>(name);
    let name = text("name").unwrap_or_default();
    let label = |(key, value): (String, serde_json::Value)| {
        let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        (key.into(), value.into())
    };
    let labels: Vec<(String, serde_json::Value)> = settings.maybe("labels").unwrap_or_default();
    let facts = PodFacts {
        endpoint: text("url").unwrap_or_else(|| name.clone()).into(),
        name: name.into(),
        address: None,
        rank: settings.maybe("rank"),
        roles: texts("role").unwrap_or_default().iter().map(|role| Role::named(role)).collect(),
        models: texts("model")
            .unwrap_or_else(|| served.to_vec())
            .into_iter()
            .map(Into::into)
            .collect(),
        loras: texts("loras").unwrap_or_default().into_iter().map(Into::into).collect(),
        context_tokens: settings.maybe("context_tokens"),
        kv_tokens: settings.maybe("kv_tokens"),
        engine: text("speed").map(Into::into),
        labels: labels.into_iter().map(label).collect(),
        topology: Topology {
            host: text("host").map(Into::into),
            rack: text("rack").map(Into::into),
            zone: text("zone").map(Into::into),
            region: text("region").map(Into::into),
        },
    };
    let holds = holds::holds(entry, &facts.loras, problems);
    PodSpec {
        facts,
        requests: settings.or("requests", least_requests(settings)),
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
            "half_open" => BreakerState::HalfOpen,
            "open" => BreakerState::Open,
            "resting" => BreakerState::Resting,
            "avoided" => BreakerState::Avoided,
            _ => BreakerState::Closed,
        },
        trust: match settings.or("event_trust", "exact") {
            "unsure" => EventTrust::Unsure,
            "partial" => EventTrust::Partial,
            "guessed" => EventTrust::Guessed,
            _ => EventTrust::Exact,
        },
        silence: Some(settings.or("silence", Duration::ZERO)),
        holds,
    }
}

/// A request computes its prompt or decodes, never both.
fn least_requests(settings: &SettingValues) -> u32 {
    let some = |name| u32::from(settings.or::<u64>(name, 0) > 0);
    some("prefill_tokens") + some("decode_tokens")
}

/// The problems of settings that contradict each other.
fn impossible(
    entry: &SettingEntry<'_>,
    settings: &SettingValues,
    served: &[String],
) -> Vec<Problem> {
    let mut problems = Vec::new();
    let mut refuse = |name: &str, message: String, cure: &str| {
        let span = settings.find(name).map_or(entry.span, |setting| setting.span);
        problems.push(Problem::new(ProblemKind::BadParameter, span, message).cure(cure));
    };
    let least = least_requests(settings);
    if let Some(requests) = settings.maybe::<u32>("requests").filter(|given| *given < least) {
        let message = format!(
            "`requests` of `pods` is `{requests}`, but its prefill and decode tokens are those of \
             {least}: a request computes its prompt or decodes"
        );
        refuse("requests", message, "give as many, or leave `requests` out");
    }
    for name in ["role", "model"] {
        if settings.maybe(name).is_some_and(|all: Vec<String>| all.is_empty()) {
            let cure = format!("name at least one, or leave `{name}` out");
            refuse(name, format!("`{name}` of `pods` is empty: no request could go there"), &cure);
        }
    }
    for model in settings.maybe::<Vec<String>>("model").unwrap_or_default() {
        if !served.is_empty() && !served.contains(&model) {
            let cure = match nearest(&model, served.iter().map(String::as_str)) {
                Some(near) => format!("did you mean `{near}`?"),
                None => format!("describe it, or use one of: {}", served.join(", ")),
            };
            refuse("model", format!("`models` of the fleet has no `{model}`"), &cure);
        }
    }
    let is_held = entry.settings.iter().any(|(key, _)| key.text() == Some("holds"));
    if is_held && served.is_empty() {
        let message = "a pod holds prompts, but the fleet describes no model".to_owned();
        refuse("holds", message, "add the model, such as `models: [{name: m, block_size: 16}]`");
    }
    problems
}

#[cfg(test)]
mod tests;
