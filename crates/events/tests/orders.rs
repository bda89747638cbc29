//! Whatever the order in which batches of one life come, and however often, the index ends the same.
#![allow(clippy::unwrap_used, reason = "a panic is how a test says no")]

#[path = "chaos/engine.rs"]
#[allow(dead_code, reason = "only the engine is needed here, not its faults")]
mod engine;
mod saying;

use engine::{Engine, Random};
use proptest::prelude::*;
use saying::serving;
use std::time::Duration;
use wornpath_events::{BatchId, Capabilities, Delivery, Epoch, FeedRules, PodFeed, SourceMessage};
use wornpath_index::{BlockDigest, Index, IndexLimits};

const BATCHES: u64 = 60;

/// The last life's batches, in the given order, mixed with those of the life before.
fn apply(engine: &Engine, before: &Engine, order: &[(u64, bool)]) -> [BlockDigest; 4] {
    let index = Index::new(IndexLimits::default(), 1);
    let id = index.add_pod().unwrap();
    let mut pod = PodFeed::new(&index, id, serving(), FeedRules::default()).unwrap();
    let source = pod.add_source(Capabilities { replay: true, snapshot: true, relayed: false });
    let mut writer = index.writer();
    let first = BatchId { epoch: Some(Epoch(engine.life)), ..BatchId::default() };
    pod.hear(&mut writer, source, SourceMessage::Started(first.epoch.unwrap()), Duration::ZERO)
        .unwrap();
    for (sequence, old) in order {
        let from = if *old { before } else { engine };
        let heading = from.heading(*sequence);
        let batch = Box::new(from.said[*sequence as usize].clone());
        let said = SourceMessage::Batch { heading, via: Delivery::Live, batch };
        pod.hear(&mut writer, source, said, Duration::ZERO).unwrap();
    }
    index.digest(id).unwrap().tiers
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]
    #[test]
    fn any_order_and_repetition_gives_one_state_and_an_older_life_has_no_part_in_it(
        seed in any::<u64>(),
        extra in prop::collection::vec((0..BATCHES, any::<bool>()), 0..100),
        shuffle in any::<u64>(),
    ) {
        let mut random = Random(seed);
        let mut before = Engine::new();
        (0..BATCHES).for_each(|_| before.step(&mut random));
        let mut engine = Engine::new();
        engine.restart();
        (0..BATCHES).for_each(|_| engine.step(&mut random));

        let mut order: Vec<_> = (0..BATCHES).map(|sequence| (sequence, false)).chain(extra).collect();
        let mut random = Random(shuffle);
        for last in (1..order.len()).rev() {
            order.swap(last, random.below(last as u64 + 1) as usize);
        }
        prop_assert_eq!(apply(&engine, &before, &order), engine.digest().tiers);
    }
}
