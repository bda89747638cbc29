//! Predictions are checked: pods that are always mispredicted, or say nothing, are reported loudly.

use crate::gateway::{Gateway, eventually};
use crate::served::Served;
use serde_json::{Value, json};

/// A gateway that follows the engine's events, after enough answers for a verdict.
fn after_answers(engines: &Served) -> Gateway {
    after_answers_by("cache-aware", engines)
}

fn after_answers_by(policy: &str, engines: &Served) -> Gateway {
    let at = &engines.engines[0];
    let pod = format!("http://{},events=zmq://{}?replay={}", at.http, at.events, at.replay);
    let model =
        ["--tokenizer", "bytes", "--model", "m", "--admin", "127.0.0.1:0", "--policy", policy];
    let gateway = Gateway::start(&[&["--pod", pod.as_str()][..], &model].concat(), 1);
    for number in 0..40 {
        let text = format!("{}{number}", "the same words again and again ".repeat(40));
        let answer = gateway.post("/v1/completions", &json!({"prompt": text, "max_tokens": 1}));
        assert_eq!(answer.status, 200);
    }
    gateway
}

fn pod(gateway: &Gateway) -> Value {
    gateway.ask("GET", "/pods", "").json()["pods"][0].clone()
}

fn doubtful(gateway: &Gateway) -> Value {
    gateway.ask("GET", "/profiles", "").json()["profiles"][0]["cache"]["doubtful"].clone()
}

#[test]
fn a_pod_whose_predictions_are_always_wrong_is_reported_in_log_metric_and_admin() {
    let engines = Served::start(&["--model", "m", "--fault", "cached-tokens=zero"]);
    let gateway = after_answers(&engines);
    let name = engines.engines[0].http.clone();
    eventually("it is logged", || gateway.log().contains("predictions are nearly always wrong"));
    assert!(gateway.log().contains("the pod has much less cached than predicted"));
    let metric = format!("wornpath_pod_predictions_broken{{pod=\"{name}\"}}");
    assert_eq!(gateway.metric(&metric) as u64, 1);
    assert_eq!(pod(&gateway)["predictions"]["verdict"], "optimistic");
    assert_eq!(doubtful(&gateway), json!([name]), "and the profile's mode says so");
}

#[test]
fn a_pod_that_sends_no_events_although_it_should_is_reported_in_log_metric_and_admin() {
    let silent = ["--model", "m", "--fault", "lose-tail", "--fault", "no-replay"];
    let engines = Served::start(&silent);
    let gateway = after_answers(&engines);
    let name = engines.engines[0].http.clone();
    eventually("it is logged", || gateway.log().contains("has sent no cache events"));
    assert_eq!(gateway.metric(&format!("wornpath_pod_events_silent{{pod=\"{name}\"}}")) as u64, 1);
    assert_eq!(pod(&gateway)["events"]["silent"], true);
    assert_eq!(doubtful(&gateway), json!([name]));
}

#[test]
fn a_pod_that_tells_the_truth_is_not_reported() {
    let engines = Served::start(&["--model", "m"]);
    let gateway = after_answers(&engines);
    let name = engines.engines[0].http.clone();
    eventually("it is judged", || pod(&gateway)["predictions"]["verdict"] == "good");
    assert_eq!(gateway.metric(&format!("wornpath_pod_events_silent{{pod=\"{name}\"}}")) as u64, 0);
    assert_eq!(doubtful(&gateway), json!([]));
    let cache = gateway.ask("GET", "/profiles", "").json()["profiles"][0]["cache"].clone();
    assert_eq!(cache["mode"], "events", "{cache}");
}

#[test]
fn what_a_decode_pod_takes_over_is_no_cache_hit_and_what_prefill_says_is_compared() {
    let engines = Served::start(&["--engines", "2", "--model", "m"]);
    let pods = ["prefill", "decode"].iter().zip(&engines.engines).map(|(role, at)| {
        let events = format!("zmq://{}?replay={}", at.events, at.replay);
        format!("  - {{url: \"http://{}\", name: {role}, role: {role}, model: m, events: [\"{events}\"]}}\n", at.http)
    });
    let text = format!(
        "models: [{{name: m, tokenizer: bytes}}]\npods:\n{}profiles:\n  pair:\n    prepare: [tokenize, block_hash]\n    \
         selectors:\n      prefill: {{filter: [healthy, model], pick: max_score}}\n      decode: {{filter: [healthy, model], pick: max_score}}\n    \
         workflow: {{prefill_decode: {{min_uncached_tokens: 1}}}}\n    without_events: approximate\n",
        pods.collect::<String>()
    );
    let gateway = Gateway::configured("predictions_pair", &text, 2);
    for number in 0..40 {
        let text = format!("{}{number}", "the same words again and again ".repeat(40));
        let answer = gateway.post("/v1/completions", &json!({"prompt": text, "max_tokens": 2}));
        assert_eq!((answer.status, answer.pod()), (200, "decode"));
        assert!(answer.cached_tokens() > 1000, "the decode engine counts what it took over");
    }
    let of = |name: &str, pod: &str| {
        gateway.metric(&format!("wornpath_{name}{{profile=\"pair\",pod=\"{pod}\"}}")) as u64
    };
    eventually("all are counted", || of("predictions_checked_total", "prefill") == 40);
    let own = engines.metric(0, "vllm:prefix_cache_hits_total") as u64;
    assert_eq!(of("cached_tokens_total", "prefill"), own, "as the engine itself counts");
    assert!(own > 30 * 1000, "{own}");
    assert_eq!(of("cached_tokens_total", "decode") + of("predictions_checked_total", "decode"), 0);
    let verdict = |at: usize| {
        gateway.ask("GET", "/pods", "").json()["pods"][at]["predictions"]["verdict"].clone()
    };
    eventually("prefill is judged", || verdict(0) == "good");
    assert_eq!(verdict(1), "unknown", "{}", gateway.log());
    let last = gateway.ask("GET", "/decisions?last=1", "").json()["decisions"][0].clone();
    assert_eq!((&last["pod"], &last["computed_by"]), (&json!("decode"), &json!("prefill")));
    assert_eq!(last["cached_tokens"]["predicted"], last["cached_tokens"]["actual"], "{last}");
}

#[test]
fn a_profile_that_does_not_look_predicts_nothing_rather_than_zero() {
    let engines = Served::start(&["--model", "m"]);
    let gateway = after_answers_by("round-robin", &engines);
    let labels = format!("{{profile=\"round-robin\",pod=\"{}\"}}", engines.engines[0].http);
    let metric = |name: &str| gateway.metric(&format!("{name}{labels}")) as u64;
    eventually("answers are counted", || metric("wornpath_cached_tokens_total") > 0);
    assert_eq!(metric("wornpath_predictions_checked_total"), 0);
    assert!(metric("wornpath_prompt_tokens_told_total") > metric("wornpath_cached_tokens_total"));
}

#[test]
fn a_profile_that_does_not_look_at_prompts_predicts_nothing_and_is_never_wrong() {
    let engines = Served::start(&["--model", "m"]);
    let arguments = ["--policy", "round-robin", "--admin", "127.0.0.1:0"];
    let gateway = Gateway::before(&engines, &arguments);
    let body = json!({"prompt": "the same words again and again ".repeat(40), "max_tokens": 1});
    for _ in 0..40 {
        assert_eq!(gateway.post("/v1/completions", &body).status, 200);
    }
    let last = || gateway.ask("GET", "/decisions?last=1", "").json()["decisions"][0].clone();
    eventually("all were taken down", || last()["cached_tokens"]["actual"].as_u64() > Some(0));
    assert_eq!(last()["cached_tokens"]["predicted"], Value::Null);
    assert_eq!(pod(&gateway)["predictions"]["verdict"], "unknown");
}
