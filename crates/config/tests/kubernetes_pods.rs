//! Pods of a cluster, as their labels, annotations and pools describe them to the router; also those
//! of the charts that most engines are installed with.
#![cfg(feature = "kubernetes")]
#![allow(clippy::unwrap_used, reason = "a panic is how a test says no")]

use std::collections::BTreeMap;
use std::path::Path;

use wornpath_config::{
    Config, DiscoveryConfig, EventSource, KubernetesPod, PodConfig, RelativePaths,
};

fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

/// A pod by its labels and annotations.
struct Described<'a> {
    labels: &'a [(&'a str, &'a str)],
    annotations: &'a [(&'a str, &'a str)],
}

/// The pods that a source with these lines makes of a pod of the cluster.
fn pods(source: &str, ports: &[u16], described: &Described<'_>) -> Vec<PodConfig> {
    let environment = RelativePaths::new(Path::new(""));
    let text = format!("models: [{{name: m}}]\ndiscovery:\n{source}");
    let config = Config::check("w.yaml", &text, &environment);
    let config = config.unwrap_or_else(|refused| panic!("{refused}"));
    let [DiscoveryConfig::Kubernetes(source)] = config.discovery() else { panic!("{source}") };
    let found = KubernetesPod {
        name: "vllm-0",
        namespace: "models",
        ip: "10.0.0.7".parse().unwrap(),
        node: None,
        labels: &map(described.labels),
        annotations: &map(described.annotations),
    };
    config.kubernetes_pods(source, found, ports, &environment).unwrap()
}

/// Publisher and replay port of each pod's events.
fn events(pods: &[PodConfig]) -> Vec<String> {
    let of_pod = |pod: &PodConfig| match &pod.events[..] {
        [EventSource::Zmq(address)] => address.to_string(),
        other => panic!("{other:?}"),
    };
    pods.iter().map(of_pod).collect()
}

const BY_LABEL: &str = "  - kubernetes: {selector: app=vllm}\n    model: m\n    engine: vllm\n    \
                        events: \"zmq://{host}:5557?replay=5657\"\n";
const BY_POOL: &str = "  - kubernetes: {pool: llama}\n    model: m\n    engine: vllm\n    \
                       events: \"zmq://{host}:5557?replay=5657\"\n";

#[test]
fn an_annotation_gives_a_pod_its_ranks_each_with_event_ports_of_its_own() {
    let annotations = [("wornpath/ranks", "2")];
    let found = pods(BY_LABEL, &[8000], &Described { labels: &[], annotations: &annotations });
    let [pod] = &found[..] else { panic!("{found:?}") };
    assert_eq!((pod.name(), pod.url(), pod.ranks), ("vllm-0.models", "http://10.0.0.7:8000", 2));
    let ranks = pod.per_rank();
    let names: Vec<_> = ranks.iter().map(PodConfig::name).collect();
    assert_eq!(names, ["vllm-0.models/0", "vllm-0.models/1"]);
    let expected =
        ["zmq://10.0.0.7:5557?replay=10.0.0.7:5657", "zmq://10.0.0.7:5558?replay=10.0.0.7:5658"];
    assert_eq!(events(&ranks), expected);
}

#[test]
fn each_port_of_a_pool_is_a_pod_whose_events_are_at_the_next_ports() {
    let plain = Described { labels: &[], annotations: &[] };
    let found = pods(BY_POOL, &[8000, 8001], &plain);
    let shown: Vec<_> = found.iter().map(|pod| (pod.name(), pod.url())).collect();
    let expected = [
        ("vllm-0.models:8000", "http://10.0.0.7:8000"),
        ("vllm-0.models:8001", "http://10.0.0.7:8001"),
    ];
    assert_eq!(shown, expected);
    let expected =
        ["zmq://10.0.0.7:5557?replay=10.0.0.7:5657", "zmq://10.0.0.7:5558?replay=10.0.0.7:5658"];
    assert_eq!(events(&found), expected);
}

/// The sources of the table in docs/kubernetes.md, with pods as those charts label them.
#[test]
fn pods_of_public_charts_are_described_by_the_sources_in_the_documentation() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/kubernetes.md");
    let page = std::fs::read_to_string(page).unwrap();
    let source = |selector: &str| {
        let block = page.split("```").find(|block| block.contains(selector)).unwrap();
        let lines = block.split("discovery:\n").nth(1).unwrap();
        assert_eq!(lines.matches("kubernetes:").count(), 1, "{lines}");
        lines.to_owned()
    };
    let stack = [("model", "llama"), ("helm-release-name", "vllm"), ("environment", "test")];
    let found = pods(
        &source("helm-release-name=vllm"),
        &[8000],
        &Described { labels: &stack, annotations: &[] },
    );
    assert_eq!(found[0].url(), "http://10.0.0.7:8000");
    assert_eq!(events(&found), ["zmq://10.0.0.7:5557?replay=10.0.0.7:5657"]);
    assert_eq!(roles(&found[0]), ["serve"]);
    for (role, expected) in [
        ("decode", &["serve", "decode"][..]),
        ("prefill", &["prefill"]),
        ("both", &["serve", "prefill", "decode"]),
    ] {
        let labels = [
            ("llm-d.ai/inferenceServing", "true"),
            ("llm-d.ai/model", "llama"),
            ("llm-d.ai/role", role),
        ];
        let described = Described { labels: &labels, annotations: &[] };
        let found = pods(&source("llm-d.ai/model=llama"), &[8000], &described);
        assert_eq!(found[0].url(), "http://10.0.0.7:8000");
        assert_eq!(roles(&found[0]), expected);
        assert_eq!(events(&found), ["zmq://10.0.0.7:5557?replay=10.0.0.7:5657"]);
    }
}

fn roles(pod: &PodConfig) -> Vec<&str> {
    pod.facts.roles.iter().map(|role| role.as_str()).collect()
}
