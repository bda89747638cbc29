//! Prefill engines that are cut off or dead before the decode engine has loaded what they computed.

use crate::support::engines::{Engines, Response};
use crate::support::gateway::{Gateway, eventually};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

const ASK: &str = "/v1/completions";

/// Simulated engines behind a gateway: prefill pods, of which the first is preferred, and as the
/// last one a decode pod.
struct Split {
    engines: Engines,
    gateway: Gateway,
}

impl Split {
    fn start(test: &str, prefill_pods: usize, steps: &str) -> Self {
        let count = (prefill_pods + 1).to_string();
        let engines = Engines::start(&["--engines", &count, "--model", "m"]);
        let mut pods = String::new();
        for (number, engine) in engines.engines.iter().enumerate() {
            let role = if number == prefill_pods { "decode" } else { "prefill" };
            pods.push_str(&format!(
                "  - {{url: \"http://{}\", role: {role}, model: m, labels: {{rank: \"{number}\"}}}}\n",
                engine.http
            ));
        }
        let first = "{expression: {score: \"pod.labels.rank == '0' ? 1.0 : 0.0\"}}";
        let text = format!(
            "models: [{{name: m, tokenizer: bytes}}]\npods:\n{pods}reveal: pod\nprofiles:\n  split:\n    \
             prepare: [tokenize, block_hash]\n    selectors:\n      \
             prefill: {{filter: [healthy, model], score: [{first}], pick: max_score}}\n      \
             decode: {{filter: [healthy, model], pick: max_score}}\n    \
             workflow: {{prefill_decode: {{min_uncached_tokens: 200, {steps}}}}}\n"
        );
        let gateway = Gateway::configured(test, &text, prefill_pods + 1);
        Self { engines, gateway }
    }

    /// What the gateway shows of a pod.
    fn pod(&self, number: usize) -> Value {
        self.gateway.ask("GET", &format!("/pods/{}", self.engines.engines[number].http), "").json()
    }

    fn is(&self, number: usize, health: &str, breaker: &str) -> bool {
        let pod = self.pod(number);
        (&pod["health"], &pod["breaker"]) == (&json!(health), &json!(breaker))
    }

    fn ask(&self, prompt: &str) -> Response {
        self.gateway.post(ASK, &json!({"model": "m", "prompt": prompt, "max_tokens": 3}))
    }
}

/// A prompt that is worth two steps, and no other's.
fn long(number: usize) -> String {
    format!("{number} is worth a step of its own ").repeat(20)
}

#[test]
fn eight_requests_whose_prefill_pod_fails_before_decode_has_loaded_are_answered() {
    let steps = "prefill: {attempts: 2, then: skip}, decode: {attempts: 2, then: restart}";
    for (fault, is_dead) in
        [(r#"{"no_kv_transfer": true}"#, false), (r#"{"crash_after_prefills": 8}"#, true)]
    {
        let split = Split::start("kv_load_eight", 2, steps);
        split.engines.set_faults(0, fault);
        let asks: Vec<_> = (0..8)
            .map(|number| json!({"model": "m", "prompt": long(number), "max_tokens": 3}))
            .map(|body| split.gateway.open(ASK, &body))
            .collect();
        let decode = &split.engines.engines[2].http;
        for ask in asks {
            let answer = ask.finish().unwrap();
            assert_eq!((answer.status, answer.pod()), (200, &**decode), "{}", answer.text);
            assert_eq!(answer.header("x-wornpath-degraded"), None, "{fault}");
        }
        assert!(split.is(2, "up", "closed"), "{fault}: {}", split.pod(2));
        let cut_off = format!("url=\"http://{decode}\"");
        assert!(!split.gateway.log().contains(&cut_off), "{fault}: {}", split.gateway.log());
        let answer = split.ask("short");
        assert_eq!((answer.status, answer.pod()), (200, &**decode), "{fault}: {}", answer.text);
        let failed = Instant::now();
        if is_dead {
            eventually("the dead prefill pod is down", || split.is(0, "down", "open"));
            assert!(failed.elapsed() < Duration::from_secs(5), "it is probed at once");
        } else {
            eventually("the prefill pod that lives is up", || split.is(0, "up", "closed"));
        }
    }
}

#[test]
fn a_failed_kv_load_is_hidden_from_clients_of_every_api() {
    let steps = "prefill: {attempts: 2, then: skip}, decode: {attempts: 2, then: restart}";
    let split = Split::start("kv_load_interfaces", 2, steps);
    split.engines.set_faults(0, r#"{"no_kv_transfer": true}"#);
    let mut number = 0;
    for path in [ASK, "/v1/chat/completions", "/v1/messages", "/v1/responses"] {
        for stream in [false, true] {
            number += 1;
            let messages = json!([{"role": "user", "content": long(number)}]);
            let mut body = json!({"model": "m", "stream": stream});
            match path {
                ASK => body["prompt"] = json!(long(number)),
                "/v1/responses" => body["input"] = messages,
                _ => body["messages"] = messages,
            }
            let most = if path == "/v1/responses" { "max_output_tokens" } else { "max_tokens" };
            body[most] = json!(3);
            let answer = split.gateway.post(path, &body);
            let text = &answer.text;
            assert_eq!(answer.status, 200, "{path} {stream}: {text}");
            assert!(!text.contains("Internal") && !text.contains("event: error"), "{path}: {text}");
            assert!(text.contains("output_tokens") || text.contains("finish_reason"), "{text}");
            // Simulated engines name what they computed in OpenAI's interfaces only; in the others
            // the decode pod computes the prompt itself.
            if [ASK, "/v1/chat/completions"].contains(&path) {
                assert_eq!(answer.header("x-wornpath-degraded"), None, "{path} {stream}");
            }
            assert!(split.is(2, "up", "closed"), "{path} {stream}: {}", split.pod(2));
        }
    }
}

#[test]
fn without_another_prefill_pod_the_profile_says_what_becomes_of_a_load_that_fails() {
    let skips = Split::start("kv_load_skips", 1, "prefill: {then: skip}, decode: {then: restart}");
    skips.engines.set_faults(0, r#"{"no_kv_transfer": true}"#);
    let answer = skips.ask(&long(0));
    assert_eq!((answer.status, answer.header("x-wornpath-degraded")), (200, Some("true")));

    let fails = Split::start("kv_load_fails", 1, "decode: {then: restart}");
    fails.engines.set_faults(0, r#"{"no_kv_transfer": true}"#);
    let answer = fails.ask(&long(0));
    assert_eq!(answer.status, 502, "{}", answer.text);
    assert!(answer.text.contains("KV load failure"), "{}", answer.text);
    fails.engines.set_faults(0, "{}");
    let answer = fails.ask(&long(1));
    assert_eq!((answer.status, answer.header("x-wornpath-degraded")), (200, None));
    fails.engines.set_faults(0, r#"{"crash_after_prefills": 1}"#);
    let answer = fails.ask(&long(2));
    assert_eq!(answer.status, 502, "{}", answer.text);
    eventually("the dead prefill pod is down", || fails.is(0, "down", "open"));
    assert!(fails.is(1, "up", "closed"), "{}", fails.pod(1));
    assert_eq!(fails.ask("short").status, 200);
}
