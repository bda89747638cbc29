//! Predictions are checked: pods that are always mispredicted, or say nothing, are reported loudly.

use crate::support::engines::Engines;
use crate::support::gateway::{Gateway, eventually};
use serde_json::{Value, json};

/// A gateway that follows the engine's events, after enough answers for a verdict.
fn after_answers(engines: &Engines) -> Gateway {
    after_answers_by("cache-aware", engines)
}

fn after_answers_by(policy: &str, engines: &Engines) -> Gateway {
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
    let engines = Engines::start(&["--model", "m", "--fault", "cached-tokens=zero"]);
    let gateway = after_answers(&engines);
    let name = engines.engines[0].http.clone();
    eventually("it is logged", || gateway.log().contains("cache predictions unreliable"));
    assert!(gateway.log().contains("the pod has far fewer tokens cached than predicted"));
    let metric = format!("wornpath_pod_predictions_broken{{pod=\"{name}\"}}");
    assert_eq!(gateway.metric(&metric) as u64, 1);
    assert_eq!(pod(&gateway)["predictions"]["verdict"], "optimistic");
    assert_eq!(doubtful(&gateway), json!([name]), "and the profile's mode says so");
}

#[test]
fn a_pod_that_sends_no_events_although_it_should_is_reported_in_log_metric_and_admin() {
    let silent = ["--model", "m", "--fault", "lose-tail", "--fault", "no-replay"];
    let engines = Engines::start(&silent);
    let gateway = after_answers(&engines);
    let name = engines.engines[0].http.clone();
    eventually("it is logged", || gateway.log().contains("no cache events received"));
    assert_eq!(gateway.metric(&format!("wornpath_pod_events_silent{{pod=\"{name}\"}}")) as u64, 1);
    assert_eq!(pod(&gateway)["events"]["silent"], true);
    assert_eq!(doubtful(&gateway), json!([name]));
}

/// Without events the router goes by what it sent for ten seconds, which comes true for any repeat,
/// whatever its tokens are.
#[test]
fn an_unconfirmed_repeat_does_not_count_as_a_prediction() {
    let engines = Engines::start(&["--model", "m", "--fault", "lose-tail", "--fault", "no-replay"]);
    let gateway = after_answers(&engines);
    let name = &engines.engines[0].http;
    let metric = |it: &str| {
        let labels = format!("{{profile=\"cache-aware\",pod=\"{name}\"}}");
        gateway.metric(&format!("wornpath_{it}{labels}")) as u64
    };
    eventually("all are counted", || {
        metric("predictions_checked_total") + metric("predictions_speculative_total") == 40
    });
    // Of the first nothing was predicted; no others began anew unless ten seconds passed between
    // two.
    let checked = metric("predictions_checked_total");
    assert!((1..4).contains(&checked), "{checked}");
    assert_eq!(metric("cached_tokens_predicted_total"), 0, "nothing that was checked had a hit");
    let last = gateway.ask("GET", "/decisions?last=1", "").json()["decisions"][0].clone();
    let cached = &last["cached_tokens"];
    assert_eq!(cached["speculative"], true, "{last}");
    assert!(cached["predicted"] == cached["actual"] && cached["actual"].as_u64() > Some(1000));
    assert_eq!(pod(&gateway)["predictions"]["verdict"], "unknown");
}

#[test]
fn a_pod_with_correct_predictions_is_not_reported() {
    let engines = Engines::start(&["--model", "m"]);
    let gateway = after_answers(&engines);
    let name = engines.engines[0].http.clone();
    eventually("it is judged", || pod(&gateway)["predictions"]["verdict"] == "good");
    let labels = format!("{{profile=\"cache-aware\",pod=\"{name}\"}}");
    let checked = gateway.metric(&format!("wornpath_predictions_checked_total{labels}")) as u64;
    assert!(checked > 20, "of 40 that follow each other, events confirmed only {checked}");
    assert_eq!(gateway.metric(&format!("wornpath_pod_events_silent{{pod=\"{name}\"}}")) as u64, 0);
    assert_eq!(doubtful(&gateway), json!([]));
    let cache = gateway.ask("GET", "/profiles", "").json()["profiles"][0]["cache"].clone();
    assert_eq!(cache["mode"], "events", "{cache}");
}

#[test]
fn transferred_kv_cache_is_no_hit_and_prefills_cached_tokens_are_compared() {
    let engines = Engines::start(&["--engines", "2", "--model", "m"]);
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
    eventually("all are counted", || {
        let speculative = of("predictions_speculative_total", "prefill");
        of("predictions_checked_total", "prefill") + speculative == 40
    });
    let own = engines.metric(0, "vllm:prefix_cache_hits_total") as u64;
    assert_eq!(of("cached_tokens_total", "prefill"), own, "as the engine itself counts");
    assert!(own > 30 * 1000, "{own}");
    assert_eq!(of("cached_tokens_total", "decode") + of("predictions_checked_total", "decode"), 0);
    let verdict = |at: usize| {
        gateway.ask("GET", "/pods", "").json()["pods"][at]["predictions"]["verdict"].clone()
    };
    eventually("prefill is judged", || verdict(0) == "good");
    assert_eq!(verdict(1), "unknown", "{}", gateway.log());
    eventually("their events came", || expected(&gateway) == 0);
    let refused = json!({"prompt": "other words ".repeat(100), "n": 2, "max_tokens": 2});
    assert_eq!(gateway.post("/v1/completions", &refused).status, 400);
    assert_eq!(expected(&gateway), 0, "neither of prefill, which refused it, nor of decode");
    let last = gateway.ask("GET", "/decisions?last=2", "").json()["decisions"][1].clone();
    assert_eq!((&last["pod"], &last["computed_by"]), (&json!("decode"), &json!("prefill")));
    assert_eq!(last["cached_tokens"]["predicted"], last["cached_tokens"]["actual"], "{last}");
}

#[test]
fn a_profile_that_does_not_look_predicts_nothing_rather_than_zero() {
    let engines = Engines::start(&["--model", "m"]);
    let gateway = after_answers_by("round-robin", &engines);
    let labels = format!("{{profile=\"round-robin\",pod=\"{}\"}}", engines.engines[0].http);
    let metric = |name: &str| gateway.metric(&format!("{name}{labels}")) as u64;
    eventually("answers are counted", || metric("wornpath_cached_tokens_total") > 0);
    assert_eq!(metric("wornpath_predictions_checked_total"), 0);
    assert!(metric("wornpath_prompt_tokens_told_total") > metric("wornpath_cached_tokens_total"));
}

#[test]
fn a_profile_that_does_not_look_at_prompts_predicts_nothing_and_is_never_wrong() {
    let engines = Engines::start(&["--model", "m"]);
    let arguments = ["--policy", "round-robin", "--admin", "127.0.0.1:0"];
    let gateway = Gateway::in_front_of(&engines, &arguments);
    let body = json!({"prompt": "the same words again and again ".repeat(40), "max_tokens": 1});
    for _ in 0..40 {
        assert_eq!(gateway.post("/v1/completions", &body).status, 200);
    }
    let last = || gateway.ask("GET", "/decisions?last=1", "").json()["decisions"][0].clone();
    eventually("all were taken down", || last()["cached_tokens"]["actual"].as_u64() > Some(0));
    assert_eq!(last()["cached_tokens"]["predicted"], Value::Null);
    assert_eq!(pod(&gateway)["predictions"]["verdict"], "unknown");
}

/// Blocks that the index expects of its pods, over all of them.
fn expected(gateway: &Gateway) -> u64 {
    let index = gateway.ask("GET", "/index", "").json();
    let by_pod = index["by_pod"].as_array().unwrap();
    by_pod.iter().map(|pod| pod["expected"].as_u64().unwrap()).sum()
}

#[test]
fn usage_in_the_last_event_of_streamed_responses_is_compared_with_the_prediction() {
    let engines = Engines::start(&["--model", "m"]);
    let gateway = Gateway::in_front_of(&engines, &["--admin", "127.0.0.1:0"]);
    let input = "the same words again and again ".repeat(100);
    let body = json!({"input": input, "max_output_tokens": 3, "stream": true});
    for _ in 0..4 {
        let answer = gateway.post("/v1/responses", &body);
        assert!(answer.text.contains("event: response.completed"), "{}", answer.text);
    }
    let labels = format!("{{profile=\"cache-aware\",pod=\"{}\"}}", engines.engines[0].http);
    let metric = |name: &str| gateway.metric(&format!("wornpath_{name}{labels}")) as u64;
    eventually("all are counted", || metric("predictions_checked_total") == 4);
    let own = engines.metric(0, "vllm:prefix_cache_hits_total") as u64;
    assert!(own > 3000, "{own}");
    assert_eq!(metric("cached_tokens_total"), own, "as the engine itself counts");
    let last = gateway.ask("GET", "/decisions?last=1", "").json()["decisions"][0].clone();
    assert!(last["cached_tokens"]["predicted"].as_u64() > Some(0), "{last}");
}

#[test]
fn the_index_expects_blocks_of_accepted_requests_only() {
    let engines = Engines::start(&["--model", "m"]);
    // By text, and without the size of the cache, which would bound what it is expected to hold.
    let at = &engines.engines[0].http;
    let metrics = "metrics: \"http://127.0.0.1:1/metrics\"";
    let text = format!(
        "models: [{{name: m, tokenizer: none}}]\npods: [{{url: \"http://{at}\", {metrics}}}]\n"
    );
    let gateway = Gateway::configured("predictions_expected", &text, 1);
    let ask = |prompt: &str, max_tokens: u64| {
        let body = json!({"prompt": prompt, "max_tokens": max_tokens});
        gateway.post("/v1/completions", &body).status
    };
    let words = |count| "the same words again and again ".repeat(count);
    assert_eq!((ask(&words(100), 0), expected(&gateway)), (400, 0));
    assert_eq!(ask(&words(100), 1), 200);
    let before = expected(&gateway);
    assert!(before > 0);
    assert_eq!((ask(&words(100), 0), expected(&gateway)), (400, before), "the same prompt");
    assert_eq!((ask(&words(300), 0), expected(&gateway)), (400, before), "one that continues it");
    assert_eq!(ask(&words(30_000), 0), 400);
    eventually("nor of one that is told of apart", || expected(&gateway) == before);

    engines.set_faults(0, "{\"refuse\": 500}");
    assert_eq!((ask(&words(300), 1), expected(&gateway)), (500, before));
    engines.control("POST", "/engines/0/crash", "");
    assert_ne!(ask(&words(300), 1), 200);
    assert_eq!(expected(&gateway), before, "nor of one without a pod");
}

#[test]
fn a_refused_request_adds_nothing_to_an_approximated_cache() {
    let engines = Engines::start(&["--model", "m"]);
    let at = &engines.engines[0].http;
    let text = format!(
        "models: [{{name: m, tokenizer: none}}]\npods: [{{url: \"http://{at}\", kv_tokens: 100000}}]\n"
    );
    let gateway = Gateway::configured("predictions_refused", &text, 1);
    let ask = |prompt: &str, max_tokens: u64| {
        let body = json!({"prompt": prompt, "max_tokens": max_tokens});
        gateway.post("/v1/completions", &body).status
    };
    let guessed = || pod(&gateway)["events"]["guess"].clone();
    let words = |count| "the same words again and again ".repeat(count);
    assert_eq!(ask(&words(300), 0), 400);
    assert_eq!(guessed()["blocks"], 0, "{}", guessed());
    assert_eq!(ask(&words(100), 1), 200);
    let before = guessed();
    assert!(before["blocks"].as_u64() > Some(0), "{before}");
    assert_eq!(ask(&words(300), 0), 400);
    assert_eq!(guessed(), before);
}

#[test]
fn a_guessed_cache_has_room_for_the_tokens_it_is_said_to_have_also_where_text_is_matched() {
    let engines = Engines::start(&["--model", "m"]);
    let at = &engines.engines[0].http;
    let text = format!(
        "models: [{{name: m, tokenizer: none}}]\npods: [{{url: \"http://{at}\", kv_tokens: 1000}}]\n"
    );
    let gateway = Gateway::configured("predictions_room", &text, 1);
    let body = json!({"prompt": "the same words again and again ".repeat(1000), "max_tokens": 1});
    assert_eq!(gateway.post("/v1/completions", &body).status, 200);
    let guess = &pod(&gateway)["events"]["guess"];
    // Seven chunks of 512 bytes, each of which counts as 128 tokens.
    assert_eq!(*guess, json!({"blocks": 7, "tokens": 896, "capacity_tokens": 1000}));
}
