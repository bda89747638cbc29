//! The page of a small replay.

use super::*;
use std::fmt::Write;
use std::num::NonZeroUsize;
use wornpath_sim::EngineProfile;
use wornpath_sim::replay::{ProfileText, ReplayFleet, replay};

const LEAST_LOAD: ProfileText<'_> = ProfileText {
    name: "least-load",
    yaml: include_str!("../../../../../profiles/least-load.yaml"),
};

fn trace() -> Trace {
    let mut text = String::new();
    for number in 0..40_u64 {
        let time = 400 * number;
        let ids = [number % 5, 100 + number];
        writeln!(
            text,
            "{{\"timestamp\": {time}, \"input_length\": 1000, \"output_length\": 20, \"hash_ids\": {ids:?}}}"
        )
        .unwrap();
    }
    Trace::read("t", &text, NonZeroUsize::new(512).unwrap()).unwrap()
}

#[test]
fn the_page_compares_profiles_and_its_axes_begin_at_zero() {
    let trace = trace();
    let fleet = ReplayFleet::new(EngineProfile::built_in("8b-h200").unwrap(), 3, 1);
    let records = replay(&trace, LEAST_LOAD, &fleet).unwrap();
    let failed = vec![RequestRecord::default(); records.len()];
    let run = ReplayRun { name: "a<b>", trace: &trace, records: &records, pods: 3 };
    let runs = [
        run,
        ReplayRun { name: "second", ..run },
        ReplayRun { name: "none", records: &failed, ..run },
    ];
    let page = page("t.jsonl", "facts", &runs);
    assert!(page.contains("a&lt;b&gt;") && !page.contains("a<b>"), "{page}");
    assert!(page.contains("no request was answered"), "the third profile answered none");
    assert_eq!(page.matches("<figure").count(), 6, "two distributions, four over time");
    assert_eq!(page.matches(">pod 2</span>").count(), 3, "a row for each pod of each profile");
    let axes = page.matches("style=\"--at:0.0000\">0</span>").count();
    assert!(axes >= 6, "time axes begin at zero: {axes}");
    assert!(!page.contains("NaN") && !page.contains("inf"), "{page}");
}
