//! Engines that stream what they cache by gRPC, to the listener that sidecars post to.

use crate::peer::{Peer, has};
use crate::support::engines::Exchange;
use crate::support::gateway::{Gateway, eventually, folder};
use crate::support::recorder::Recorder;
use crate::tls::{authority, workshop};
use serde_json::json;
use std::fs;
use std::net::TcpListener;
use std::path::Path;

/// A gateway whose only pod reports to it; `tls` is what its listener says of that.
fn is_reported_to(folder: &Path, tls: &str, authority: &[&str]) {
    let pod = Recorder::start();
    let events = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let text = format!(
        "listen: {{events: {{address: \"{events}\"{tls}}}}}\nevent_sources: [{{name: engines, kind: push}}]\n\
         models: [{{name: m, tokenizer: bytes, block_size: 4}}]\n\
         pods: [{{name: a, url: \"http://{}\", model: [m], events: [engines]}}]\n",
        pod.address
    );
    let path = folder.join("wornpath.yaml");
    fs::write(&path, text).unwrap();
    let gateway = Gateway::start(&["-c", path.to_str().unwrap(), "--admin", "127.0.0.1:0"], 1);
    let proto = concat!(env!("CARGO_MANIFEST_DIR"), "/../events/proto/events.proto");
    let address = events.to_string();
    let arguments = [&[&address, proto, folder.to_str().unwrap(), "any"], authority].concat();
    let mut engine = Peer::start("reporter.py", &arguments);
    assert_eq!(engine.line(), "ready");
    engine.tell(&json!({"pod": "a", "epoch": 7, "register": {}}).to_string());
    assert_eq!(engine.line(), "wish", "a router that knows nothing wants everything");
    engine.tell(&json!({"pod": "a", "epoch": 7, "sync": {}}).to_string());
    let tokens: Vec<_> = "abcdefgh".bytes().map(u32::from).collect();
    let places = [4096, 8192].map(|offset| json!({"offset": offset, "length": 4096, "device": 2}));
    let stored = json!({"blocks": [11, 12], "tokens": tokens, "blockSize": 4, "locations": places});
    let batch = json!({"events": [{"stored": stored}]});
    engine.tell(&json!({"pod": "a", "epoch": 7, "sequence": 0, "batch": batch}).to_string());
    let asked =
        json!({"path": "/v1/completions", "body": {"model": "m", "prompt": "abcdefgh and more"}});
    eventually("its blocks count", || {
        let explained = gateway.ask("POST", "/explain", &asked.to_string()).json();
        let run = &explained["outcome"]["plan"]["steps"][0]["cached_runs"][0];
        run["location"] == json!({"device": 2, "offset": 4096, "length": 4096})
            && explained["explanation"]["steps"][0]["candidates"][0]["blocks"] == 2
    });

    // Posted events go to the same feed.
    if authority.is_empty() {
        let posted = Exchange::open(&address, "POST", "/events/register", "{}").finish().unwrap();
        assert_eq!(posted.status, 400, "{}", posted.text);
    }
}

#[test]
fn a_plan_shows_where_blocks_lie_that_were_posted_with_their_locations() {
    let pod = Recorder::start();
    let events = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let text = format!(
        "listen: {{events: \"{events}\"}}\nevent_sources: [{{name: engines, kind: push}}]\n\
         models: [{{name: m, tokenizer: bytes, block_size: 4}}]\n\
         pods: [{{name: a, url: \"http://{}\", model: [m], events: [engines]}}]\n",
        pod.address
    );
    let folder = folder("locations");
    let path = folder.join("wornpath.yaml");
    fs::write(&path, text).unwrap();
    let gateway = Gateway::start(&["-c", path.to_str().unwrap(), "--admin", "127.0.0.1:0"], 1);
    let tokens: Vec<_> = "abcdefgh".bytes().map(u32::from).collect();
    let post = |places: serde_json::Value| {
        let stored = json!({"hashes": [1, 2], "tokens": tokens, "block_size": 4, "tier": "disk", "locations": places});
        let body = json!({"pod": "a", "epoch": 7, "stored": [stored]}).to_string();
        Exchange::open(&events, "POST", "/events/stored", &body).finish().unwrap()
    };
    let answer = post(json!([{"offset": 512, "length": 64, "device": 3}, {"offset": 576}]));
    assert_eq!(answer.status, 200, "{}", answer.text);
    let asked =
        json!({"path": "/v1/completions", "body": {"model": "m", "prompt": "abcdefgh and more"}});
    let expected = json!([{"blocks": 2, "tier": "disk", "location": {"device": 3, "offset": 512, "length": 64}}]);
    eventually("its blocks count", || {
        let explained = gateway.ask("POST", "/explain", &asked.to_string()).json();
        explained["outcome"]["plan"]["steps"][0]["cached_runs"] == expected
    });
    let answer = post(json!([{"length": 64}]));
    assert_eq!(answer.status, 400);
    assert!(answer.text.contains("offset"), "{}", answer.text);
}

#[test]
fn an_engine_reports_by_grpc() {
    if has("import grpc, grpc_tools", "grpcio grpcio-tools") {
        is_reported_to(&folder("reports"), "", &[]);
    }
}

#[test]
fn an_engine_reports_by_grpc_over_tls() {
    if has("import grpc, grpc_tools", "grpcio grpcio-tools") {
        let folder = workshop("reports_tls", &authority("ours"));
        let ca = folder.join("ca.pem");
        let tls = ", tls: {certificate: server.pem, key: server.key}";
        is_reported_to(&folder, tls, &[ca.to_str().unwrap()]);
    }
}
