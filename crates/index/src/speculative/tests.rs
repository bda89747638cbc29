//! Expectations one by one, and against a naive model of them.

use super::*;
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};

const fn at(seconds: u64) -> Moment {
    Duration::from_secs(seconds)
}

fn blocks(numbers: impl IntoIterator<Item = u64>) -> Vec<BlockHash> {
    numbers.into_iter().map(BlockHash).collect()
}

fn expected(chain: &[BlockHash], expires: Moment) -> SpeculativeBlocks {
    let mut expected = SpeculativeBlocks::default();
    expected.expect(None, chain, &[], expires);
    expected
}

#[test]
fn a_renewed_block_expires_at_its_new_time_and_a_taken_one_never() {
    let chain = blocks(1..=4);
    let mut expected = expected(&chain, at(10));
    expected.expect(None, &chain[..1], &chain[..1], at(20));
    assert!(expected.take(BlockHash(4)));
    assert!(expected.take_expired(Duration::from_millis(9_999)).is_empty());
    assert_eq!(expected.take_expired(at(10)), blocks([3, 2]), "the end first");
    assert!(expected.take_expired(at(19)).is_empty());
    assert_eq!(expected.take_expired(at(20)), blocks([1]));
    assert!(expected.is_empty() && expected.due.is_empty() && expected.noted == 0);
    assert!(!expected.is_broken());
}

#[test]
fn nothing_expires_before_its_time_and_all_of_it_within_a_step() {
    let mut expected = expected(&blocks([1]), Duration::from_millis(1_001));
    assert!(expected.take_expired(Duration::from_millis(1_049)).is_empty());
    assert_eq!(expected.take_expired(Duration::from_millis(1_050)), blocks([1]));
}

#[test]
fn a_block_that_came_true_breaks_its_followers_when_it_goes() {
    let mut expected = SpeculativeBlocks::default();
    expected.expect(None, &blocks([1, 2, 3]), &blocks([1]), at(10));
    assert!(expected.take(BlockHash(2)), "its event came");
    expected.note_gone(BlockHash(1));
    assert!(!expected.is_broken(), "nobody expected follows the first any more");
    expected.note_gone(BlockHash(2));
    assert!(expected.is_broken());
    assert_eq!(expected.take_expired(at(10)), blocks([3]));
    assert!(!expected.is_broken() && expected.followed.is_empty());
}

#[test]
fn a_block_that_went_and_is_expected_anew_is_renewed_although_its_follower_expires_later() {
    let mut expected = SpeculativeBlocks::default();
    expected.expect(None, &blocks([1, 2, 3]), &blocks([1, 2]), at(100));
    expected.note_gone(BlockHash(2));
    expected.expect(None, &blocks([1, 2]), &blocks([1]), at(60));
    expected.expect(None, &blocks([1, 2, 3]), &blocks([1, 2, 3]), at(90));
    assert!(expected.take_expired(at(60)).is_empty());
    assert_eq!(expected.take_expired(at(90)), blocks([2]));

    // The same with a block between them that stays: nothing expected follows the one that goes.
    let mut expected = SpeculativeBlocks::default();
    expected.expect(None, &blocks(1..=4), &blocks(1..=3), at(100));
    expected.note_gone(BlockHash(2));
    assert!(!expected.is_broken());
    expected.expect(None, &blocks([1, 2]), &blocks([1]), at(60));
    expected.expect(None, &blocks(1..=4), &blocks(1..=4), at(90));
    assert!(expected.take_expired(at(60)).is_empty());
    assert_eq!(expected.take_expired(at(90)), blocks([2]));
}

#[test]
fn what_follows_a_block_that_came_and_went_and_is_expected_anew_keeps_its_time() {
    let mut expected = expected(&blocks([1, 2]), at(10));
    assert!(expected.take(BlockHash(1)), "its event came");
    expected.expect(None, &blocks([1, 2]), &blocks([1, 2]), at(100));
    expected.note_gone(BlockHash(1));
    expected.expect(None, &blocks([1]), &[], at(10));
    assert_eq!(expected.take_expired(at(10)), blocks([1]));
    assert_eq!(expected.take_expired(at(100)), blocks([2]));
}

#[test]
fn a_chain_may_be_there_in_parts() {
    let mut expected = SpeculativeBlocks::default();
    expected.expect(None, &blocks(1..=6), &blocks([2, 3, 5]), at(10));
    assert_eq!(expected.len(), 3);
    for real in [3, 5] {
        assert_eq!(expected.followed.get(&BlockHash(real)), Some(&1), "{real}");
    }
    assert_eq!(expected.followed.len(), 2, "the first is followed by one that is there");
}

#[test]
fn blocks_that_come_and_go_do_not_pile_up() {
    let mut expected = expected(&blocks([99]), at(1));
    for round in 1..10_000 {
        let block = blocks([round % 7 + 1]);
        expected.expect(None, &block, &[], at(600));
        assert!(expected.take(block[0]));
        assert!(expected.noted <= MOST_GONE + 4, "{}", expected.noted);
    }
    assert_eq!(expected.take_expired(at(1)), blocks([99]));
}

#[test]
fn what_was_expected_longest_ago_goes_first_and_what_is_still_used_stays() {
    let (old, used, new) = (blocks(1..=3), blocks([1, 2, 13, 14]), blocks(21..=23));
    let mut expected = expected(&old, at(10));
    expected.expect(None, &used, &old[..2], at(10));
    expected.expect(None, &new, &[], at(10));
    let mut taken = Vec::new();
    expected.take_oldest(1, &mut taken);
    assert_eq!(taken, blocks([3]), "the others of its chain are followed");
    expected.expect(None, &used, &used, at(11));
    expected.take_oldest(3, &mut taken);
    assert_eq!(taken, blocks([3, 23, 22, 21]));
    expected.take_oldest(9, &mut taken);
    assert_eq!(taken.len(), 8);
    assert!(expected.is_empty() && expected.noted == 0 && !expected.is_broken());
}

#[test]
fn a_refused_request_takes_back_what_was_expected_of_it_alone() {
    let mut taken = Vec::new();
    let mut it = expected(&blocks(1..=4), at(10));
    it.expect(None, &blocks(1..=6), &blocks(1..=4), at(10));
    assert!(!it.withdraw(&blocks(1..=6), &mut taken));
    assert_eq!(taken, blocks([6, 5]), "the first four were expected before it came");
    assert!(!it.withdraw(&blocks(1..=4), &mut taken), "of those, two requests are known");
    assert_eq!((taken.len(), it.len()), (2, 4));

    let mut it = expected(&blocks(1..=4), at(10));
    it.expect(None, &blocks([1, 2, 13]), &blocks([1, 2]), at(10));
    taken.clear();
    assert!(!it.withdraw(&blocks(1..=4), &mut taken));
    assert_eq!(taken, blocks([4, 3]), "another request goes on after the second");

    let mut it = expected(&blocks(1..=4), at(10));
    assert!(it.take(BlockHash(1)) && it.take(BlockHash(2)), "their events came");
    taken.clear();
    assert!(!it.withdraw(&blocks(1..=4), &mut taken));
    assert_eq!(taken, blocks([4, 3]));
    assert!(it.is_empty() && it.followed.is_empty() && !it.is_broken());

    let mut it = expected(&blocks(1..=4), at(10));
    assert!(it.withdraw(&blocks(1..=9), &mut taken), "its end was too much for the cap");
    assert!(it.is_empty());
}

/// Block `depth` of a family's chain; families share their first three blocks in pairs.
fn block(family: u64, depth: u64) -> BlockHash {
    let family = if depth < 3 { family / 2 } else { 100 + family };
    BlockHash((family + 1) << 16 | depth)
}

#[derive(Clone, Debug)]
enum Act {
    Expect { family: u64, length: u64, lasts: u64, knows: bool },
    Pass(u64),
    TakeOldest(usize),
    Withdraw { family: u64, length: u64 },
}

/// What the naive model knows of a block: until when it is expected, and how many requests were sent with it.
#[derive(Clone, Copy, Default)]
struct Naive {
    until: u64,
    requests: usize,
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        4 => (0..8_u64, 1..12_u64, 1..4_u64, any::<bool>())
            .prop_map(|(family, length, lasts, knows)| Act::Expect { family, length, lasts, knows }),
        1 => (0..3_u64).prop_map(Act::Pass),
        1 => (1..20_usize).prop_map(Act::TakeOldest),
        2 => (0..8_u64, 1..12_u64).prop_map(|(family, length)| Act::Withdraw { family, length }),
    ]
}

proptest! {
    #[test]
    fn they_expire_like_those_of_a_naive_model_and_never_leave_a_hole(
        acts in prop::collection::vec(act(), 1..80),
    ) {
        let (mut expected, mut now) = (SpeculativeBlocks::default(), 0);
        let mut model = BTreeMap::<BlockHash, Naive>::new();
        for act in acts {
            match act {
                Act::Expect { family, length, lasts, knows } => {
                    let chain: Vec<_> = (0..length).map(|depth| block(family, depth)).collect();
                    let set: Vec<_> =
                        chain.iter().copied().filter(|it| model.contains_key(it)).collect();
                    // Without holes, what is there is the chain's beginning.
                    let known = if knows { set.len() } else { 0 };
                    let (before, rest) = chain.split_at(known);
                    expected.renew_whole(before, at(now + lasts));
                    expected.expect(before.last().copied(), rest, &set[known..], at(now + lasts));
                    for block in chain {
                        let known = model.entry(block).or_default();
                        known.until = (now + lasts).max(known.until);
                        known.requests += 1;
                    }
                }
                Act::Pass(seconds) => {
                    now += seconds;
                    let mut gone = expected.take_expired(at(now));
                    gone.sort();
                    let due: Vec<_> =
                        model.iter().filter(|(_, it)| it.until <= now).map(|(it, _)| *it).collect();
                    prop_assert_eq!(gone, due);
                    model.retain(|_, it| it.until > now);
                }
                Act::TakeOldest(count) => {
                    let mut taken = Vec::new();
                    expected.take_oldest(count, &mut taken);
                    prop_assert_eq!(taken.len(), count.min(model.len()));
                    let latest = taken.iter().filter_map(|it| model.remove(it)).map(|it| it.until).max();
                    let next = model.values().map(|it| it.until).min();
                    prop_assert!(latest <= next || next.is_none(), "older ones stayed");
                }
                Act::Withdraw { family, length } => {
                    let chain: Vec<_> = (0..length).map(|depth| block(family, depth)).collect();
                    let alone = |it: &&BlockHash| model.get(it).is_some_and(|it| it.requests == 1);
                    let ends = chain.iter().filter(|it| model.contains_key(it)).count();
                    let is_there = |family| model.contains_key(&block(family, ends as u64));
                    let continues = is_there(family) || (ends <= 3 && is_there(family ^ 1));
                    let due: Vec<_> =
                        chain[..ends].iter().rev().take_while(alone).filter(|_| !continues).copied().collect();
                    let mut taken = Vec::new();
                    expected.withdraw(&chain, &mut taken);
                    prop_assert_eq!(&taken, &due);
                    model.retain(|it, _| !taken.contains(it));
                }
            }
            prop_assert_eq!(expected.len(), model.len());
            prop_assert!(!expected.is_broken());
            for (family, depth) in (0..8).flat_map(|family| (1..12).map(move |depth| (family, depth))) {
                let has = |depth| model.contains_key(&block(family, depth));
                prop_assert!(has(depth - 1) || !has(depth), "a hole before {depth} of {family}");
            }
        }
    }
}

#[test]
fn memory_is_settled_soon_where_new_blocks_take_the_places_of_old_ones_for_ever() {
    const MOST: usize = 8_192;
    let random = BuildHasherDefault::<DefaultHasher>::default();
    let (mut expected, mut taken, mut settled) = (SpeculativeBlocks::default(), Vec::new(), 0);
    for number in 0..40 * MOST as u64 {
        let block = BlockHash(random.hash_one(number));
        expected.expect(None, &[block], &[], at(10 + number / 10_000));
        expected.take_oldest(expected.len().saturating_sub(MOST), &mut taken);
        taken.clear();
        if number == 2 * MOST as u64 {
            settled = expected.blocks.capacity();
        }
    }
    let at_last = expected.blocks.capacity();
    assert!(at_last <= settled && at_last > settled / 2, "{settled} and then {at_last}");
}
