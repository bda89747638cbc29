//! Tests of described fleets.

use std::sync::Arc;
use wornpath_index::Moment;

use super::*;
use crate::fleet::Reservation;
use crate::models::{Tokenize, TokenizeError};
use crate::request::{ModelChoice, Prompt, Request};

const FLEET: &str = "\
models:
  - {name: m, block_size: 4}
pods:
  - name: a
    requests: 3
    prefill_tokens: 100
    decode_tokens: 50
    kv_usage: 0.5
    labels: {gpu: h100, slot: 3}
    zone: z1
    holds:
      - {tokens: [1, 2, 3, 4, 5, 6, 7, 8], first: 4}
  - {name: b, role: [prefill, decode], health: down}
";

#[test]
fn a_described_load_and_cache_are_what_the_pods_have() {
    let described = FleetSpec::read("f.yaml", FLEET).unwrap();
    let roles: Vec<_> = described.roles().iter().map(ToString::to_string).collect();
    assert_eq!(roles, ["serve", "prefill", "decode"]);
    let built = described.build(Moment::from_secs(60), |_| None).unwrap();
    let pod = &built.fleet.pods()[0];
    let pod_state = pod.state();
    assert_eq!(
        (pod_state.requests(), pod_state.prefill_tokens(), pod_state.decode_tokens()),
        (3, 100, 50)
    );
    assert_eq!(pod.facts().label(&"slot".into()).unwrap().as_str(), "3");
    assert_eq!(built.fleet.pods()[1].state().health(), Health::Down);
    let mut chain = Vec::new();
    let model = &built.models.all()[0];
    let choice = crate::request::ModelChoice { base: "m".into(), lora: None };
    model.hasher().hash_tokens(
        &[1, 2, 3, 4, 5, 6, 7, 8],
        built.models.root(&choice, None),
        &mut chain,
    );
    let mut answer = wornpath_index::Depths::default();
    built.index.reader().lookup(&chain, &mut answer);
    assert_eq!(answer.depth(pod.slot()), 1, "only the first four tokens");
}

#[test]
fn what_is_wrong_with_a_description_is_shown_where_it_stands() {
    let text = "pods:\n  - {name: a, kv_usage: 2, holds: [{first: 3}]}\n  - {nam: b}\nnodes: 3\n";
    let shown = FleetSpec::read("f.yaml", text).unwrap_err().to_string();
    for part in [
        "`kv_usage` of `pods` is `2`",
        "a held prompt is one of `tokens`, `text` and `messages`",
        "f.yaml:3:6",
        "did you mean `name`?",
        "a fleet has no key `nodes`",
    ] {
        assert!(shown.contains(part), "{part:?} is not in\n{shown}");
    }
}

#[test]
fn tokens_are_split_over_the_requests_that_are_given() {
    let text = "pods:\n  - {name: a, requests: 4, prefill_tokens: 100, decode_tokens: 200}\n  \
                - {name: b, prefill_tokens: 7, decode_tokens: 5}\n  - {name: c, requests: 2, prefill_tokens: 9}\n";
    let built = FleetSpec::read("f.yaml", text).unwrap().build(Moment::ZERO, |_| None).unwrap();
    let seen = |at: usize| {
        let pod_state = built.fleet.pods()[at].state();
        (
            pod_state.requests(),
            pod_state.decoding(),
            pod_state.prefill_tokens(),
            pod_state.decode_tokens(),
        )
    };
    assert_eq!(seen(0), (4, 3, 100, 200));
    assert_eq!(seen(1), (2, 1, 7, 5));
    assert_eq!(seen(2), (2, 0, 9, 0));
    let pending: Vec<_> = built.load.iter().map(Reservation::pending_tokens).collect();
    assert_eq!(pending, [100, 0, 0, 0, 7, 0, 5, 4]);
}

#[test]
fn what_no_fleet_can_be_is_refused() {
    for (pod, message) in [
        ("name: a, requests: 1, prefill_tokens: 100, decode_tokens: 200", "are those of 2"),
        ("name: a, requests: 0, decode_tokens: 200", "are those of 1"),
        ("name: a, model: mm", "`models` of the fleet has no `mm`"),
        ("name: a, model: []", "`model` of `pods` is empty"),
        ("name: a, role: []", "`role` of `pods` is empty"),
        ("name: a, roles: [serve]", "`roles` of `pods` is called `role` now"),
        ("name: a, models: [m]", "`models` of `pods` is called `model` now"),
        ("name: a, engine: 8b-h200", "`engine` of `pods` is called `speed` now"),
        ("name: a, events: exact", "`events` of `pods` is called `event_trust` now"),
        ("name: ''", "a name is empty"),
        ("name: a}, {name: a", "two pods are called `a`"),
        ("name: a, holds: [{tokens: [1, -1]}]", "`-1` in `tokens` of `holds` is not a token id"),
        ("name: a, holds: [{text: b, lora: l}]", "which the pod does not serve"),
        ("name: a, holds: [{text: b, messages: []}]", "a held prompt is one of"),
        ("name: a, holds: [{messages: [{content: b}]}]", "a message has no `role`"),
    ] {
        let text = format!("models: [{{name: m}}]\npods: [{{{pod}}}]\n");
        let problems = FleetSpec::read("f.yaml", &text).unwrap_err();
        assert_eq!(problems.all().len(), 1, "{problems}");
        assert!(problems.all()[0].message().contains(message), "{problems}");
    }
    let twice = "models: [{name: m}, {name: m}]\npods: [{name: a}]\n";
    let problems = FleetSpec::read("f.yaml", twice).unwrap_err();
    assert_eq!(problems.all()[0].message(), "two models are called `m`");
    let unknown = FleetSpec::read("f.yaml", "pods: [{name: a, holds: [{text: b}]}]\n");
    assert!(unknown.unwrap_err().to_string().contains("the fleet describes no model"));
}

/// The words of a chat, each as one token.
struct Spoken;

impl Tokenize for Spoken {
    fn tokenize(&self, request: &Request, tokens: &mut Vec<u32>) -> Result<(), TokenizeError> {
        let Prompt::Chat { messages, .. } = &request.prompt else {
            return Err(TokenizeError::NoTemplate);
        };
        let contents = messages.iter().filter_map(|message| message["content"].as_str());
        tokens.extend(contents.flat_map(str::split_whitespace).map(|word| word.len() as u32));
        Ok(())
    }
}

#[test]
fn a_held_conversation_is_found_by_its_request_with_the_same_adapter_and_salt() {
    let text = "models: [{name: m, block_size: 2, tokenizer: spoken}]\npods:\n  - name: a\n    loras: [l]\n    holds:\n      \
                - {messages: [{role: user, content: a bb ccc dddd}], lora: l, salt: s}\n";
    let described = FleetSpec::read("f.yaml", text).unwrap();
    let built = described.build(Moment::ZERO, |_| Some(Arc::new(Spoken))).unwrap();
    let depth = |lora: Option<&str>, salt: Option<&str>| {
        let choice = ModelChoice { base: "m".into(), lora: lora.map(Into::into) };
        let mut chain = Vec::new();
        let root = built.models.root(&choice, salt);
        built.models.all()[0].hasher().hash_tokens(&[1, 2, 3, 4], root, &mut chain);
        let mut answer = wornpath_index::Depths::default();
        built.index.reader().lookup(&chain, &mut answer);
        answer.depth(built.fleet.pods()[0].slot())
    };
    assert_eq!(depth(Some("l"), Some("s")), 2);
    assert_eq!([depth(None, Some("s")), depth(Some("l"), None)], [0, 0]);
}

#[test]
fn a_held_text_needs_a_tokenizer() {
    let text = "models: [{name: m}]\npods: [{name: a, holds: [{text: hello}]}]\n";
    let error = FleetSpec::read("f.yaml", text).unwrap().build(Moment::ZERO, |_| None).unwrap_err();
    assert_eq!(
        error.to_string(),
        "pod `a` holds a text or messages, but model `m` cannot tokenize them: \
         no tokenizer is configured; configure one, or use token ids"
    );
}
