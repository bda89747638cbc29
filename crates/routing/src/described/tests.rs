//! Tests of described fleets.

use super::*;

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
  - {name: b, roles: [prefill, decode], health: down}
";

#[test]
fn a_described_load_and_cache_are_what_the_pods_have() {
    let described = FleetDescription::read("f.yaml", FLEET).unwrap();
    let roles: Vec<_> = described.roles().iter().map(ToString::to_string).collect();
    assert_eq!(roles, ["serve", "prefill", "decode"]);
    let built = described.build(Duration::from_secs(60), |_| None).unwrap();
    let pod = &built.fleet.pods()[0];
    let vitals = pod.vitals();
    assert_eq!((vitals.requests(), vitals.prefill_tokens(), vitals.decode_tokens()), (3, 100, 50));
    assert_eq!(pod.facts().label(&"slot".into()).unwrap().as_str(), "3");
    assert_eq!(built.fleet.pods()[1].vitals().health(), Health::Down);
    let mut chain = Vec::new();
    let model = &built.models.all()[0];
    let choice = crate::request::ModelChoice { base: "m".into(), lora: None };
    model.hasher().hash_tokens(
        &[1, 2, 3, 4, 5, 6, 7, 8],
        built.models.root(&choice, None),
        &mut chain,
    );
    let mut answer = wornpath_index::Answer::default();
    built.index.reader().lookup(&chain, &mut answer);
    assert_eq!(answer.depth(pod.slot()), 1, "only the first four tokens");
}

#[test]
fn what_is_wrong_with_a_description_is_shown_where_it_stands() {
    let text = "pods:\n  - {name: a, kv_usage: 2, holds: [{first: 3}]}\n  - {nam: b}\nnodes: 3\n";
    let shown = FleetDescription::read("f.yaml", text).unwrap_err().to_string();
    for part in [
        "`kv_usage` of `pods` is `2`",
        "a held prompt is `tokens` or `text`",
        "f.yaml:3:6",
        "did you mean `name`?",
        "a fleet has no key `nodes`",
    ] {
        assert!(shown.contains(part), "{part:?} is not in\n{shown}");
    }
}

#[test]
fn a_held_text_needs_a_tokenizer() {
    let text = "models: [{name: m}]\npods: [{name: a, holds: [{text: hello}]}]\n";
    let error = FleetDescription::read("f.yaml", text)
        .unwrap()
        .build(Duration::ZERO, |_| None)
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        "pod `a` holds a text, but model `m` cannot tokenize it: \
         it has no tokenizer; give `tokenizer` or held `tokens`"
    );
}
