//! Speculative blocks in single cases, and against a naive model.

use super::*;
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};

const fn at(seconds: u64) -> Moment {
    Moment::from_secs(seconds)
}

fn blocks(numbers: impl IntoIterator<Item = u64>) -> Vec<BlockHash> {
    numbers.into_iter().map(BlockHash).collect()
}

fn inserted(chain: &[BlockHash], expires: Moment) -> SpeculativeBlocks {
    let mut speculative = SpeculativeBlocks::default();
    speculative.insert(None, chain, &[], expires);
    speculative
}

#[test]
fn a_renewed_block_expires_at_its_new_time_and_a_confirmed_one_never() {
    let chain = blocks(1..=4);
    let mut speculative = inserted(&chain, at(10));
    speculative.insert(None, &chain[..1], &chain[..1], at(20));
    assert!(speculative.confirm(BlockHash(4)));
    assert!(speculative.take_expired(Moment::from_millis(9_999)).is_empty());
    assert_eq!(speculative.take_expired(at(10)), blocks([3, 2]), "the end first");
    assert!(speculative.take_expired(at(19)).is_empty());
    assert_eq!(speculative.take_expired(at(20)), blocks([1]));
    assert!(speculative.is_empty() && speculative.due.is_empty() && speculative.scheduled == 0);
    assert!(!speculative.is_broken());
}

#[test]
fn a_block_expires_not_before_its_time_and_within_a_step_after_it() {
    let mut speculative = inserted(&blocks([1]), Moment::from_millis(1_001));
    assert!(speculative.take_expired(Moment::from_millis(1_049)).is_empty());
    assert_eq!(speculative.take_expired(Moment::from_millis(1_050)), blocks([1]));
}

#[test]
fn a_removed_block_without_its_prefix_is_missing_until_it_is_stored_or_its_children_are_gone() {
    let broken = || {
        let mut speculative = SpeculativeBlocks::default();
        speculative.insert(None, &blocks([1, 2, 3]), &blocks([1]), at(10));
        assert!(speculative.confirm(BlockHash(2)));
        speculative.note_missing(BlockHash(1));
        assert!(!speculative.is_broken(), "the first block has no speculative child any more");
        speculative.note_missing(BlockHash(2));
        assert!(speculative.is_broken());
        // A fresh insert elsewhere does not prolong it.
        speculative.insert(None, &blocks([7]), &[], at(60));
        speculative
    };
    let mut speculative = broken();
    assert_eq!(speculative.take_expired(at(10)), blocks([3]));
    assert!(!speculative.is_broken() && speculative.other_parents.is_empty());

    let mut speculative = broken();
    speculative.note_stored(BlockHash(2));
    assert!(!speculative.is_broken());

    let mut speculative = broken();
    assert!(speculative.confirm(BlockHash(3)));
    assert!(!speculative.is_broken());
}

#[test]
fn removed_blocks_that_speculative_ones_follow_are_expected_as_long_as_those() {
    let mut speculative = SpeculativeBlocks::default();
    speculative.insert(None, &blocks(1..=4), &blocks(1..=3), at(10));
    speculative.insert(None, &blocks([1, 2, 13]), &blocks([1, 2]), at(20));
    assert!(!speculative.is_parent(BlockHash(1)), "its child is confirmed");
    speculative.expect_again(Some(BlockHash(2)), &blocks([3]));
    speculative.expect_again(None, &blocks([1, 2]));
    assert!(!speculative.is_broken() && speculative.other_parents.is_empty());
    assert_eq!(speculative.take_expired(at(10)), blocks([4, 3]));
    assert_eq!(speculative.take_expired(at(20)), blocks([13, 2, 1]));
    assert!(speculative.is_empty() && speculative.scheduled == 0);
}

#[test]
fn a_block_inserted_again_is_renewed_although_its_child_expires_later() {
    let mut speculative = SpeculativeBlocks::default();
    speculative.insert(None, &blocks([1, 2, 3]), &blocks([1, 2]), at(100));
    speculative.note_missing(BlockHash(2));
    speculative.note_holes();
    speculative.insert(None, &blocks([1, 2]), &blocks([1]), at(60));
    assert!(!speculative.is_broken());
    speculative.insert(None, &blocks([1, 2, 3]), &blocks([1, 2, 3]), at(90));
    assert!(speculative.take_expired(at(60)).is_empty());
    assert_eq!(speculative.take_expired(at(90)), blocks([2]));

    // The same with a block between them that stays: the removed block has no speculative child.
    let mut speculative = SpeculativeBlocks::default();
    speculative.insert(None, &blocks(1..=4), &blocks(1..=3), at(100));
    speculative.note_missing(BlockHash(2));
    assert!(!speculative.is_broken());
    speculative.note_holes();
    speculative.insert(None, &blocks([1, 2]), &blocks([1]), at(60));
    speculative.insert(None, &blocks(1..=4), &blocks(1..=4), at(90));
    assert!(speculative.take_expired(at(60)).is_empty());
    assert_eq!(speculative.take_expired(at(90)), blocks([2]));
}

#[test]
fn the_child_of_a_block_inserted_again_keeps_its_expiry() {
    let mut speculative = inserted(&blocks([1, 2]), at(10));
    assert!(speculative.confirm(BlockHash(1)));
    speculative.insert(None, &blocks([1, 2]), &blocks([1, 2]), at(100));
    speculative.note_missing(BlockHash(1));
    speculative.note_holes();
    speculative.insert(None, &blocks([1]), &[], at(10));
    assert_eq!(speculative.take_expired(at(10)), blocks([1]));
    assert!(speculative.is_broken(), "its child expires later");
    assert_eq!(speculative.take_expired(at(100)), blocks([2]));
}

#[test]
fn a_chain_of_which_the_pod_holds_some_blocks_is_completed() {
    let mut speculative = SpeculativeBlocks::default();
    speculative.insert(None, &blocks(1..=6), &blocks([2, 3, 5]), at(10));
    assert_eq!(speculative.len(), 3);
    for confirmed in [3, 5] {
        let parent = speculative.other_parents.get(&BlockHash(confirmed));
        assert_eq!(parent.map(|parent| parent.children), Some(1), "{confirmed}");
    }
    assert_eq!(speculative.other_parents.len(), 2, "the child of the first block is confirmed");
}

#[test]
fn stale_blocks_do_not_accumulate() {
    let mut speculative = inserted(&blocks([99]), at(1));
    for round in 1..10_000 {
        let block = blocks([round % 7 + 1]);
        speculative.insert(None, &block, &[], at(600));
        assert!(speculative.confirm(block[0]));
        assert!(speculative.scheduled <= MAX_STALE + 4, "{}", speculative.scheduled);
    }
    assert_eq!(speculative.take_expired(at(1)), blocks([99]));
}

#[test]
fn the_oldest_insert_is_dropped_first_and_a_renewed_one_stays() {
    let old = blocks(1..=3);
    let used = blocks([1, 2, 13, 14]);
    let new = blocks(21..=23);
    let mut speculative = inserted(&old, at(10));
    speculative.insert(None, &used, &old[..2], at(10));
    speculative.insert(None, &new, &[], at(10));
    let mut removed = Vec::new();
    speculative.take_oldest(1, &mut removed);
    assert_eq!(removed, blocks([3]), "the others of its chain have children");
    speculative.insert(None, &used, &used, at(11));
    speculative.take_oldest(3, &mut removed);
    assert_eq!(removed, blocks([3, 23, 22, 21]));
    speculative.take_oldest(9, &mut removed);
    assert_eq!(removed.len(), 8);
    assert!(speculative.is_empty() && speculative.scheduled == 0 && !speculative.is_broken());
}

#[test]
fn a_rollback_removes_the_blocks_that_only_the_rejected_request_inserted() {
    let mut removed = Vec::new();
    let mut it = inserted(&blocks(1..=4), at(10));
    it.insert(None, &blocks(1..=6), &blocks(1..=4), at(10));
    assert!(!it.rollback(&blocks(1..=6), &mut removed));
    assert_eq!(removed, blocks([6, 5]), "the first four were inserted before");
    assert!(!it.rollback(&blocks(1..=4), &mut removed), "two requests inserted those");
    assert_eq!((removed.len(), it.len()), (2, 4));

    let mut it = inserted(&blocks(1..=4), at(10));
    it.insert(None, &blocks([1, 2, 13]), &blocks([1, 2]), at(10));
    removed.clear();
    assert!(!it.rollback(&blocks(1..=4), &mut removed));
    assert_eq!(removed, blocks([4, 3]), "another request continues after the second");

    let mut it = inserted(&blocks(1..=4), at(10));
    assert!(it.confirm(BlockHash(1)) && it.confirm(BlockHash(2)));
    removed.clear();
    assert!(!it.rollback(&blocks(1..=4), &mut removed));
    assert_eq!(removed, blocks([4, 3]));
    assert!(it.is_empty() && it.other_parents.is_empty() && !it.is_broken());

    let mut it = inserted(&blocks(1..=4), at(10));
    assert!(it.rollback(&blocks(1..=9), &mut removed), "its end exceeded the limit");
    assert!(it.is_empty());
}

/// Block `depth` of a family's chain; families share their first three blocks in pairs.
fn block(family: u64, depth: u64) -> BlockHash {
    let family = if depth < 3 { family / 2 } else { 100 + family };
    BlockHash((family + 1) << 16 | depth)
}

#[derive(Clone, Debug)]
enum Act {
    Insert { family: u64, length: u64, lasts: u64, knows: bool },
    Pass(u64),
    TakeOldest(usize),
    Rollback { family: u64, length: u64 },
}

/// A block in the naive model: when it expires, and how many requests inserted it.
#[derive(Clone, Copy, Default)]
struct Naive {
    until: u64,
    requests: usize,
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        4 => (0..8_u64, 1..12_u64, 1..4_u64, any::<bool>())
            .prop_map(|(family, length, lasts, knows)| Act::Insert { family, length, lasts, knows }),
        1 => (0..3_u64).prop_map(Act::Pass),
        1 => (1..20_usize).prop_map(Act::TakeOldest),
        2 => (0..8_u64, 1..12_u64).prop_map(|(family, length)| Act::Rollback { family, length }),
    ]
}

proptest! {
    #[test]
    fn blocks_expire_like_those_of_a_naive_model_and_leave_no_hole(
        acts in prop::collection::vec(act(), 1..80),
    ) {
        let mut speculative = SpeculativeBlocks::default();
        let mut now = 0;
        let mut model = BTreeMap::<BlockHash, Naive>::new();
        for act in acts {
            match act {
                Act::Insert { family, length, lasts, knows } => {
                    let chain: Vec<_> = (0..length).map(|depth| block(family, depth)).collect();
                    let set: Vec<_> =
                        chain.iter().copied().filter(|it| model.contains_key(it)).collect();
                    // Without holes, the pod holds a prefix of the chain.
                    let known = if knows { set.len() } else { 0 };
                    let (before, rest) = chain.split_at(known);
                    speculative.renew_prefix(before, at(now + lasts));
                    speculative.insert(before.last().copied(), rest, &set[known..], at(now + lasts));
                    for block in chain {
                        let known = model.entry(block).or_default();
                        known.until = (now + lasts).max(known.until);
                        known.requests += 1;
                    }
                }
                Act::Pass(seconds) => {
                    now += seconds;
                    let mut gone = speculative.take_expired(at(now));
                    gone.sort();
                    let due: Vec<_> =
                        model.iter().filter(|(_, it)| it.until <= now).map(|(it, _)| *it).collect();
                    prop_assert_eq!(gone, due);
                    model.retain(|_, it| it.until > now);
                }
                Act::TakeOldest(count) => {
                    let mut removed = Vec::new();
                    speculative.take_oldest(count, &mut removed);
                    prop_assert_eq!(removed.len(), count.min(model.len()));
                    let latest = removed.iter().filter_map(|it| model.remove(it)).map(|it| it.until).max();
                    let next = model.values().map(|it| it.until).min();
                    prop_assert!(latest <= next || next.is_none(), "an older block stayed");
                }
                Act::Rollback { family, length } => {
                    let chain: Vec<_> = (0..length).map(|depth| block(family, depth)).collect();
                    let alone = |it: &&BlockHash| model.get(it).is_some_and(|it| it.requests == 1);
                    let ends = chain.iter().filter(|it| model.contains_key(it)).count();
                    let is_there = |family| model.contains_key(&block(family, ends as u64));
                    let continues = is_there(family) || (ends <= 3 && is_there(family ^ 1));
                    let due: Vec<_> =
                        chain[..ends].iter().rev().take_while(alone).filter(|_| !continues).copied().collect();
                    let mut removed = Vec::new();
                    speculative.rollback(&chain, &mut removed);
                    prop_assert_eq!(&removed, &due);
                    model.retain(|it, _| !removed.contains(it));
                }
            }
            prop_assert_eq!(speculative.len(), model.len());
            prop_assert!(!speculative.is_broken());
            for (family, depth) in (0..8).flat_map(|family| (1..12).map(move |depth| (family, depth))) {
                let has = |depth| model.contains_key(&block(family, depth));
                prop_assert!(has(depth - 1) || !has(depth), "a hole before {depth} of {family}");
            }
        }
    }
}

#[test]
fn memory_stops_growing_where_new_blocks_replace_old_ones_forever() {
    const MAX: usize = 8_192;
    let random = BuildHasherDefault::<DefaultHasher>::default();
    let mut speculative = SpeculativeBlocks::default();
    let mut removed = Vec::new();
    let mut settled = 0;
    for number in 0..40 * MAX as u64 {
        let block = BlockHash(random.hash_one(number));
        speculative.insert(None, &[block], &[], at(10 + number / 10_000));
        speculative.take_oldest(speculative.len().saturating_sub(MAX), &mut removed);
        removed.clear();
        if number == 2 * MAX as u64 {
            settled = speculative.blocks.capacity();
        }
    }
    let at_last = speculative.blocks.capacity();
    assert!(at_last <= settled && at_last > settled / 2, "{settled} and then {at_last}");
}
