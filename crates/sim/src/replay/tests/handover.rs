//! Replays of plans with a prefill and a decode step.

use super::*;
use crate::StepLoad;
use wornpath_routing::Role;

const SPLIT: ProfileText<'_> = ProfileText {
    name: "prefill-decode",
    yaml: include_str!("../../../../../profiles/prefill-decode.yaml"),
};

fn split(prefill: usize, decode: usize) -> ReplayFleet {
    let roles = [(Role::named(Role::PREFILL), prefill), (Role::named(Role::DECODE), decode)];
    fleet(0).with_roles(&roles)
}

#[test]
fn a_split_request_takes_its_prefill_the_transfer_and_a_step_and_the_next_one_is_not_split() {
    let line = |time: u64| {
        let ids: Vec<u64> = (0..16).collect();
        format!(
            "{{\"timestamp\": {time}, \"input_length\": 8000, \"output_length\": 9, \"hash_ids\": {ids:?}}}\n"
        )
    };
    let trace = Trace::read("two", &(line(0) + &line(5_000)), BLOCK).unwrap();
    let records = replay(&trace, SPLIT, &split(1, 1)).unwrap();
    let [first, second] = records[..] else { panic!("two requests") };
    let engine = EngineProfile::built_in("8b-h200").unwrap();
    let step = |past, tokens| {
        let mut load = StepLoad::default();
        load.add_chunk(past, tokens);
        engine.step_cost().of(&load)
    };
    let prefilled = engine.request_time() + step(0, 8_000);
    let decoded = engine.request_time() + engine.network_time(7_999) + step(7_999, 1);
    assert_eq!(first.prefilled, Some((Duration::ZERO, 0)));
    assert_eq!(first.sent, Some((prefilled, 1)));
    assert_eq!(first.first_token, Some(prefilled + decoded));
    assert_eq!((first.cached_tokens, second.cached_tokens), (0, 15 * 512));
    assert_eq!((second.prefilled, second.sent.map(|(_, pod)| pod)), (None, Some(1)));
}

#[test]
fn every_split_request_finishes_although_prefill_engines_hold_few_prompts() {
    let trace = conversations(60, Duration::from_millis(20));
    let always = SPLIT.yaml.replace("min_uncached_tokens: 2048", "min_uncached_tokens: 1");
    let fleet = ReplayFleet { kv_tokens: Some(6_000), ..split(1, 2) };
    for yaml in [SPLIT.yaml, &always] {
        let records = replay(&trace, ProfileText { yaml, ..SPLIT }, &fleet).unwrap();
        assert!(records.iter().all(|record| record.end.is_some()), "{records:?}");
        assert!(records.iter().all(|record| record.sent.unwrap().1 > 0), "only decode pods answer");
        assert!(records.iter().all(|record| record.prefilled.is_none_or(|(_, pod)| pod == 0)));
        let split = records.iter().filter(|record| record.prefilled.is_some()).count();
        assert_eq!(split == records.len(), yaml != SPLIT.yaml, "{split}");
    }
}

#[test]
fn requests_on_a_drained_prefill_or_decode_pod_are_decided_again() {
    let trace = conversations(60, Duration::from_millis(20));
    for pod in [0, 2] {
        let drained = Some((pod, Duration::from_millis(700)));
        let fleet = ReplayFleet { drained, ..split(2, 2) };
        let records = replay(&trace, SPLIT, &fleet).unwrap();
        assert!(records.iter().all(|record| record.end.is_some()));
        let after = |record: &&RequestRecord| record.arrival > Duration::from_millis(700);
        let used = |record: &RequestRecord| {
            [record.prefilled, record.sent].into_iter().flatten().any(|(_, at)| at == pod)
        };
        assert!(!records.iter().filter(after).any(used));
    }
}

#[test]
fn a_plan_that_is_no_handover_is_refused() {
    let trace = conversations(1, Duration::from_millis(20));
    let roles = ["preprocess", "prefill", "decode"].map(|role| (Role::named(role), 1));
    let fleet = fleet(0).with_roles(&roles);
    let yaml = include_str!("../../../../../profiles/preprocess-prefill-decode.yaml");
    let profile = ProfileText { name: "three", yaml };
    let records = replay(&trace, profile, &fleet).unwrap();
    assert!(records.iter().all(|record| record.end.is_none()));
}
