//! Which tier holds what, as a chosen pod's engine would be told.
#![cfg(not(any(loom, shuttle)))]

use std::time::Duration;

use wornpath_blocks::{BlockHash, ContentHash};
use wornpath_index::{
    BlockLocation, CacheEvent, Content, Depths, EngineHash, Index, IndexLimits, Location, Parent,
    PodId, StoredBlocks, Tier,
};

const ROOT: BlockHash = BlockHash(5);
const CONTENT: ContentHash = ContentHash(50);

fn store(index: &Index, pod: PodId, name: u64, tier: Tier, locations: &[Location]) {
    let content = Content::Chained { parent: Parent::Root(ROOT), contents: &[CONTENT] };
    let stored = StoredBlocks { tier, blocks: &[EngineHash(name)], content, locations };
    index.writer().apply(pod, None, &[CacheEvent::Stored(stored)]).expect("it lives");
}

fn remove(index: &Index, pod: PodId, name: u64, tier: Tier) {
    let removed = CacheEvent::Removed { tier, blocks: &[EngineHash(name)] };
    index.writer().apply(pod, None, &[removed]).expect("it lives");
}

fn holding(index: &Index, pod: PodId) -> BlockLocation {
    let mut holdings = vec![];
    index.holdings(pod, &[ROOT.then(CONTENT)], &mut holdings).expect("it lives");
    holdings[0]
}

fn start() -> (Index, PodId) {
    let index = Index::new(IndexLimits::default(), 3);
    let pod = index.add_pod().expect("a slot is free");
    (index, pod)
}

#[test]
fn the_fastest_tier_is_told_with_its_location() {
    let (index, pod) = start();
    let place = Location { offset: 4096, length: 64, device: 1 };
    store(&index, pod, 1, Tier::Host, &[place]);
    assert_eq!(holding(&index, pod), BlockLocation { tier: Tier::Host, location: Some(place) });
    store(&index, pod, 1, Tier::Gpu, &[]);
    assert_eq!(holding(&index, pod), BlockLocation { tier: Tier::Gpu, location: None });
    remove(&index, pod, 1, Tier::Gpu);
    assert_eq!(holding(&index, pod), BlockLocation { tier: Tier::Host, location: Some(place) });
}

#[test]
fn a_block_under_two_names_is_where_the_faster_of_them_is() {
    let (index, pod) = start();
    store(&index, pod, 1, Tier::Gpu, &[]);
    store(&index, pod, 2, Tier::Host, &[]);
    assert_eq!(holding(&index, pod).tier, Tier::Gpu);
    remove(&index, pod, 1, Tier::Gpu);
    assert_eq!(holding(&index, pod).tier, Tier::Host);
}

#[test]
fn a_block_whose_second_name_goes_stays_where_the_first_is() {
    let (index, pod) = start();
    store(&index, pod, 1, Tier::Host, &[]);
    store(&index, pod, 2, Tier::Disk, &[]);
    assert_eq!(holding(&index, pod).tier, Tier::Host);
    remove(&index, pod, 1, Tier::Host);
    assert_eq!(holding(&index, pod).tier, Tier::Disk);
    remove(&index, pod, 2, Tier::Disk);
    assert_eq!(index.stats().blocks, 0);
}

#[test]
fn what_a_pod_is_only_expected_to_hold_is_told_from_what_its_events_confirmed() {
    let (index, pod) = start();
    let (mut writer, mut reader, mut answer) = (index.writer(), index.reader(), Depths::default());
    let contents = [50, 51, 52, 53].map(ContentHash);
    let names = [1, 2, 3, 4].map(EngineHash);
    let mut chain: Vec<BlockHash> = Vec::new();
    for content in contents {
        chain.push(chain.last().copied().unwrap_or(ROOT).then(content));
    }
    let confirmed = |count: usize| index.holdings(pod, &chain[..count], &mut vec![]);
    let mut is_confirmed = |at: usize| reader.is_confirmed(pod, chain[at], &mut answer);
    assert!(!is_confirmed(0), "nobody holds it");

    writer.expect(pod, &chain, Duration::from_secs(9)).expect("it lives");
    assert_eq!((confirmed(4), confirmed(0)), (Ok(0), Ok(0)));
    assert!(!is_confirmed(0));

    let content = Content::Chained { parent: Parent::Root(ROOT), contents: &contents[..3] };
    let stored = StoredBlocks { tier: Tier::Gpu, blocks: &names[..3], content, locations: &[] };
    writer.apply(pod, None, &[CacheEvent::Stored(stored)]).expect("it lives");
    assert_eq!((confirmed(4), confirmed(3), confirmed(2)), (Ok(3), Ok(3), Ok(2)));
    assert!(is_confirmed(2) && !is_confirmed(3));

    // A hole, which a new request makes an expected block of: what follows it is real.
    remove(&index, pod, 2, Tier::Gpu);
    writer.expect(pod, &chain, Duration::from_secs(9)).expect("it lives");
    assert_eq!((confirmed(4), confirmed(3), confirmed(1)), (Ok(1), Ok(1), Ok(1)));
    assert!(!is_confirmed(2), "not all that it follows is");

    index.remove_pod(pod);
    assert!(confirmed(1).is_err() && !is_confirmed(0));
}
