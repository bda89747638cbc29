//! Whatever the order of batches of one epoch, and however often they repeat, the index ends the
//! same.

use crate::engine::{Engine, Random};
use crate::stores::served_model;
use proptest::prelude::*;
use wornpath_events::{BatchId, Capabilities, Delivery, Epoch, FeedRules, PodFeed, SourceMessage};
use wornpath_index::Moment;
use wornpath_index::{BlockDigest, Index, IndexLimits};

const BATCHES: u64 = 60;

/// Applies batches of the current epoch in the given order, mixed with those of the epoch before.
fn apply(engine: &Engine, before: &Engine, order: &[(u64, bool)]) -> [BlockDigest; 4] {
    let index = Index::new(IndexLimits::default(), 1);
    let id = index.add_pod().unwrap();
    let mut pod = PodFeed::new(&index, id, served_model(), FeedRules::default()).unwrap();
    let source = pod.add_source(Capabilities { replay: true, snapshot: true, relayed: false });
    let mut writer = index.writer();
    let first = BatchId { epoch: Some(Epoch(engine.epoch)), ..BatchId::default() };
    pod.handle(&mut writer, source, SourceMessage::Started(first.epoch.unwrap()), Moment::ZERO)
        .unwrap();
    for (sequence, old) in order {
        let from = if *old { before } else { engine };
        let id = from.id(*sequence);
        let batch = Box::new(from.batches[*sequence as usize].clone());
        let said = SourceMessage::Batch { id, delivery: Delivery::Live, batch };
        pod.handle(&mut writer, source, said, Moment::ZERO).unwrap();
    }
    index.digest(id).unwrap().tiers
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]
    #[test]
    fn any_order_and_repetition_gives_one_state_without_blocks_of_an_older_epoch(
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
