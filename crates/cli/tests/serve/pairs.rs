//! Prefill and decode engines that start at the same time, of which one fails.

use crate::support::engines::Response;
use crate::support::gateway::{Gateway, eventually};
use crate::support::recorder::{Recorder, Rooms, Side};
use serde_json::json;
use std::time::{Duration, Instant};

/// Two pods of each role, of which the first is tried first, and a gateway that always needs both
/// roles.
struct Pairs {
    prefill: [Recorder; 2],
    decode: [Recorder; 2],
    gateway: Gateway,
}

impl Pairs {
    fn start(test: &str) -> Self {
        let rooms = Rooms::default();
        let prefill = [Recorder::start(), Recorder::start()];
        let decode = [Recorder::start(), Recorder::start()];
        prefill.iter().for_each(|pod| pod.meet(Side::Gives(rooms.clone())));
        decode.iter().for_each(|pod| pod.meet(Side::Takes(rooms.clone())));
        let mut pods = String::new();
        for (role, of_role) in [("prefill", &prefill), ("decode", &decode)] {
            for (rank, pod) in of_role.iter().enumerate() {
                pods.push_str(&format!(
                    "  - {{url: \"http://{}\", role: {role}, model: m, labels: {{rank: \"{rank}\"}}}}\n",
                    pod.address
                ));
            }
        }
        let selector = "{filter: [healthy, model], score: [{expression: {score: \"pod.labels.rank == '0' ? 1.0 : 0.0\"}}], pick: max_score}";
        let text = format!(
            "models: [{{name: m, tokenizer: bytes}}]\npods:\n{pods}profiles:\n  pair:\n    prepare: [tokenize, block_hash]\n    \
             selectors:\n      prefill: {selector}\n      decode: {selector}\n    \
             workflow:\n      prefill_decode:\n        min_uncached_tokens: 1\n        transfer: bootstrap\n        \
             prefill: {{attempts: 2, then: skip}}\n        decode: {{attempts: 2, then: restart}}\n"
        );
        Self { prefill, decode, gateway: Gateway::configured(test, &text, 4) }
    }

    fn ask(&self) -> Response {
        let started = Instant::now();
        let prompt = "computed by one and answered by the other ".repeat(4);
        let answer = self.gateway.post("/v1/completions", &json!({"model": "m", "prompt": prompt}));
        assert!(
            started.elapsed() < Duration::from_secs(8),
            "decode does not wait for a failed prefill"
        );
        answer
    }
}

#[test]
fn a_prefill_that_fails_beside_its_decode_is_done_by_another_pod_in_another_room() {
    let pairs = Pairs::start("pairs_other");
    pairs.prefill[0].refuse("500 Broken");
    let answer = pairs.ask();
    assert_eq!((answer.status, answer.pod()), (200, &*pairs.decode[0].address.to_string()));
    assert_eq!(answer.header("x-wornpath-degraded"), None);
    assert_eq!(pairs.prefill.each_ref().map(|pod| pod.posted().len()), [1, 1]);
    // Who is called off may have read nothing yet, and read it later than who answers.
    let rooms: Vec<_> =
        pairs.decode[0].posted().iter().map(|it| it.body["bootstrap_room"].to_string()).collect();
    assert!(rooms.len() == 1 || rooms[0] != rooms[1], "{rooms:?}");
}

#[test]
fn if_two_prefills_fail_the_decode_pod_computes_the_prompt_and_it_is_reported() {
    let pairs = Pairs::start("pairs_alone");
    pairs.prefill.iter().for_each(|pod| pod.refuse("500 Broken"));
    let answer = pairs.ask();
    assert_eq!((answer.status, answer.header("x-wornpath-degraded")), (200, Some("true")));
    let sent = pairs.decode[0].posted();
    assert!(
        sent.iter().any(|it| it.body.get("bootstrap_room").is_none()),
        "it computes the prompt itself"
    );
}

#[test]
fn a_client_error_of_prefill_is_passed_to_the_client() {
    let pairs = Pairs::start("pairs_refused");
    pairs.prefill[0].refuse("400 Bad Request");
    let answer = pairs.ask();
    assert_eq!(answer.status, 400);
    assert!(pairs.prefill[1].posted().is_empty(), "no other pod would say otherwise");
}

#[test]
fn a_decode_that_fails_beside_its_prefill_voids_their_room() {
    let pairs = Pairs::start("pairs_void");
    pairs.decode[0].refuse("500 Broken");
    let answer = pairs.ask();
    assert_eq!((answer.status, answer.pod()), (200, &*pairs.decode[1].address.to_string()));
    let room = |pod: &Recorder| pod.posted()[0].body["bootstrap_room"].clone();
    assert_ne!(room(&pairs.decode[0]), room(&pairs.decode[1]));
}

#[test]
fn nothing_is_retried_for_a_client_that_has_disconnected() {
    let pairs = Pairs::start("pairs_left");
    pairs.prefill[0].answer_after(Duration::from_secs(2));
    pairs.prefill[0].refuse("500 Broken");
    let prompt = "computed by one and answered by the other ".repeat(4);
    let leaving = pairs.gateway.open("/v1/completions", &json!({"model": "m", "prompt": prompt}));
    let posted = |pods: &[Recorder; 2]| pods.each_ref().map(|pod| pod.posted().len());
    eventually("both have begun", || {
        (posted(&pairs.prefill), posted(&pairs.decode)) == ([1, 0], [1, 0])
    });
    drop(leaving);
    eventually("prefill has failed", || pairs.prefill[0].answered() == 1);
    eventually("the plan has ended", || {
        let pods = pairs.gateway.ask("GET", "/pods", "").json();
        pods["pods"].as_array().unwrap().iter().all(|pod| pod["load"]["requests"] == 0)
    });
    assert_eq!([posted(&pairs.prefill), posted(&pairs.decode)], [[1, 0], [1, 0]]);
}
