//! Workers that report their full state by hashes alone, to a router that has restarted.

use crate::support::engines::{Exchange, Response};
use crate::support::gateway::{Gateway, eventually_within, folder};
use crate::support::recorder::Recorder;
use serde_json::{Value, json};
use std::fs;
use std::net::TcpListener;
use std::time::Duration;

/// Blocks of four bytes, which are the tokens here.
const PROMPT: &str = "0123456789abcdefghijklmnopqrstuvwxyz";
const BLOCKS: u64 = 8;

struct Worker {
    events: String,
}

impl Worker {
    fn post(&self, path: &str, body: &Value) -> Response {
        let answer = Exchange::open(&self.events, "POST", path, &body.to_string()).finish();
        let answer = answer.unwrap();
        assert_eq!(answer.status, 200, "{}", answer.text);
        answer
    }

    /// The whole state, by hashes.
    fn sync(&self) -> Value {
        let hashes: Vec<_> = (1..=BLOCKS).map(|block| format!("{block:064x}")).collect();
        let body = json!({"worker_id": "a", "active_hashes": hashes});
        self.post("/internal/sync", &body).json()
    }

    /// The whole state, with tokens.
    fn sync_with_tokens(&self) {
        let hashes: Vec<_> = (1..=BLOCKS).collect();
        let tokens: Vec<_> = PROMPT.bytes().take(BLOCKS as usize * 4).collect();
        let stored = json!([{"hashes": hashes, "tokens": tokens, "block_size": 4}]);
        self.post("/events/sync", &json!({"pod": "a", "stored": stored}));
    }
}

fn trust(gateway: &Gateway) -> (String, Value) {
    let pods = gateway.ask("GET", "/pods", "").json();
    let events = &pods["pods"][0]["events"];
    (events["trust"].as_str().unwrap_or_default().to_owned(), events["feed"]["unnamed"].clone())
}

fn found(gateway: &Gateway) -> Value {
    let body = json!({"model": "m", "prompt": PROMPT});
    let asked = json!({"path": "/v1/completions", "body": body});
    let explained = gateway.ask("POST", "/explain", &asked.to_string()).json();
    explained["explanation"]["steps"][0]["candidates"][0]["blocks"].clone()
}

#[test]
fn after_a_restart_a_worker_that_knows_only_hashes_is_partial_and_whole_within_five_seconds() {
    let pod = Recorder::start();
    let events = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let text = format!(
        "listen: {{events: \"{events}\"}}\nevent_sources: [{{name: workers, kind: push}}]\n\
         models: [{{name: m, tokenizer: bytes, block_size: 4}}]\n\
         pods: [{{name: a, url: \"http://{}\", model: [m], events: [workers]}}]\n",
        pod.address
    );
    let path = folder("hash_sync").join("wornpath.yaml");
    fs::write(&path, text).unwrap();
    let start = || Gateway::start(&["-c", path.to_str().unwrap(), "--admin", "127.0.0.1:0"], 1);
    let worker = Worker { events: events.to_string() };

    let before = start();
    worker.sync_with_tokens();
    let within = |what, condition: &mut dyn FnMut() -> bool| {
        eventually_within(Duration::from_secs(5), what, condition);
    };
    within("known", &mut || trust(&before) == ("exact".to_owned(), json!(0)));
    // What the router has seen with its tokens, it knows by its hash.
    worker.sync();
    within("known by hashes", &mut || trust(&before).0 == "exact" && found(&before) == BLOCKS);
    drop(before);

    let after = start();
    worker.sync();
    within("partial", &mut || trust(&after) == ("partial".to_owned(), json!(BLOCKS)));
    assert_eq!(found(&after), 0);
    within("asked, and known again", &mut || {
        let answer = worker.sync();
        if answer["tokens"] == true {
            worker.sync_with_tokens();
        }
        trust(&after).0 == "exact" && found(&after) == BLOCKS
    });
}
