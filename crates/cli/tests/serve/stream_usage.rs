//! Streams whose clients do not ask for token counts: the router counts them all the same, and the
//! client gets the bytes that the engine would have sent it.

use crate::support::engines::Engines;
use crate::support::gateway::{Gateway, eventually};
use serde_json::{Value, json};

const TOKENIZER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../blocks/tests/models/tiny-llama");

struct Fleet {
    engines: Engines,
    gateway: Gateway,
}

impl Fleet {
    fn start(name: &str, settings: &str) -> Self {
        let engines = Engines::start(&["--model", "m", "--tokenizer", TOKENIZER]);
        let at = &engines.engines[0];
        let text = format!(
            "{settings}models: [{{name: m, tokenizer: \"{TOKENIZER}\"}}]\npods:\n  \
             - {{name: exact, url: \"http://{}\", events: [\"zmq://{}?replay={}\"]}}\n",
            at.http, at.events, at.replay
        );
        let gateway = Gateway::configured(name, &text, 1);
        Self { engines, gateway }
    }

    /// The stream as the engine sends it to a client, and as it comes through the router.
    fn streams(&self, path: &str, body: &Value) -> [String; 2] {
        let direct = self.engines.post(0, path, body);
        let through = self.gateway.post(path, body);
        assert_eq!((direct.status, through.status), (200, 200), "{}", through.text);
        [direct.text, through.text].map(|stream| without_identity(&stream))
    }

    fn count(&self, family: &str, source: &str) -> f64 {
        let labels = "profile=\"cache-aware\",pod=\"exact\"";
        self.gateway.metric(&format!("{family}{{{labels}{source}}} "))
    }
}

/// A stream without what differs between two requests: its id and time.
fn without_identity(stream: &str) -> String {
    let mut out = String::new();
    for event in stream.split_inclusive("\n\n") {
        match event.trim().strip_prefix("data: ").map(serde_json::from_str::<Value>) {
            Some(Ok(mut chunk)) => {
                chunk["id"] = json!("id");
                chunk["created"] = json!(0);
                out += &format!("data: {chunk}\n\n");
            }
            _ => out += event,
        }
    }
    out
}

fn bodies() -> [(&'static str, Value); 2] {
    let text = "The same long beginning of every question, which fills several blocks. ".repeat(9);
    let chat = json!({"model": "m", "messages": [{"role": "user", "content": text}], "stream": true, "max_tokens": 9});
    let completion = json!({"model": "m", "prompt": text, "stream": true, "max_tokens": 9});
    [("/v1/chat/completions", chat), ("/v1/completions", completion)]
}

#[test]
fn a_stream_that_did_not_ask_is_counted_and_is_what_the_engine_would_have_sent() {
    let fleet = Fleet::start("stream_usage", "");
    for (path, body) in bodies() {
        for _ in 0..3 {
            let [direct, through] = fleet.streams(path, &body);
            assert_eq!(direct, through, "{path}");
            assert!(!through.contains("usage"), "{through}");
        }
        let mut asking = body;
        asking["stream_options"] = json!({"include_usage": true});
        let [direct, through] = fleet.streams(path, &asking);
        assert!(through.contains("\"usage\":{"), "{path}: {through}");
        assert_eq!(direct.matches("\"choices\":[]").count(), 1, "{direct}");
        assert_eq!(through.matches("\"choices\":[]").count(), 1, "{through}");
    }
    eventually("all eight requests are counted", || {
        fleet.count("wornpath_output_tokens_total", ",source=\"engine\"") == 8.0 * 9.0
    });
    assert_eq!(fleet.count("wornpath_output_tokens_total", ",source=\"router\""), 0.0);
    assert!(fleet.count("wornpath_predictions_checked_total", "") >= 4.0);
    assert!(fleet.count("wornpath_cached_tokens_total", "") > 0.0);
}

#[test]
fn where_only_clients_ask_the_router_counts_itself_and_says_so() {
    let fleet = Fleet::start("client_usage", "stream_usage: client\n");
    let [(path, body), _] = bodies();
    let [direct, through] = fleet.streams(path, &body);
    assert_eq!(direct, through);
    eventually("the request is counted", || {
        fleet.count("wornpath_prompt_tokens_total", ",source=\"router\"") > 100.0
    });
    let events = through.matches("data: {").count() as f64;
    assert_eq!(fleet.count("wornpath_output_tokens_total", ",source=\"router\""), events);
    assert_eq!(fleet.count("wornpath_prompt_tokens_total", ",source=\"engine\""), 0.0);
    assert_eq!(fleet.count("wornpath_predictions_checked_total", ""), 0.0);
}
