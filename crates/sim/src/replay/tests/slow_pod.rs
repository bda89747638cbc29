//! A pod that is far slower than its equals gets little traffic, and its share again when it has
//! recovered.

use super::*;

/// The pod that is slow.
const SLOW: usize = 2;

/// Requests one after another, `pause` apart, whose prompts of 2,000 tokens have nothing in common.
fn one_at_a_time(requests: u64, pause: Duration) -> Trace {
    let mut text = String::new();
    for turn in 0..requests {
        let start = match turn {
            0 => "\"timestamp\": 0".to_owned(),
            _ => format!("\"delay\": {}", pause.as_millis()),
        };
        let ids: Vec<u64> = (0..4).map(|block| 4 * turn + block).collect();
        writeln!(
            text,
            "{{{start}, \"session_id\": 1, \"input_length\": 2000, \"output_length\": 40, \"hash_ids\": {ids:?}}}"
        )
        .unwrap();
    }
    Trace::read("one at a time", &text, BLOCK).unwrap()
}

fn to_slow(records: &[RequestRecord]) -> usize {
    records.iter().filter(|record| record.sent.is_some_and(|(_, pod)| pod == SLOW)).count()
}

#[test]
fn a_slow_pod_gets_at_most_five_of_eighty_requests_of_an_idle_fleet() {
    let trace = one_at_a_time(80, Duration::ZERO);
    for (pods, times) in [(4, 20.0), (4, 10.0), (8, 20.0), (16, 20.0), (16, 10.0), (16, 5.0)] {
        for seed in 1..=10 {
            let fleet = ReplayFleet { slow: vec![(SLOW, times)], seed, ..fleet(pods) };
            let count = to_slow(&replay(&trace, CACHE_AWARE, &fleet).unwrap());
            assert!((1..=5).contains(&count), "{pods} pods, x{times}, seed {seed}: {count}");
        }
    }
}

#[test]
fn a_pod_that_is_less_than_three_times_as_slow_keeps_its_share() {
    let trace = one_at_a_time(80, Duration::ZERO);
    let counts = (1..=10).map(|seed| {
        let fleet = ReplayFleet { slow: vec![(SLOW, 2.0)], seed, ..fleet(4) };
        to_slow(&replay(&trace, CACHE_AWARE, &fleet).unwrap())
    });
    assert!(counts.sum::<usize>() > 150);
}

#[test]
fn a_pod_that_has_recovered_has_its_share_again_within_three_minutes() {
    const RECOVERED: u64 = 1_000;
    let trace = one_at_a_time(2_500, Duration::from_millis(500));
    let fleet = ReplayFleet {
        slow: vec![(SLOW, 20.0)],
        recovers: Some((SLOW, Duration::from_secs(RECOVERED))),
        ..fleet(4)
    };
    let records = replay(&trace, CACHE_AWARE, &fleet).unwrap();
    let is_within = |record: &&RequestRecord, from: u64, to: u64| {
        record.sent.is_some_and(|(at, _)| (from..to).contains(&at.as_secs()))
    };
    let share = |from: u64, to: u64| {
        let within: Vec<_> =
            records.iter().filter(|record| is_within(record, from, to)).copied().collect();
        to_slow(&within) as f64 / within.len() as f64
    };
    assert!(share(0, RECOVERED) < 0.02, "{}", share(0, RECOVERED));
    let later = share(RECOVERED + 180, RECOVERED + 600);
    // More than its share: its KV cache is emptier than those of the others.
    assert!(later > 0.25, "{later}");
}
