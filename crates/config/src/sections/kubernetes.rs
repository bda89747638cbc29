//! `discovery: - kubernetes: …`: the pods of a Kubernetes cluster, by labels or by `InferencePool`.
//!
//! The properties of a pod are written beside `kubernetes`, as for a DNS name, and apply to every
//! pod. An annotation `wornpath/KEY` of a pod replaces the property `KEY`. Both are read by the same
//! code as `pods`, so that a value means the same wherever it is written. Keys that name files or
//! secrets of the router are no annotations: those who may annotate a pod need not be those who
//! configure the router.

use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU16;
use std::path::PathBuf;

use wornpath_routing::{Name, Role};
use wornpath_yaml::{
    Node, Parameter, Problem, ProblemKind, Quoted, SettingEntry, Span, Takes, Yaml, parse,
};

use super::pods::{ADDRESS, FACTS, PodScope, facts, pod};
use crate::diagnostics::Diagnostics;
use crate::env::Environment;
use crate::pod::{EventSource, PodConfig};
use crate::section::Section;

/// The prefix of annotations that describe a pod to the router.
pub const ANNOTATION_PREFIX: &str = "wornpath/";

/// The annotation that marks a pod for removal: it gets no new requests.
pub const DRAIN_ANNOTATION: &str = "wornpath/drain";

/// Properties that no annotation sets: the files and secrets of the router, and addresses that it
/// would send its requests to.
const NOT_ANNOTATED: [&str; 3] = ["key_file", "event_token_digest", "metrics"];

/// Pods of a cluster.
#[derive(Clone, PartialEq, Debug)]
pub struct KubernetesConfig {
    /// Which pods.
    pub pods: KubernetesPods,
    /// Their namespace; by default the router's own.
    pub namespace: Option<String>,
    /// A file with the address and credentials of the API server; by default the service account.
    pub kubeconfig: Option<PathBuf>,
    scheme: &'static str,
    properties: Properties,
}

/// How pods are selected.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum KubernetesPods {
    /// By their labels.
    Selector {
        /// A label selector, as `kubectl get pods -l` takes it.
        labels: String,
        /// The port of pods without an annotation that names another one.
        port: u16,
    },
    /// By the `InferencePool` of that name, which has the labels and the ports.
    Pool(String),
}

impl fmt::Display for KubernetesPods {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Selector { labels, .. } => f.write_str(labels),
            Self::Pool(pool) => write!(f, "InferencePool {pool}"),
        }
    }
}

/// A pod as the API server describes it.
#[derive(Clone, Copy, Debug)]
pub struct KubernetesPod<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its namespace.
    pub namespace: &'a str,
    /// Its address.
    pub ip: IpAddr,
    /// Its node.
    pub node: Option<&'a str>,
    /// Its labels.
    pub labels: &'a BTreeMap<String, String>,
    /// Its annotations.
    pub annotations: &'a BTreeMap<String, String>,
}

/// Keys and values as written in the configuration. Their positions are not compared: an edit
/// elsewhere in the file makes no other source.
#[derive(Clone, Debug)]
struct Properties(Vec<(Node, Node)>);

impl PartialEq for Properties {
    fn eq(&self, other: &Self) -> bool {
        is_same_map(&self.0, &other.0)
    }
}

fn is_same_map(one: &[(Node, Node)], other: &[(Node, Node)]) -> bool {
    let is_same = |((key, value), (other_key, other_value)): (&(Node, Node), &(Node, Node))| {
        is_same_value(key, other_key) && is_same_value(value, other_value)
    };
    one.len() == other.len() && one.iter().zip(other).all(is_same)
}

fn is_same_value(one: &Node, other: &Node) -> bool {
    match (&one.value, &other.value) {
        (Yaml::List(one), Yaml::List(other)) => {
            let mut pairs = one.iter().zip(other);
            one.len() == other.len() && pairs.all(|(one, other)| is_same_value(one, other))
        }
        (Yaml::Map(one), Yaml::Map(other)) => is_same_map(one, other),
        (one, other) => one == other,
    }
}

#[rustfmt::skip]
pub(crate) const KUBERNETES: &[Parameter] = &[
    Parameter::optional("selector", Takes::Text, "Label selector, as `kubectl get pods -l` takes it: `app=vllm,tier!=canary`. Either this or `pool`."),
    Parameter::optional("pool", Takes::Text, "Name of an `InferencePool` (`inference.networking.k8s.io/v1`), which selects the pods and names their ports; with several `targetPorts`, each port of a pod is a pod of its own, and its event ports are those of the first plus its position."),
    Parameter::with_default("port", Takes::Whole(1, 65_535), "8000", "The port of pods that `selector` selects, unless their annotation `wornpath/port` names another."),
    Parameter::optional("namespace", Takes::Text, "Namespace of the pods; by default the router's own, or that of the current context of `kubeconfig`."),
    Parameter::with_default("scheme", Takes::OneOf(&["http", "https"]), "http", "URL scheme of the pods; for `https`, set `pod_tls.server_name` to the name in their certificates."),
    Parameter::optional("kubeconfig", Takes::Text, "File with the address and credentials of the API server; by default the pod's service account, which only exists in a cluster."),
];

/// A source under `discovery` with `kubernetes`.
pub(crate) fn kubernetes(
    entry: SettingEntry<'_>,
    scope: PodScope<'_>,
    diagnostics: &mut Diagnostics,
) -> Option<KubernetesConfig> {
    let properties = entry.settings.iter().filter(|(key, _)| key.text() != Some("kubernetes"));
    let properties = Properties(properties.cloned().collect());
    let span = entry.span;
    let whole = Section::read(entry, FACTS, &["kubernetes"], &mut diagnostics.problems);
    // Reports what is wrong with the properties now, and not only once there is a pod.
    facts(&whole, scope, diagnostics);
    let node = whole.node("kubernetes")?;
    let section = Section::map(node, "kubernetes", KUBERNETES, &[], &mut diagnostics.problems);
    if !cfg!(feature = "kubernetes") {
        let message = "this build has no support for `kubernetes`";
        let problem = Problem::new(ProblemKind::MissingDependency, span, message);
        diagnostics.problems.push(problem.cure("build it with `--features kubernetes`"));
    }
    let pods = selected(&section, diagnostics)?;
    for key in ["namespace", "pool"] {
        check_name(&section, key, diagnostics);
    }
    let kubeconfig = section.maybe::<String>("kubeconfig").map(PathBuf::from);
    if let Some(file) = &kubeconfig
        && let Err(error) = diagnostics.environment.text(file)
    {
        let message =
            format!("`kubeconfig` is `{}`, which cannot be read: {error}", file.display());
        let problem = Problem::new(ProblemKind::NotFound, section.at("kubeconfig"), message);
        diagnostics.problems.push(
            problem.cure("give a kubeconfig file, or remove the key to use the service account"),
        );
    }
    Some(KubernetesConfig {
        pods,
        namespace: section.maybe("namespace"),
        kubeconfig: kubeconfig
            .map(|file| diagnostics.environment.output_path(&file).unwrap_or(file)),
        scheme: section.or("scheme", "http"),
        properties,
    })
}

fn selected(section: &Section<'_>, diagnostics: &mut Diagnostics) -> Option<KubernetesPods> {
    let mut refuse = |key: &str, message: &str, cure: &str| {
        let problem = Problem::new(ProblemKind::Syntax, section.at(key), message);
        diagnostics.problems.push(problem.cure(cure));
        None
    };
    match (section.maybe::<String>("selector"), section.maybe::<String>("pool")) {
        (Some(labels), None) if labels.trim().is_empty() => refuse(
            "selector",
            "`selector` is empty; it would select every pod of the namespace",
            "give labels of the engines' pods, such as `selector: app=vllm`",
        ),
        (Some(labels), None) => {
            let port = u16::try_from(section.or("port", 8000_u32)).ok()?;
            Some(KubernetesPods::Selector { labels, port })
        }
        (None, Some(_)) if section.node("port").is_some() => refuse(
            "port",
            "`port` has no effect with `pool`, whose `targetPorts` are used",
            "remove `port`",
        ),
        (None, Some(pool)) => Some(KubernetesPods::Pool(pool)),
        (Some(_), Some(_)) => {
            refuse("pool", "`kubernetes` has both `selector` and `pool`", "remove one of them")
        }
        (None, None) => refuse(
            "",
            "`kubernetes` needs either `selector` or `pool`",
            "write `kubernetes: {selector: app=vllm}` or `kubernetes: {pool: NAME}`",
        ),
    }
}

/// Names of objects end up in paths and selectors, so a wrong one is not sent.
fn check_name(section: &Section<'_>, key: &'static str, diagnostics: &mut Diagnostics) {
    let Some(name) = section.maybe::<String>(key) else { return };
    let is_allowed = |byte: u8| {
        byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-' || byte == b'.'
    };
    if name.is_empty() || name.len() > 253 || !name.bytes().all(is_allowed) {
        let message = format!("`{key}` is `{name}`, which is no name of a Kubernetes object");
        let problem = Problem::new(ProblemKind::BadParameter, section.at(key), message);
        diagnostics.problems.push(problem.cure("use lowercase letters, digits, `-` and `.`"));
    }
}

/// A pod of the cluster that cannot be added.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum KubernetesPodRefused {
    /// An annotation that means nothing, or must not be one.
    #[error("annotation `{ANNOTATION_PREFIX}{key}`: {problem}")]
    Annotation {
        /// The rest of its key.
        key: String,
        /// What is wrong, and what to do.
        problem: String,
    },
    /// Its properties, from annotations and from the configuration.
    #[error("{0}")]
    Properties(String),
}

impl KubernetesConfig {
    /// The pods behind a pod of the cluster: one for each of the `ports` of its pool, or one at the
    /// port of its annotation or of the configuration.
    ///
    /// # Errors
    /// What is wrong with its annotations.
    pub(crate) fn describe(
        &self,
        scope: PodScope<'_>,
        found: KubernetesPod<'_>,
        ports: &[u16],
        environment: &dyn Environment,
    ) -> Result<Vec<PodConfig>, KubernetesPodRefused> {
        let described = Described::of(self, found)?;
        let mut pods = Vec::with_capacity(ports.len());
        for (at, port) in ports.iter().enumerate() {
            let mut name = format!("{}.{}", found.name, found.namespace);
            if ports.len() > 1 {
                name.push_str(&format!(":{port}"));
            }
            let port = described.port.unwrap_or(*port);
            let url = format!("{}://{}", self.scheme, SocketAddr::new(found.ip, port));
            let mut pod = described.pod(scope, &name, &url, environment)?;
            let offset = u16::try_from(at).unwrap_or(u16::MAX);
            for events in &mut pod.events {
                if let EventSource::Zmq(address) = events {
                    *address = address.of_rank(offset).map_err(|error| {
                        KubernetesPodRefused::Properties(format!("events of port {port}: {error}"))
                    })?;
                }
            }
            complete(&mut pod, &described, found);
            pods.push(pod);
        }
        Ok(pods)
    }
}

/// The properties of a pod of the cluster: of its annotations, and for other keys those of the
/// configuration.
struct Described {
    settings: Vec<(Node, Node)>,
    /// The port of its annotation.
    port: Option<u16>,
}

impl Described {
    fn pod(
        &self,
        scope: PodScope<'_>,
        name: &str,
        url: &str,
        environment: &dyn Environment,
    ) -> Result<PodConfig, KubernetesPodRefused> {
        let mut settings = self.settings.clone();
        settings.push((scalar("url"), scalar(url)));
        settings.push((scalar("name"), scalar(name)));
        let mut diagnostics = Diagnostics::new(environment);
        let entry = SettingEntry { name: "pods", span: FIRST, settings: &settings };
        let parameters = [ADDRESS, FACTS].concat();
        let section = Section::read(entry, &parameters, &[], &mut diagnostics.problems);
        match pod(&section, scope, &mut diagnostics) {
            Some(pod) if diagnostics.problems.is_empty() => Ok(pod),
            _ => Err(KubernetesPodRefused::Properties(sentences(&diagnostics.problems))),
        }
    }

    fn of(
        source: &KubernetesConfig,
        found: KubernetesPod<'_>,
    ) -> Result<Self, KubernetesPodRefused> {
        let mut settings: Vec<(Node, Node)> = Vec::new();
        let mut port = None;
        for (annotation, text) in found.annotations {
            let Some(key) = annotation.strip_prefix(ANNOTATION_PREFIX) else { continue };
            let refused = |problem: String| {
                Err(KubernetesPodRefused::Annotation { key: key.to_owned(), problem })
            };
            match key {
                "drain" => {}
                "port" => match (&source.pods, text.parse::<NonZeroU16>()) {
                    (KubernetesPods::Selector { .. }, Ok(given)) => port = Some(given.get()),
                    (KubernetesPods::Pool(_), Ok(_)) => {
                        return refused("the ports are those of the pool; remove it".to_owned());
                    }
                    (_, Err(_)) => {
                        return refused(format!("`{text}` is no port; give 1 to 65535"));
                    }
                },
                key if is_annotated(key) => match parse(text) {
                    Ok(value) => settings.push((scalar(key), value)),
                    Err(problem) => return refused(problem.sentence()),
                },
                key if FACTS.iter().any(|known| known.name == key) => {
                    let message = "only the configuration sets it; write it beside `kubernetes`";
                    return refused(message.to_owned());
                }
                _ => {
                    let known =
                        FACTS.iter().map(|known| known.name).filter(|key| is_annotated(key));
                    let known: Vec<_> = known.chain(["port", "drain"]).collect();
                    return refused(format!("unknown; known: {}", known.join(", ")));
                }
            }
        }
        for (key, value) in &source.properties.0 {
            if !has(&settings, key.text().unwrap_or_default()) {
                settings.push((key.clone(), value.clone()));
            }
        }
        Ok(Self { settings, port })
    }
}

fn is_annotated(key: &str) -> bool {
    FACTS.iter().any(|known| known.name == key) && !NOT_ANNOTATED.contains(&key)
}

fn has(settings: &[(Node, Node)], key: &str) -> bool {
    settings.iter().any(|(known, _)| known.text() == Some(key))
}

/// Adds what Kubernetes itself says of a pod, where neither an annotation nor the configuration
/// does.
fn complete(pod: &mut PodConfig, described: &Described, found: KubernetesPod<'_>) {
    let facts = &mut pod.facts;
    for (key, value) in found.labels {
        if facts.labels.iter().all(|(known, _)| known.as_str() != key) {
            facts.labels.push((Name::from(key.as_str()), Name::from(value.as_str())));
        }
    }
    let label = |key: &str| found.labels.get(key).map(|value| Name::from(value.as_str()));
    let topology = &mut facts.topology;
    topology.host = topology.host.take().or_else(|| found.node.map(Name::from));
    topology.zone = topology.zone.take().or_else(|| label("topology.kubernetes.io/zone"));
    topology.region = topology.region.take().or_else(|| label("topology.kubernetes.io/region"));
    if !has(&described.settings, "role")
        && let Some(roles) = found.labels.get("llm-d.ai/role").and_then(|role| llm_d_roles(role))
    {
        facts.roles = roles.iter().map(|role| Role::named(role)).collect();
    }
}

/// The roles of the label that llm-d's charts set. Their decode pods also take whole requests.
fn llm_d_roles(label: &str) -> Option<&'static [&'static str]> {
    match label {
        "prefill" => Some(&["prefill"]),
        "decode" => Some(&["serve", "decode"]),
        "both" | "prefill-decode" => Some(&["serve", "prefill", "decode"]),
        _ => None,
    }
}

/// The position of every value that is in no file.
const FIRST: Span = Span { line: 1, column: 1, length: 1 };

fn scalar(text: &str) -> Node {
    Node { span: FIRST, value: Yaml::Scalar { text: text.to_owned(), quoted: Quoted::Yes } }
}

fn sentences(problems: &[Problem]) -> String {
    problems.iter().map(Problem::sentence).collect::<Vec<_>>().join("; ")
}
