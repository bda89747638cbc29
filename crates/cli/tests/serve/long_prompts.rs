//! Long prompts: one tenant's that are slow to tokenize do not delay another's, and what is not
//! tokenized is routed without a prediction, as is what the router cannot read.

use crate::support::engines::{Engines, Exchange, Response};
use crate::support::gateway::{Gateway, eventually, eventually_within, folder};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

const ASK: &str = "/v1/completions";
const TOKENIZER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../blocks/tests/models/tiny-llama");
/// The digests of the keys `a` and `b`.
const TENANTS: &str = "tenants:
  - {name: a, key_digest: \"sha256:ca978112ca1bbdcafac231b39a23dc4da786eff8147c4e72b9807785afee48bb\"}
  - {name: b, key_digest: \"sha256:3e23e8160039594a33894f6564e1b1348bbd7a0088d42c4acb73eeaed59c009d\"}\n";

fn ask_as(gateway: &Gateway, tenant: &str, model: &str, prompt: &str) -> Response {
    let body = json!({"model": model, "prompt": prompt, "max_tokens": 2});
    let key = format!("Bearer {tenant}");
    Exchange::open_with(&gateway.address, ASK, &[("authorization", &key)], &body).finish().unwrap()
}

/// A prompt of 108 KB with a beginning of its own.
fn prompt(number: usize) -> String {
    let line = |at: usize| format!("Line {at} of text {number}, with words like any other text.\n");
    let mut text: String = (0..).map(line).take(2000).collect();
    text.truncate(108_000);
    text
}

/// So many bytes of letters in parts of `part` bytes: each is one piece for the tokenizer.
fn letters(bytes: usize, part: usize) -> String {
    let unbroken = "internationalization".repeat(part / 20);
    let parts = std::iter::repeat_n(unbroken, bytes / part);
    parts.collect::<Vec<_>>().join(" ")
}

fn untokenized(gateway: &Gateway, reason: &str) -> usize {
    gateway.metric(&format!("wornpath_prompts_untokenized_total{{reason=\"{reason}\"}}")) as usize
}

#[test]
fn texts_that_are_slow_to_tokenize_delay_no_other_tenant_and_are_routed_without_a_prediction() {
    let heavy = Engines::start(&["--model", "heavy", "--kv-tokens", "2000000"]);
    let exact = Engines::start(&["--model", "m", "--tokenizer", TOKENIZER]);
    let at = &exact.engines[0];
    let text = format!(
        "models: [{{name: heavy, tokenizer: \"{TOKENIZER}\"}}, {{name: m, tokenizer: \"{TOKENIZER}\"}}]\n\
         limits: {{tokenize_time: 4s}}\npods:\n  - {{name: heavy, model: heavy, url: \"http://{}\"}}\n  \
         - {{name: exact, model: m, url: \"http://{}\", events: [\"zmq://{}?replay={}\"]}}\n{TENANTS}",
        heavy.engines[0].http, at.http, at.events, at.replay
    );
    let gateway = Gateway::configured("long_prompts", &text, 2);
    let time_of = |number: usize| {
        let started = Instant::now();
        let answer = ask_as(&gateway, "b", "m", &prompt(number));
        assert_eq!((answer.status, answer.pod()), (200, "exact"), "{}", answer.text);
        started.elapsed()
    };
    time_of(0);
    let alone = time_of(1).max(time_of(2));
    let unbroken = letters(15_000_000, 15_000_000);
    let broken = letters(15_000_000, 1_000_000);
    let beside = std::thread::scope(|scope| {
        let flood: Vec<_> = [&unbroken, &broken, &unbroken, &broken]
            .map(|text| scope.spawn(|| ask_as(&gateway, "a", "heavy", text)))
            .into();
        eventually_within(Duration::from_secs(30), "the tokenizer gets to the flood", || {
            untokenized(&gateway, "no_split_point") > 0
        });
        let beside = (3..7).map(time_of).max();
        for request in flood {
            let answer = request.join().unwrap();
            assert_eq!((answer.status, answer.pod()), (400, "heavy"), "the engine refuses it");
        }
        beside.unwrap()
    });
    println!("alone {alone:?}, beside the flood {beside:?}");
    assert!(beside < 10 * alone + Duration::from_millis(1500), "{alone:?}, {beside:?}");
    // On a busy machine a long piece may run out of time before it is looked at.
    let long_pieces = untokenized(&gateway, "no_split_point");
    let given_up = untokenized(&gateway, "too_long") + untokenized(&gateway, "timeout");
    assert!(matches!((long_pieces, given_up), (1..=2, 2..=3)), "{long_pieces}, {given_up}");
    assert_eq!(long_pieces + given_up, 4);
    assert!(gateway.log().contains("prompt not tokenized"), "{}", gateway.log());
    let again = ask_as(&gateway, "b", "m", &prompt(3));
    assert!(again.cached_tokens() > 10_000, "{}", again.text);
    let decisions = || gateway.ask("GET", "/decisions?last=100", "").json()["decisions"].clone();
    eventually("all are decided", || decisions().as_array().unwrap().len() == 12);
    for decision in decisions().as_array().unwrap() {
        let cached = &decision["cached_tokens"];
        match decision["pod"].as_str() {
            Some("heavy") => assert_eq!(cached["predicted"], Value::Null, "{decision}"),
            _ => assert_eq!(cached["predicted"], cached["actual"], "{decision}"),
        }
    }
}

#[test]
fn a_prompt_longer_than_the_configured_context_is_refused_without_tokenizing_all_of_it() {
    let engines = Engines::start(&["--model", "m", "--tokenizer", TOKENIZER]);
    let text = format!(
        "models: [{{name: m, tokenizer: \"{TOKENIZER}\"}}]\n\
         pods: [{{name: short, model: m, url: \"http://{}\", context_tokens: 5000}}]\n",
        engines.engines[0].http
    );
    let gateway = Gateway::configured("long_prompts_context", &text, 1);
    let refused = gateway.post(ASK, &json!({"prompt": prompt(0), "max_tokens": 2}));
    assert_eq!(refused.status, 400, "{}", refused.text);
    assert!(refused.text.contains("context window exceeded"), "{}", refused.text);
    assert_eq!(untokenized(&gateway, "too_long"), 1);
    let fits = gateway.post(ASK, &json!({"prompt": &prompt(0)[..4000], "max_tokens": 2}));
    assert_eq!(fits.status, 200, "{}", fits.text);
}

/// Engines may be started with another template than the one in the model's folder.
#[test]
fn a_chat_that_the_template_refuses_goes_to_the_engine_without_a_prediction() {
    let engines = Engines::start(&["--model", "m"]);
    let model = folder("long_prompts_template").join("model");
    std::fs::create_dir_all(&model).unwrap();
    let tokenizer = format!("{TOKENIZER}/tokenizer.json");
    std::fs::copy(tokenizer, model.join("tokenizer.json")).unwrap();
    let template = "{% if messages[0].role == 'system' %}{{ raise_exception('no system role') }}{% endif %}\
                    {{ messages[0].content }}";
    let config = json!({"chat_template": template});
    std::fs::write(model.join("tokenizer_config.json"), config.to_string()).unwrap();
    let text = format!(
        "models: [{{name: m, tokenizer: \"{}\"}}]\npods: [{{name: a, model: m, url: \"http://{}\"}}]\n",
        model.display(),
        engines.engines[0].http
    );
    let gateway = Gateway::configured("long_prompts_refused", &text, 1);
    let chat = |role: &str| {
        let messages = json!([{"role": role, "content": "be brief"}]);
        gateway.post("/v1/chat/completions", &json!({"messages": messages, "max_tokens": 2}))
    };
    assert_eq!(chat("user").status, 200);
    assert_eq!(untokenized(&gateway, "template_failed"), 0);
    for _ in 0..2 {
        let answer = chat("system");
        assert_eq!(answer.status, 200, "{}", answer.text);
    }
    assert_eq!(untokenized(&gateway, "template_failed"), 2);
    let log = gateway.log();
    let lines: Vec<_> = log.lines().filter(|line| line.contains("prompt not tokenized")).collect();
    assert_eq!(lines.len(), 1, "{log}");
    assert!(lines[0].contains("template_failed"), "{log}");
}
