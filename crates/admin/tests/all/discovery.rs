//! Pods that come and go, and engines that are asked how they are.

use std::fs;
use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use crate::fixture::{TestRouter, folder};
use wornpath_routing::Health;
use wornpath_sim::EngineProfile;
use wornpath_sim::serve::{Addresses, EngineOptions, ServedEngine};

fn anywhere() -> Addresses {
    let free: SocketAddr = "127.0.0.1:0".parse().unwrap();
    Addresses { http: free, events: free, replay: free }
}

#[test]
fn pods_follow_a_discovery_file_and_an_invalid_file_changes_nothing() {
    let folder = folder("with_a_file");
    let path = folder.join("wornpath.yaml");
    let pods = folder.join("pods.yaml");
    let text = "pods: [{url: \"http://127.0.0.1:1\", name: listed}]\ndiscovery: [{file: pods.yaml, every: 50ms}]\n";
    fs::write(&path, text).unwrap();
    fs::write(&pods, "pods: [{url: \"http://127.0.0.1:2\", name: a}]\n").unwrap();
    let router = TestRouter::start(&path);
    router.until("a has come", |router| router.pods() == ["listed", "a"]);
    fs::write(&pods, "pods: [{url: \"http://127.0.0.1:3\", nam: b}]\n").unwrap();
    // Six looks at it.
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(router.pods(), ["listed", "a"], "a bad file changes nothing");
    fs::write(&pods, "pods:\n  - {url: \"http://127.0.0.1:3\", name: b}\n  - {url: \"http://127.0.0.1:1\", name: c}\n").unwrap();
    router.until("b has come and a has gone", |router| router.pods() == ["listed", "b"]);
    fs::write(&path, format!("{text}reveal: pod\n")).unwrap();
    router.services.running.reload().unwrap();
    assert_eq!(
        router.pods(),
        ["listed", "b"],
        "what was found stays when the configuration is read again"
    );
    fs::write(&path, "pods: [{url: \"http://127.0.0.1:1\", name: listed}]\n").unwrap();
    router.services.running.reload().unwrap();
    router.until("the discovery source is removed", |router| router.pods() == ["listed"]);
}

/// Names and ports of the pods that are there, in order.
fn ports(router: &TestRouter) -> Vec<String> {
    let snapshot = router.gateway.snapshot();
    let port = |url: &str| url.rsplit(':').next().unwrap().to_owned();
    let mut pods: Vec<_> = snapshot
        .entries()
        .iter()
        .map(|entry| format!("{}@{}", entry.pod.facts().name, port(&entry.settings.url)))
        .collect();
    pods.sort();
    pods
}

/// A file of pods on this machine.
fn list(pods: &[(&str, u16)]) -> String {
    let line = |(name, port): &(&str, u16)| {
        format!("  - {{url: \"http://127.0.0.1:{port}\", name: {name}}}\n")
    };
    format!("pods:\n{}", pods.iter().map(line).collect::<String>())
}

#[test]
fn pods_take_over_each_others_addresses() {
    let folder = folder("each_others");
    let path = folder.join("wornpath.yaml");
    let pods = folder.join("pods.yaml");
    fs::write(&path, "discovery: [{file: pods.yaml, every: 50ms}]\n").unwrap();
    fs::write(&pods, list(&[("b", 2), ("c", 3)])).unwrap();
    let router = TestRouter::start(&path);
    router.until("both have come", |router| ports(router) == ["b@2", "c@3"]);
    fs::write(&pods, list(&[("b", 3), ("c", 40)])).unwrap();
    router.until("b is where c was", |router| ports(router) == ["b@3", "c@40"]);
    fs::write(&pods, list(&[("b", 40), ("c", 3)])).unwrap();
    router.until("they have swapped", |router| ports(router) == ["b@40", "c@3"]);
}

#[test]
fn a_drained_pod_whose_entry_changes_stays_drained() {
    let folder = folder("stays_drained");
    let path = folder.join("wornpath.yaml");
    let pods = folder.join("pods.yaml");
    fs::write(&path, "discovery: [{file: pods.yaml, every: 50ms}]\n").unwrap();
    fs::write(&pods, list(&[("a", 1)])).unwrap();
    let router = TestRouter::start(&path);
    let health = |router: &TestRouter, name: &str| {
        router.gateway.snapshot().named(name).map(|entry| entry.pod.vitals().health())
    };
    router.until("it has come", |router| ports(router) == ["a@1"]);
    assert!(router.gateway.pods().drain_pod("a"));
    fs::write(&pods, list(&[("b", 1)])).unwrap();
    router.until("it is called otherwise", |router| ports(router) == ["b@1"]);
    assert_eq!(health(&router, "b"), Some(Health::Draining));
    fs::write(&pods, list(&[("b", 2)])).unwrap();
    router.until("it is another one", |router| ports(router) == ["b@2"]);
    assert_eq!(health(&router, "b"), Some(Health::Down));
}

#[test]
fn a_pod_that_an_operator_added_in_place_of_a_listed_one_stays() {
    let folder = folder("put_in_place");
    let path = folder.join("wornpath.yaml");
    let listen = "listen: {admin: \"127.0.0.1:0\"}\n";
    fs::write(&path, format!("{listen}{}", list(&[("a", 1)]))).unwrap();
    let router = TestRouter::start(&path);
    assert_eq!(router.ask("DELETE", "/pods/a", "").0, 200);
    let operators = r#"{"url": "http://127.0.0.1:2", "name": "a"}"#;
    assert_eq!(router.ask("POST", "/pods", operators).0, 200);
    for more in ["", "reveal: pod\n"] {
        fs::write(&path, format!("{listen}{more}{}", list(&[("a", 1)]))).unwrap();
        router.services.running.reload().unwrap();
        assert_eq!(ports(&router), ["a@2"]);
    }
    fs::write(&path, format!("{listen}{}", list(&[("a", 3)]))).unwrap();
    router.services.running.reload().unwrap();
    assert_eq!(ports(&router), ["a@3"], "there is news of it");
}

#[test]
fn a_pod_that_could_not_be_added_is_added_as_soon_as_possible() {
    let folder = folder("as_soon_as_it_can");
    let path = folder.join("wornpath.yaml");
    let pods = folder.join("pods.yaml");
    let text = "listen: {admin: \"127.0.0.1:0\"}\ndiscovery: [{file: pods.yaml, every: 50ms}]\n";
    fs::write(&path, text).unwrap();
    fs::write(&pods, list(&[("a", 1)])).unwrap();
    let router = TestRouter::start(&path);
    router.until("a has come", |router| ports(router) == ["a@1"]);
    let operators = r#"{"url": "http://127.0.0.1:2", "name": "mine"}"#;
    assert_eq!(router.ask("POST", "/pods", operators).0, 200);
    fs::write(&pods, list(&[("b", 2), ("c", 3)])).unwrap();
    router.until("c has come, b has not", |router| ports(router) == ["c@3", "mine@2"]);
    assert_eq!(router.ask("DELETE", "/pods/mine", "").0, 200);
    router.until("b has come", |router| ports(router) == ["b@2", "c@3"]);
    assert_eq!(router.ask("DELETE", "/pods/b", "").0, 200);
    // Six looks at it.
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(ports(&router), ["c@3"], "what an operator removed stays away");
}

#[test]
fn a_new_configuration_reads_the_discovery_file_at_once() {
    let folder = folder("read_again");
    let path = folder.join("wornpath.yaml");
    let pods = folder.join("pods.yaml");
    // Without waiting for the next poll.
    let text = "discovery: [{file: pods.yaml, every: 1h}]\nmodels: [{name: m}]\n";
    fs::write(&path, text).unwrap();
    fs::write(&pods, "pods: [{url: \"http://127.0.0.1:1\", name: a, model: new}]\n").unwrap();
    let router = TestRouter::start(&path);
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(ports(&router), Vec::<String>::new(), "its model is not configured");
    fs::write(&path, text.replace("[{name: m}]", "[{name: m}, {name: new}]")).unwrap();
    router.services.running.reload().unwrap();
    router.until("its model is known", |router| ports(router) == ["a@1"]);
}

#[test]
fn pods_stay_while_any_discovery_source_lists_them() {
    let folder = folder("any_discovery_source");
    let path = folder.join("wornpath.yaml");
    let pods = folder.join("pods.yaml");
    let text =
        |sources: &str| format!("listen: {{admin: \"127.0.0.1:0\"}}\ndiscovery: [{sources}]\n");
    fs::write(&path, text("{file: pods.yaml, every: 50ms}")).unwrap();
    fs::write(&pods, list(&[("a", 1), ("b", 2)])).unwrap();
    fs::write(folder.join("others.yaml"), list(&[("c", 3)])).unwrap();
    fs::write(folder.join("moved.yaml"), list(&[("a", 1), ("b", 20)])).unwrap();
    let router = TestRouter::start(&path);
    router.until("a and b have come", |router| ports(router) == ["a@1", "b@2"]);
    // A pod that came anew would have another place in the index.
    let id = |name: &str| router.gateway.snapshot().named(name).map(|entry| entry.pod.id());
    let a = id("a");
    let b = id("b");
    for sources in [
        "{file: pods.yaml, every: 60ms}",
        "{file: others.yaml, every: 50ms}, {file: pods.yaml, every: 60ms}",
    ] {
        fs::write(&path, text(sources)).unwrap();
        router.services.running.reload().unwrap();
        for _ in 0..30 {
            assert_eq!((id("a"), id("b")), (a, b), "{sources}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
    router.until("c was found too", |router| ports(router) == ["a@1", "b@2", "c@3"]);
    fs::write(&path, text("{file: moved.yaml, every: 50ms}")).unwrap();
    router.services.running.reload().unwrap();
    router.until("b has moved and c is not found", |router| ports(router) == ["a@1", "b@20"]);
    assert_eq!(id("a"), a, "another discovery source lists it unchanged");
    fs::write(&path, text("{file: nowhere.yaml, every: 50ms}")).unwrap();
    router.services.running.reload().unwrap();
    router.until("no discovery source lists any", |router| ports(router).is_empty());
}

#[test]
fn every_address_of_a_name_is_a_pod() {
    let path = folder("with_a_name").join("wornpath.yaml");
    fs::write(&path, "discovery: [{dns: localhost, port: 7, every: 50ms, labels: {from: dns}}]\n")
        .unwrap();
    let router = TestRouter::start(&path);
    router.until("localhost is a pod", |router| router.pods().contains(&"127.0.0.1:7".to_owned()));
    let snapshot = router.gateway.snapshot();
    let pod = snapshot.named("127.0.0.1:7").unwrap();
    assert_eq!(pod.settings.url, "http://127.0.0.1:7");
    assert_eq!(pod.pod.facts().label(&"from".into()), Some(&"dns".into()));
}

#[test]
fn engine_metrics_reach_decisions_and_missing_metrics_change_nothing() {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let options = EngineOptions {
        speed: 0.01,
        ..EngineOptions::new(EngineProfile::built_in("8b-h200").unwrap())
    };
    let engine = runtime.block_on(ServedEngine::start(options, anywhere())).unwrap();
    let http = engine.addresses().http;
    let path = folder("figures").join("wornpath.yaml");
    fs::write(&path, format!("pods: [{{url: \"http://{http}\", name: a}}]\n")).unwrap();
    let router = TestRouter::start(&path);
    // An engine at a hundredth of its speed works on this until it is crashed.
    let body = format!("{{\"prompt\": \"{}\", \"max_tokens\": 5000}}", "word ".repeat(4000));
    let mut client = TcpStream::connect(http).unwrap();
    let head = format!(
        "POST /v1/completions HTTP/1.1\r\nhost: {http}\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    client.write_all(format!("{head}{body}").as_bytes()).unwrap();
    let vitals = Arc::clone(router.gateway.snapshot().fleet().pods()[0].vitals());
    router.until("the engine's cache is in use", |_| vitals.kv_usage() > 0.0);
    vitals.set_health(Health::Up);
    let before = vitals.kv_usage();
    runtime.block_on(engine.crash());
    router.until("a reading was missed", |router| {
        let page =
            wornpath_gateway::http::metrics_page::page(&router.gateway, &router.services.metrics);
        let missed = "wornpath_scrapes_total{pod=\"a\",result=\"missed\"} ";
        page.lines().any(|line| line.strip_prefix(missed).is_some_and(|count| count != "0"))
    });
    assert_eq!(vitals.kv_usage(), before, "a missed reading keeps what was read before");
    assert_eq!(vitals.health(), Health::Up, "and never flaps a pod");
}
