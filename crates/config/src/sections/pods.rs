//! `pods`: in the configuration itself, and in a watched file of the same format.

use std::path::{Path, PathBuf};

use wornpath_events::ZmqAddress;
use wornpath_execution::{
    AddressRange, BreakerRules, EgressPolicy, Endpoint, EndpointError, RangeError,
};
use wornpath_routing::{Name, PodFacts, Role, Topology};
use wornpath_yaml::{Node, Parameter, Problem, ProblemKind, Span, Takes, Yaml};

use super::models::ModelConfig;
use super::sources::{EventSourceConfig, Semantics};
use crate::diagnostics::Diagnostics;
use crate::pod::{EngineKind, EventSource, PodConfig, authority};
use crate::secret::authorization;
use crate::section::{Section, maps, refused};

#[rustfmt::skip]
pub(crate) const ADDRESS: &[Parameter] = &[
    Parameter::required("url", Takes::Text, "Base URL, such as `http://10.0.0.5:8000`."),
    Parameter::optional("name", Takes::Text, "Display name; by default host and port."),
];

#[rustfmt::skip]
pub(crate) const FACTS: &[Parameter] = &[
    Parameter::with_default("model", Takes::Texts, "[]", "The models it serves, by name; by default the engine is queried. Set it for pods with `events` if `models` has several entries and there is a `checkpoint`: a checkpoint is only restored for a pod whose model is known at start."),
    Parameter::with_default("role", Takes::Texts, "[serve]", "Its roles in a plan: `serve`, `prefill`, `decode`, or others that profiles define."),
    Parameter::with_default("loras", Takes::Texts, "[]", "LoRA adapters that it can serve."),
    Parameter::with_default("labels", Takes::Fields, "{}", "Arbitrary labels that profiles can select by."),
    Parameter::with_default("ranks", Takes::Whole(1, 1024), "1", "Data-parallel ranks behind the address; each is a pod of its own."),
    Parameter::optional("events", Takes::Texts, "Sources of its cache events: `zmq://host:port?replay=port`, where `{host}` stands for the pod's host; `auto`, if the engine reports the address at `/kv_event_sources`; or names of `event_sources`. By default the engine is asked where it publishes; if it does not say, or with `[]`, its cache content is approximated from the requests it was sent."),
    Parameter::optional("event_token_digest", Takes::Text, "`sha256:` and the digest of the token that its sidecar must send; no other token is then accepted for this pod."),
    Parameter::with_default("engine", Takes::OneOf(EngineKind::WORDS), "openai", "Engine software; `openai` is any OpenAI-compatible server."),
    Parameter::optional("speed", Takes::OneOf(&wornpath_routing::SPEEDS), "Fitted speed model, for profiles that predict latencies."),
    Parameter::optional("context_tokens", Takes::Whole(1, 1 << 31), "Context length: prompt plus output, in tokens."),
    Parameter::optional("kv_tokens", Takes::Whole(1, 1 << 40), "KV cache capacity in tokens; where text is matched, four bytes count as one token."),
    Parameter::optional("host", Takes::Text, "The machine it runs on."),
    Parameter::optional("rack", Takes::Text, "Its rack, or another group of machines that share a switch."),
    Parameter::optional("zone", Takes::Text, "Its zone."),
    Parameter::optional("region", Takes::Text, "Its region."),
    Parameter::optional("metrics", Takes::Text, "URL of its metrics; by default `/metrics` at its address."),
    Parameter::optional("key_file", Takes::Text, "File with the engine's API key (its `--api-key`). The key is sent as `authorization: Bearer …` with probes, scrapes and requests, instead of the client's. Reloaded with the configuration, and when it changes (except where a `discovery` file names it)."),
    Parameter::with_default("bootstrap_port", Takes::Whole(1, 65_535), "8998", "Bootstrap port for KV transfer with SGLang and Mooncake."),
];

/// What a pod may refer to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PodScope<'a> {
    /// The configured models.
    pub(crate) models: &'a [ModelConfig],
    /// The configured event sources.
    pub(crate) sources: &'a [EventSourceConfig],
    /// The position of `isolation`, if it is enabled.
    pub(crate) isolation: Option<Span>,
    /// The addresses that pods may have.
    pub(crate) egress: &'a EgressPolicy,
}

/// The ranges of `pod_addresses`, if there are any.
pub(crate) fn allowed(root: &Node, diagnostics: &mut Diagnostics) -> Option<Vec<AddressRange>> {
    let node = root.get("pod_addresses")?;
    let Yaml::List(items) = &node.value else {
        let message = format!("`pod_addresses` must be a list, not {}", node.kind());
        let problem = Problem::new(ProblemKind::Syntax, node.span, message);
        diagnostics.problems.push(problem.cure("write `pod_addresses: [10.0.0.0/8]`"));
        return None;
    };
    let mut ranges = Vec::new();
    for item in items {
        match item.text().unwrap_or_default().parse() {
            Ok(range) => ranges.push(range),
            Err(error) => {
                let error: RangeError = error;
                let message = format!("`pod_addresses`: {error}");
                let problem = Problem::new(ProblemKind::BadParameter, item.span, message);
                diagnostics
                    .problems
                    .push(problem.cure("give ranges such as `10.0.0.0/8` or `fd00::/8`"));
            }
        }
    }
    Some(ranges)
}

/// The pods under `pods`.
pub(crate) fn pods(
    root: &Node,
    scope: PodScope<'_>,
    diagnostics: &mut Diagnostics,
) -> Vec<PodConfig> {
    let mut pods = Vec::new();
    let mut names = Vec::new();
    let mut urls = Vec::new();
    for entry in maps(root, "pods", &mut diagnostics.problems) {
        let section =
            Section::read(entry, &[ADDRESS, FACTS].concat(), &[], &mut diagnostics.problems);
        let Some(pod) = pod(&section, scope, diagnostics) else { continue };
        let is_known = urls.iter().any(|(url, _)| *url == pod.url());
        diagnostics.check_unique(&mut urls, "address", pod.url(), section.at("url"));
        let named_by = if section.node("name").is_some() { "name" } else { "url" };
        // A default name is derived from the address: a duplicate address is reported once.
        if named_by == "name" || !is_known {
            diagnostics.check_unique(&mut names, "pod", pod.name(), section.at(named_by));
        }
        pods.push((pod, section.at(named_by)));
    }
    check_rank_names(&pods, diagnostics);
    pods.into_iter().map(|(pod, _)| pod).collect()
}

/// Reports names that equal a rank of another pod: `r/0`, where `r` has ranks.
fn check_rank_names(pods: &[(PodConfig, Span)], diagnostics: &mut Diagnostics) {
    for (pod, span) in pods {
        let Some((base, number)) = pod.name().rsplit_once('/') else { continue };
        let is_of = |other: &PodConfig| {
            let is_number = |rank: u32| rank < other.ranks && rank.to_string() == number;
            other.name() == base && other.ranks > 1 && number.parse().is_ok_and(is_number)
        };
        let Some((other, first)) = pods.iter().find(|(other, _)| is_of(other)) else { continue };
        let name = pod.name();
        let ranks = other.ranks;
        diagnostics.problems.push(
            Problem::new(ProblemKind::Twice, *span, format!("duplicate pod `{name}`"))
                .also(*first, format!("has {ranks} ranks, one of which has this name"))
                .cure(format!("rename it; `{base}/N` names a rank of `{base}`")),
        );
    }
}

/// One pod with name and address.
pub(crate) fn pod(
    section: &Section<'_>,
    scope: PodScope<'_>,
    diagnostics: &mut Diagnostics,
) -> Option<PodConfig> {
    let text: String = section.maybe("url")?;
    let url = text.trim_end_matches('/').to_owned();
    let host = match authority(&url) {
        Ok(host) => host.to_owned(),
        Err(problem) => {
            let span = section.at("url");
            let shown = diagnostics.shown_address(&text, span);
            let problem = refused("pods", "url", shown, span, &problem);
            diagnostics.problems.push(problem.cure("write `http://host:port`"));
            return None;
        }
    };
    if let Err(error) = check_egress(&url, scope.egress) {
        let problem = refused("pods", "url", &text, section.at("url"), &error);
        diagnostics
            .problems
            .push(problem.cure("use an allowed address, or change `pod_addresses` or `pod_tls`"));
    }
    let cure = "give a name, or omit `name` to use host and port";
    diagnostics.check_section_name(section, "pods", cure);
    let name: String = section.maybe("name").unwrap_or(host);
    Some(facts(section, scope, diagnostics).at(&name, &url))
}

/// Everything but name and address, which discovery adds.
pub(crate) fn facts(
    section: &Section<'_>,
    scope: PodScope<'_>,
    diagnostics: &mut Diagnostics,
) -> PodConfig {
    // Without `models`, a pod may serve a model of any name.
    let models = section.texts("model").into_iter().filter(|_| !scope.models.is_empty());
    for (model, span) in models {
        let known = scope.models.iter().map(|model| model.name.as_str());
        diagnostics.check_known("model", &model, span, known);
    }
    let engine = EngineKind::of_word(section.or("engine", "openai"));
    if let Some(isolation) = scope.isolation.filter(|_| !engine.knows_salt()) {
        let span = section.node("engine").map_or(section.span(), |node| node.span);
        let message = format!("engine `{}` cannot isolate tenants", engine.word());
        diagnostics
            .problems
            .push(Problem::new(ProblemKind::Unsafe, span, message).also(isolation, "isolation is enabled here").cure(
            "it does not support `cache_salt`; set `engine: vllm` if it is vLLM, or remove `isolation`",
        ));
    }
    let texts = |key| section.maybe::<Vec<String>>(key).unwrap_or_default();
    let names = |key| texts(key).into_iter().map(Name::from).collect();
    let name = |key| section.maybe::<String>(key).map(Name::from);
    let fields: Vec<(String, serde_json::Value)> = section.maybe("labels").unwrap_or_default();
    let label = |(key, value): (String, serde_json::Value)| {
        let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        (Name::from(key), Name::from(value))
    };
    let events = events(section, scope.sources, diagnostics);
    let plain = PodConfig::default();
    let facts = PodFacts {
        models: names("model"),
        roles: texts("role").iter().map(|role| Role::named(role)).collect(),
        loras: names("loras"),
        labels: fields.into_iter().map(label).collect(),
        engine: section.maybe::<&'static str>("speed").map(Name::from),
        context_tokens: section.maybe("context_tokens"),
        kv_tokens: section.maybe("kv_tokens"),
        topology: Topology {
            host: name("host"),
            rack: name("rack"),
            zone: name("zone"),
            region: name("region"),
        },
        ..plain.facts
    };
    PodConfig {
        facts,
        ranks: section.or("ranks", 1),
        asks_for_events: section.node("events").is_none(),
        events,
        event_token: diagnostics.digest(section, "event_token_digest"),
        engine,
        metrics: metrics(section, diagnostics),
        key_file: key_file(section, diagnostics),
        bootstrap_port: section
            .maybe::<u32>("bootstrap_port")
            .and_then(|port| u16::try_from(port).ok())
            .unwrap_or(plain.bootstrap_port),
    }
}

/// The URL of a pod's metrics, if it is not at the pod's address.
fn metrics(section: &Section<'_>, diagnostics: &mut Diagnostics) -> Option<String> {
    let metrics: String = section.maybe("metrics")?;
    if let Err(problem) = authority(&metrics) {
        let span = section.at("metrics");
        let shown = diagnostics.shown_address(&metrics, span);
        let problem = refused("pods", "metrics", shown, span, &problem);
        diagnostics.problems.push(problem.cure("write `http://host:port/metrics`"));
    }
    Some(metrics)
}

/// The path of a pod's key file, if it has one that can be read.
fn key_file(section: &Section<'_>, diagnostics: &mut Diagnostics) -> Option<PathBuf> {
    let file: String = section.maybe("key_file")?;
    let path = diagnostics
        .environment
        .output_path(Path::new(&file))
        .unwrap_or_else(|| PathBuf::from(&file));
    diagnostics.files.push(PathBuf::from(&file));
    diagnostics.note_secret("key_file", &file);
    match authorization(&path) {
        Ok(_) => Some(path),
        Err(error) => {
            let message = format!("`key_file`: the file `{file}` {error}");
            let problem = Problem::new(ProblemKind::BadParameter, section.at("key_file"), message);
            diagnostics.problems.push(problem.cure("write the engine's API key to the file"));
            None
        }
    }
}

/// The event sources of a pod. A source that counts copies of a block cannot be combined with one
/// that only reports whether a block is present.
fn events(
    section: &Section<'_>,
    sources: &[EventSourceConfig],
    diagnostics: &mut Diagnostics,
) -> Vec<EventSource> {
    let mut events = Vec::new();
    let mut counted: Option<(String, Span)> = None;
    let mut set: Option<(String, Span)> = None;
    for (text, span) in section.texts("events") {
        if text.contains('@') {
            diagnostics.mask(span);
            let message =
                "an address of `events` contains `@`: it must not contain a user or a password";
            let problem = Problem::new(ProblemKind::Unsafe, span, message.to_owned());
            diagnostics.problems.push(problem.cure("write `zmq://host:port?replay=port`"));
            continue;
        }
        let semantics = if text == "auto" {
            events.push(EventSource::ReportedByEngine);
            Semantics::Sequenced
        } else if text.contains("://") {
            match text.parse::<ZmqAddress>() {
                Ok(address) => {
                    check_last_port(section, &address, span, diagnostics);
                    events.push(EventSource::Zmq(address));
                }
                Err(error) => {
                    let problem = refused("pods", "events", &text, span, &error.problem);
                    let cure = "write `zmq://host:port?replay=port`; `{host}` stands for the \
                                pod's host";
                    diagnostics.problems.push(problem.cure(cure));
                }
            }
            Semantics::Sequenced
        } else {
            let known = sources.iter().map(|source| source.name.as_str());
            if !diagnostics.check_known("event source", &text, span, known) {
                continue;
            }
            events.push(EventSource::Source(text.clone()));
            sources
                .iter()
                .find(|source| source.name == text)
                .map_or(Semantics::Sequenced, EventSourceConfig::semantics)
        };
        match semantics {
            Semantics::Sequenced => counted.get_or_insert((text, span)),
            Semantics::Set => set.get_or_insert((text, span)),
        };
    }
    if let (Some((counted, counted_span)), Some((set, set_span))) = (counted, set) {
        let message =
            format!("unnumbered source `{set}` cannot be combined with `{counted}` on one pod");
        diagnostics.problems.push(
            Problem::new(ProblemKind::Conflict, set_span, message)
                .also(counted_span, "counts the copies of each block")
                .cure(format!("remove one, or set `numbered: true` if the sidecars of `{set}` number their posts")),
        );
    }
    events
}

/// Reports a port that is too high for the last rank: each rank adds its number to the port.
fn check_last_port(
    section: &Section<'_>,
    address: &ZmqAddress,
    span: Span,
    diagnostics: &mut Diagnostics,
) {
    let last = section.or("ranks", 1_u32) - 1;
    if let Err(error) = address.of_rank(u16::try_from(last).unwrap_or(u16::MAX)) {
        let problem = refused("pods", "events", &address.to_string(), span, &error.problem);
        diagnostics
            .problems
            .push(problem.cure("each rank adds its number to this port; give a lower port"));
    }
}

fn check_egress(url: &str, egress: &EgressPolicy) -> Result<(), EndpointError> {
    Endpoint::new(url, BreakerRules::default(), 1)?.check_egress(egress)
}
