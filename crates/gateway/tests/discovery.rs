//! Pods that come and go, and engines that are asked how they are.
#![allow(clippy::unwrap_used, reason = "a panic is how a test says no")]

mod around;

use std::fs;
use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use around::{World, folder};
use wornpath_routing::Health;
use wornpath_sim::Profile;
use wornpath_sim::serve::{Addresses, EngineOptions, ServedEngine};

fn anywhere() -> Addresses {
    let free: SocketAddr = "127.0.0.1:0".parse().unwrap();
    Addresses { http: free, events: free, replay: free }
}

#[test]
fn pods_come_and_go_with_a_file_and_a_bad_file_changes_nothing() {
    let folder = folder("with_a_file");
    let (path, pods) = (folder.join("wornpath.yaml"), folder.join("pods.yaml"));
    let text = "pods: [{url: \"http://127.0.0.1:1\", name: listed}]\ndiscovery: [{file: pods.yaml, every: 50ms}]\n";
    fs::write(&path, text).unwrap();
    fs::write(&pods, "pods: [{url: \"http://127.0.0.1:2\", name: a}]\n").unwrap();
    let world = World::start(&path);
    world.until("a has come", |world| world.pods() == ["listed", "a"]);
    fs::write(&pods, "pods: [{url: \"http://127.0.0.1:3\", nam: b}]\n").unwrap();
    // Six looks at it.
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(world.pods(), ["listed", "a"], "a bad file changes nothing");
    fs::write(&pods, "pods:\n  - {url: \"http://127.0.0.1:3\", name: b}\n  - {url: \"http://127.0.0.1:1\", name: c}\n").unwrap();
    world.until("b has come and a has gone", |world| world.pods() == ["listed", "b"]);
    fs::write(&path, format!("{text}reveal: pod\n")).unwrap();
    world.around.running.reload().unwrap();
    assert_eq!(
        world.pods(),
        ["listed", "b"],
        "what was found stays when the configuration is read again"
    );
    fs::write(&path, "pods: [{url: \"http://127.0.0.1:1\", name: listed}]\n").unwrap();
    world.around.running.reload().unwrap();
    world.until("nobody looks for pods any more", |world| world.pods() == ["listed"]);
}

#[test]
fn every_address_of_a_name_is_a_pod() {
    let path = folder("with_a_name").join("wornpath.yaml");
    fs::write(&path, "discovery: [{dns: localhost, port: 7, every: 50ms, labels: {from: dns}}]\n")
        .unwrap();
    let world = World::start(&path);
    world.until("localhost is a pod", |world| world.pods().contains(&"127.0.0.1:7".to_owned()));
    let roster = world.gateway.roster();
    let pod = roster.named("127.0.0.1:7").unwrap();
    assert_eq!(pod.settings.url, "http://127.0.0.1:7");
    assert_eq!(pod.pod.facts().label(&"from".into()), Some(&"dns".into()));
}

#[test]
fn an_engines_own_figures_reach_decisions_and_its_silence_changes_nothing() {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let options =
        EngineOptions { speed: 0.01, ..EngineOptions::new(Profile::built_in("8b-h200").unwrap()) };
    let engine = runtime.block_on(ServedEngine::start(options, anywhere())).unwrap();
    let http = engine.addresses().http;
    let path = folder("figures").join("wornpath.yaml");
    fs::write(&path, format!("pods: [{{url: \"http://{http}\", name: a}}]\n")).unwrap();
    let world = World::start(&path);
    // An engine at a hundredth of its speed works on this until it is crashed.
    let body = format!("{{\"prompt\": \"{}\", \"max_tokens\": 5000}}", "word ".repeat(4000));
    let mut client = TcpStream::connect(http).unwrap();
    let head = format!(
        "POST /v1/completions HTTP/1.1\r\nhost: {http}\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    client.write_all(format!("{head}{body}").as_bytes()).unwrap();
    let vitals = Arc::clone(world.gateway.roster().fleet().pods()[0].vitals());
    world.until("the engine's cache is in use", |_| vitals.kv_usage() > 0.0);
    vitals.set_health(Health::Up);
    let before = vitals.kv_usage();
    runtime.block_on(engine.crash());
    world.until("a reading was missed", |world| {
        let page = wornpath_gateway::metrics::page(&world.gateway, &world.around.metrics);
        let missed = "wornpath_scrapes_total{pod=\"a\",result=\"missed\"} ";
        page.lines().any(|line| line.strip_prefix(missed).is_some_and(|count| count != "0"))
    });
    assert_eq!(vitals.kv_usage(), before, "a missed reading keeps what was read before");
    assert_eq!(vitals.health(), Health::Up, "and never flaps a pod");
}
