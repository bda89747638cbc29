//! The guarantees of a replay, on small generated traffic.

mod handover;
mod slow_pod;

use super::*;
use crate::EngineProfile;
use std::fmt::Write;
use std::num::NonZeroUsize;
use std::time::Duration;
use wornpath_routing::Rng;

const LEAST_LOAD: ProfileText<'_> =
    ProfileText { name: "least-load", yaml: include_str!("../../../../profiles/least-load.yaml") };
const CACHE_AWARE: ProfileText<'_> = ProfileText {
    name: "cache-aware",
    yaml: include_str!("../../../../profiles/cache-aware.yaml"),
};

const BLOCK: NonZeroUsize = NonZeroUsize::new(512).unwrap();

fn fleet(pods: usize) -> ReplayFleet {
    ReplayFleet::new(EngineProfile::built_in("8b-h200").unwrap(), pods, 1)
}

/// Sessions that share a prompt of three blocks and grow by one block a turn.
fn conversations(sessions: u64, gap: Duration) -> Trace {
    let mut rng = Rng::new(5);
    let mut text = String::new();
    for session in 0..sessions {
        let turns = 1 + rng.below(4);
        for turn in 0..turns {
            let own = (0..=turn as u64).map(|block| 1_000 * (session + 1) + block);
            let ids: Vec<u64> = (0..3).chain(own).collect();
            let start = match turn {
                0 => format!("\"timestamp\": {}", gap.as_millis() as u64 * session),
                _ => "\"delay\": 100".to_owned(),
            };
            let length = 512 * ids.len() - rng.below(512);
            let output = 1 + rng.below(200);
            writeln!(
                text,
                "{{{start}, \"session_id\": {session}, \"input_length\": {length}, \"output_length\": {output}, \"hash_ids\": {ids:?}}}"
            )
            .unwrap();
        }
    }
    Trace::read("generated", &text, BLOCK).unwrap()
}

#[test]
fn one_engine_with_an_unlimited_cache_reaches_the_ideal_hits() {
    // Far apart, so that a session has ended before the next begins.
    let trace = conversations(40, Duration::from_secs(60));
    let fleet = ReplayFleet { kv_tokens: Some(usize::MAX >> 16), ..fleet(1) };
    let records = replay(&trace, LEAST_LOAD, &fleet).unwrap();
    let found: u64 = records.iter().map(|record| record.cached_tokens as u64).sum();
    assert!(found > 0);
    assert_eq!(found, trace.ideal_hit_tokens());
}

#[test]
fn a_turn_finds_the_answer_of_the_turn_before_if_its_prompt_contains_it() {
    let turn = |start: &str, tokens: usize, output: usize, ids: &[u64]| {
        format!(
            "{{{start}, \"session_id\": 1, \"input_length\": {tokens}, \"output_length\": {output}, \"hash_ids\": {ids:?}}}\n"
        )
    };
    let text = turn("\"timestamp\": 0", 1_100, 1_200, &[1, 2, 3])
        + &turn("\"delay\": 10", 2_600, 9, &[1, 2, 4, 5, 6, 7])
        + &turn("\"delay\": 10", 2_700, 9, &[1, 2, 8, 9, 10, 11]);
    let trace = Trace::read("chat", &text, BLOCK).unwrap();
    let records = replay(&trace, CACHE_AWARE, &fleet(2)).unwrap();
    let cached: Vec<usize> = records.iter().map(|record| record.cached_tokens).collect();
    assert_eq!(cached, [0, 4 * 512, 2 * 512], "1,100 + 1,200 - 1 tokens fill four blocks");
    assert_eq!(trace.ideal_hit_tokens(), 6 * 512);
}

#[test]
fn every_request_finishes_and_sessions_keep_their_order() {
    let trace = conversations(60, Duration::from_millis(20));
    for profile in [LEAST_LOAD, CACHE_AWARE] {
        let records = replay(&trace, profile, &fleet(4)).unwrap();
        for (turn, record) in trace.turns.iter().zip(&records) {
            let first = record.first_token.unwrap();
            let end = record.end.unwrap();
            assert!(record.arrival < first && first <= end);
            if let TraceStart::After { turn, delay } = turn.start {
                assert_eq!(record.arrival, records[turn].end.unwrap() + delay);
            }
        }
        assert_eq!(replay(&trace, profile, &fleet(4)).unwrap(), records, "the same again");
    }
}

#[test]
fn a_router_that_knows_the_caches_reuses_more_than_one_that_does_not() {
    let trace = conversations(60, Duration::from_millis(200));
    let rate = |profile| {
        let records = replay(&trace, profile, &fleet(4)).unwrap();
        Summary::of(&trace, &records, 0).hit_rate
    };
    let blind = rate(LEAST_LOAD);
    let aware = rate(CACHE_AWARE);
    assert!(aware > blind + 0.03, "{aware} {blind}");
}

#[test]
fn a_request_that_cannot_be_served_fails_and_the_others_finish() {
    let trace = conversations(10, Duration::from_millis(200));
    let small = ReplayFleet { kv_tokens: Some(5 * 512), ..fleet(2) };
    let summary = Summary::of(&trace, &replay(&trace, LEAST_LOAD, &small).unwrap(), 0);
    assert!(summary.failures > 0 && summary.failures < summary.requests, "{summary:?}");
}

#[test]
fn every_request_finishes_although_events_are_late() {
    let trace = conversations(60, Duration::from_millis(20));
    let late = ReplayFleet { events_delay: Duration::from_secs(1), ..fleet(4) };
    for profile in [LEAST_LOAD, CACHE_AWARE] {
        let records = replay(&trace, profile, &late).unwrap();
        assert!(records.iter().all(|record| record.end.is_some()), "{}", profile.name);
    }
}

#[test]
fn a_drained_pod_gets_no_new_requests_and_no_request_fails() {
    let trace = conversations(60, Duration::from_millis(20));
    let drained_at = Duration::from_millis(700);
    let draining = ReplayFleet { drained: Some((1, drained_at)), ..fleet(3) };
    for profile in [LEAST_LOAD, CACHE_AWARE] {
        let records = replay(&trace, profile, &draining).unwrap();
        let at = |record: &RequestRecord| record.sent.unwrap();
        assert!(records.iter().all(|record| record.end.is_some()));
        assert!(records.iter().any(|record| at(record).1 == 1), "the pod had requests before");
        assert!(records.iter().all(|record| at(record).1 != 1 || at(record).0 < drained_at));
        assert!(
            records
                .iter()
                .all(|record| at(record).1 != 1 || record.first_token.unwrap() <= drained_at),
            "a request without a token is sent elsewhere"
        );
    }
}

#[test]
fn two_routers_serve_every_request_and_balance_worse_than_one() {
    let trace = conversations(60, Duration::from_millis(20));
    let two = ReplayFleet { routers: 2, ..fleet(4) };
    for profile in [LEAST_LOAD, CACHE_AWARE] {
        let records = replay(&trace, profile, &two).unwrap();
        assert!(records.iter().all(|record| record.end.is_some()));
    }
    let busiest = |fleet: &ReplayFleet| {
        let records = replay(&trace, LEAST_LOAD, fleet).unwrap();
        Summary::of(&trace, &records, 4).imbalance
    };
    let one = busiest(&fleet(4));
    let two = busiest(&two);
    assert!(two > one, "two know less than one: {two} {one}");
}

#[test]
fn slow_pods_get_less_once_their_pace_is_learnt_or_known() {
    let trace = conversations(300, Duration::from_millis(60));
    let slow = vec![(0, 4.0)];
    let share = |known_slow: Vec<(usize, f64)>| {
        let fleet = ReplayFleet { slow: slow.clone(), known_slow, ..fleet(4) };
        // The built-in profile has fixed rates; this test is about learnt ones.
        let yaml = CACHE_AWARE.yaml.replace(", rates: fixed", "");
        let records = replay(&trace, ProfileText { yaml: &yaml, ..CACHE_AWARE }, &fleet).unwrap();
        let on_slow = records.iter().filter(|record| record.sent.unwrap().1 == 0).count();
        on_slow as f64 / records.len() as f64
    };
    let learnt = share(Vec::new());
    let known = share(slow.clone());
    assert!(learnt < 0.22 && known < 0.22, "an equal share is a quarter: {learnt} {known}");
}

#[test]
fn wall_clock_times_and_pauses_of_years_are_replayed_at_once() {
    let line = |time: u64| {
        format!("{{\"timestamp\": {time}, \"output_length\": 3, \"prompt\": \"hello\"}}\n")
    };
    let now = 1_700_000_000_000;
    let year = 31_536_000_000;
    let text = format!("\u{feff}{}{}{}", line(now), line(now + 5), line(now + 1_000 * year));
    let trace = Trace::read("clock", &text, BLOCK).unwrap();
    let TraceStart::At(second) = trace.turns[1].start else { panic!("it has a time") };
    assert_eq!(second.as_millis(), 5);
    let records = replay(&trace, CACHE_AWARE, &fleet(2)).unwrap();
    assert!(records.iter().all(|record| record.end.is_some()), "{records:?}");
}

#[test]
fn a_pod_without_requests_counts_in_the_imbalance() {
    let trace = conversations(3, Duration::from_secs(60));
    let records = replay(&trace, LEAST_LOAD, &fleet(1)).unwrap();
    let imbalance = |pods| Summary::of(&trace, &records, pods).imbalance;
    assert!((imbalance(1) - 1.0).abs() < 1e-9 && (imbalance(8) - 8.0).abs() < 1e-9);
}
