//! Discovery of pods by files and DNS, and scrapes of engines.

use std::fs;
use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;

use crate::harness::{TestServer, folder};
use crate::log;
use wornpath_gateway::http::metrics_page::{PageFormat, page};
use wornpath_routing::Health;
use wornpath_sim::EngineProfile;
use wornpath_sim::serve::{Addresses, EngineOptions, ServedEngine};

fn free_addresses() -> Addresses {
    let free: SocketAddr = "127.0.0.1:0".parse().unwrap();
    Addresses { http: free, events: free, replay: free }
}

#[test]
fn pods_follow_a_file_and_an_invalid_file_changes_nothing() {
    let folder = folder("with_a_file");
    let path = folder.join("wornpath.yaml");
    let pods = folder.join("pods.yaml");
    let text = "pods: [{url: \"http://127.0.0.1:1\", name: listed}]\ndiscovery: [{file: pods.yaml, every: 50ms}]\n";
    fs::write(&path, text).unwrap();
    fs::write(&pods, "pods: [{url: \"http://127.0.0.1:2\", name: a}]\n").unwrap();
    let server = TestServer::start(&path);
    server.until("a is added", |server| server.pods() == ["listed", "a"]);
    fs::write(&pods, "pods: [{url: \"http://127.0.0.1:3\", nam: b}]\n").unwrap();
    server.until("it is refused", |_| log::has(&["pod file refused", &pods.display().to_string()]));
    assert_eq!(server.pods(), ["listed", "a"], "an invalid file changes nothing");
    fs::write(&pods, "pods:\n  - {url: \"http://127.0.0.1:3\", name: b}\n  - {url: \"http://127.0.0.1:1\", name: c}\n").unwrap();
    server.until("b is added and a removed", |server| server.pods() == ["listed", "b"]);
    fs::write(&path, format!("{text}reveal: pod\n")).unwrap();
    server.context.running.reload().unwrap();
    assert_eq!(server.pods(), ["listed", "b"], "discovered pods survive a reload");
    fs::write(&path, "pods: [{url: \"http://127.0.0.1:1\", name: listed}]\n").unwrap();
    server.context.running.reload().unwrap();
    server.until("discovery is no longer configured", |server| server.pods() == ["listed"]);
}

/// Names and ports of all pods, sorted.
fn ports(server: &TestServer) -> Vec<String> {
    let snapshot = server.gateway.snapshot();
    let port = |url: &str| url.rsplit(':').next().unwrap().to_owned();
    let mut pods: Vec<_> = snapshot
        .entries()
        .iter()
        .map(|entry| format!("{}@{}", entry.pod.facts().name, port(entry.config.url())))
        .collect();
    pods.sort();
    pods
}

/// The text of a pod file.
fn list(pods: &[(&str, u16)]) -> String {
    let line = |(name, port): &(&str, u16)| {
        format!("  - {{url: \"http://127.0.0.1:{port}\", name: {name}}}\n")
    };
    format!("pods:\n{}", pods.iter().map(line).collect::<String>())
}

#[test]
fn pods_that_swap_addresses_are_both_replaced() {
    let folder = folder("each_others");
    let path = folder.join("wornpath.yaml");
    let pods = folder.join("pods.yaml");
    fs::write(&path, "discovery: [{file: pods.yaml, every: 50ms}]\n").unwrap();
    fs::write(&pods, list(&[("b", 2), ("c", 3)])).unwrap();
    let server = TestServer::start(&path);
    server.until("both are added", |server| ports(server) == ["b@2", "c@3"]);
    fs::write(&pods, list(&[("b", 3), ("c", 40)])).unwrap();
    server.until("b is where c was", |server| ports(server) == ["b@3", "c@40"]);
    fs::write(&pods, list(&[("b", 40), ("c", 3)])).unwrap();
    server.until("they have swapped", |server| ports(server) == ["b@40", "c@3"]);
}

#[test]
fn a_drained_pod_that_is_renamed_stays_drained() {
    let folder = folder("stays_drained");
    let path = folder.join("wornpath.yaml");
    let pods = folder.join("pods.yaml");
    fs::write(&path, "discovery: [{file: pods.yaml, every: 50ms}]\n").unwrap();
    fs::write(&pods, list(&[("a", 1)])).unwrap();
    let server = TestServer::start(&path);
    let health = |server: &TestServer, name: &str| {
        server.gateway.snapshot().named(name).map(|entry| entry.pod.state().health())
    };
    server.until("it is added", |server| ports(server) == ["a@1"]);
    assert!(server.gateway.pods().drain_pod("a"));
    fs::write(&pods, list(&[("b", 1)])).unwrap();
    server.until("it is renamed", |server| ports(server) == ["b@1"]);
    assert_eq!(health(&server, "b"), Some(Health::Draining));
    fs::write(&pods, list(&[("b", 2)])).unwrap();
    server.until("it has another address", |server| ports(server) == ["b@2"]);
    assert_eq!(health(&server, "b"), Some(Health::Down));
}

#[test]
fn an_operators_replacement_of_a_listed_pod_survives_a_reload_until_the_entry_changes() {
    let folder = folder("put_in_place");
    let path = folder.join("wornpath.yaml");
    let listen = "listen: {admin: \"127.0.0.1:0\"}\n";
    fs::write(&path, format!("{listen}{}", list(&[("a", 1)]))).unwrap();
    let server = TestServer::start(&path);
    assert_eq!(server.ask("DELETE", "/pods/a", "").0, 200);
    let operators = r#"{"url": "http://127.0.0.1:2", "name": "a"}"#;
    assert_eq!(server.ask("POST", "/pods", operators).0, 200);
    for more in ["", "reveal: pod\n"] {
        fs::write(&path, format!("{listen}{more}{}", list(&[("a", 1)]))).unwrap();
        server.context.running.reload().unwrap();
        assert_eq!(ports(&server), ["a@2"]);
    }
    fs::write(&path, format!("{listen}{}", list(&[("a", 3)]))).unwrap();
    server.context.running.reload().unwrap();
    assert_eq!(ports(&server), ["a@3"], "its entry has changed");
}

#[test]
fn a_refused_pod_is_retried_and_a_removed_one_stays_removed() {
    let folder = folder("as_soon_as_it_can");
    let path = folder.join("wornpath.yaml");
    let pods = folder.join("pods.yaml");
    let text = "listen: {admin: \"127.0.0.1:0\"}\ndiscovery: [{file: pods.yaml, every: 50ms}]\n";
    fs::write(&path, text).unwrap();
    fs::write(&pods, list(&[("a", 1)])).unwrap();
    let server = TestServer::start(&path);
    server.until("a is added", |server| ports(server) == ["a@1"]);
    let operators = r#"{"url": "http://127.0.0.1:2", "name": "mine"}"#;
    assert_eq!(server.ask("POST", "/pods", operators).0, 200);
    fs::write(&pods, list(&[("b", 2), ("c", 3)])).unwrap();
    server.until("c is added, b is refused", |server| ports(server) == ["c@3", "mine@2"]);
    assert_eq!(server.ask("DELETE", "/pods/mine", "").0, 200);
    server.until("b is added", |server| ports(server) == ["b@2", "c@3"]);
    assert_eq!(server.ask("DELETE", "/pods/b", "").0, 200);
    // Two more polls: those that add the pods that are listed after b.
    fs::write(&pods, list(&[("b", 2), ("c", 3), ("d", 4)])).unwrap();
    server.until("d is added", |server| ports(server).contains(&"d@4".to_owned()));
    fs::write(&pods, list(&[("b", 2), ("c", 3), ("d", 4), ("e", 5)])).unwrap();
    server.until("e is added", |server| ports(server).contains(&"e@5".to_owned()));
    let without_b = ["c@3", "d@4", "e@5"];
    assert_eq!(ports(&server), without_b, "a pod that an operator removed is not added again");
}

#[test]
fn a_reload_reads_the_pod_file_again_at_once() {
    let folder = folder("read_again");
    let path = folder.join("wornpath.yaml");
    let pods = folder.join("pods.yaml");
    // The next poll is too far off to matter.
    let text = "discovery: [{file: pods.yaml, every: 1h}]\nmodels: [{name: m}]\n";
    fs::write(&path, text).unwrap();
    fs::write(&pods, "pods: [{url: \"http://127.0.0.1:1\", name: a, model: new}]\n").unwrap();
    let server = TestServer::start(&path);
    server.until("it is refused", |_| log::has(&["pod file refused", &pods.display().to_string()]));
    assert_eq!(ports(&server), Vec::<String>::new(), "its model is not listed");
    fs::write(&path, text.replace("[{name: m}]", "[{name: m}, {name: new}]")).unwrap();
    server.context.running.reload().unwrap();
    server.until("its model is listed", |server| ports(server) == ["a@1"]);
}

#[test]
fn pods_stay_as_long_as_any_source_lists_them() {
    let folder = folder("any_finder");
    let path = folder.join("wornpath.yaml");
    let pods = folder.join("pods.yaml");
    let text =
        |finders: &str| format!("listen: {{admin: \"127.0.0.1:0\"}}\ndiscovery: [{finders}]\n");
    fs::write(&path, text("{file: pods.yaml, every: 50ms}")).unwrap();
    fs::write(&pods, list(&[("a", 1), ("b", 2)])).unwrap();
    fs::write(folder.join("others.yaml"), list(&[("c", 3)])).unwrap();
    fs::write(folder.join("moved.yaml"), list(&[("a", 1), ("b", 20)])).unwrap();
    let server = TestServer::start(&path);
    server.until("a and b are added", |server| ports(server) == ["a@1", "b@2"]);
    // A pod that was added again would have another id.
    let id = |name: &str| server.gateway.snapshot().named(name).map(|entry| entry.pod.id());
    let a = id("a");
    let b = id("b");
    for finders in [
        "{file: pods.yaml, every: 60ms}",
        "{file: others.yaml, every: 50ms}, {file: pods.yaml, every: 60ms}",
    ] {
        fs::write(&path, text(finders)).unwrap();
        server.context.running.reload().unwrap();
        // Two polls with the new configuration: one adds d, the other removes it.
        for listed in [&[("a", 1), ("b", 2), ("d", 4)][..], &[("a", 1), ("b", 2)]] {
            fs::write(&pods, list(listed)).unwrap();
            server.until("the file is read", |_| {
                assert_eq!([id("a"), id("b")], [a, b], "{finders}");
                id("d").is_some() == (listed.len() == 3)
            });
        }
    }
    server.until("c is added", |server| ports(server) == ["a@1", "b@2", "c@3"]);
    fs::write(&path, text("{file: moved.yaml, every: 50ms}")).unwrap();
    server.context.running.reload().unwrap();
    server.until("b has moved and c is removed", |server| ports(server) == ["a@1", "b@20"]);
    assert_eq!(id("a"), a, "the other source lists it unchanged");
    fs::write(&path, text("{file: nowhere.yaml, every: 50ms}")).unwrap();
    server.context.running.reload().unwrap();
    server.until("no source lists any", |server| ports(server).is_empty());
}

#[test]
fn every_address_of_a_dns_name_is_a_pod() {
    let path = folder("with_a_name").join("wornpath.yaml");
    fs::write(&path, "discovery: [{dns: localhost, port: 7, every: 50ms, labels: {from: dns}}]\n")
        .unwrap();
    let server = TestServer::start(&path);
    server.until("localhost is a pod", |server| server.pods().contains(&"127.0.0.1:7".to_owned()));
    let snapshot = server.gateway.snapshot();
    let pod = snapshot.named("127.0.0.1:7").unwrap();
    assert_eq!(pod.config.url(), "http://127.0.0.1:7");
    assert_eq!(pod.pod.facts().label(&"from".into()), Some(&"dns".into()));
}

#[test]
fn scraped_load_reaches_decisions_and_a_missed_scrape_changes_nothing() {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let options = EngineOptions {
        speed: 0.01,
        ..EngineOptions::new(EngineProfile::built_in("8b-h200").unwrap())
    };
    let engine = runtime.block_on(ServedEngine::start(options, free_addresses())).unwrap();
    let http = engine.addresses().http;
    let path = folder("figures").join("wornpath.yaml");
    fs::write(&path, format!("pods: [{{url: \"http://{http}\", name: a}}]\n")).unwrap();
    let server = TestServer::start(&path);
    // An engine at a hundredth of its speed works on this until it is crashed.
    let body = format!("{{\"prompt\": \"{}\", \"max_tokens\": 5000}}", "word ".repeat(4000));
    let mut client = TcpStream::connect(http).unwrap();
    let head = format!(
        "POST /v1/completions HTTP/1.1\r\nhost: {http}\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    client.write_all(format!("{head}{body}").as_bytes()).unwrap();
    let pod_state = Arc::clone(server.gateway.snapshot().fleet().pods()[0].state());
    server.until("the engine's cache is in use", |_| pod_state.kv_usage() > 0.0);
    pod_state.set_health(Health::Up);
    let before = pod_state.kv_usage();
    runtime.block_on(engine.crash());
    server.until("a scrape was missed", |server| {
        let page = page(&server.gateway, &server.context.metrics, PageFormat::Text);
        let missed = "wornpath_scrapes_total{pod=\"a\",result=\"missed\"} ";
        page.lines().any(|line| line.strip_prefix(missed).is_some_and(|count| count != "0"))
    });
    assert_eq!(pod_state.kv_usage(), before, "a missed scrape keeps the last report");
    assert_eq!(pod_state.health(), Health::Up, "and does not take the pod down");
}
