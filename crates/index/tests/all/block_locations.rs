//! The tier and the location of blocks, as the router passes them to a chosen pod's engine.

use wornpath_index::Moment;

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
    index.writer().apply(pod, None, &[CacheEvent::Stored(stored)]).expect("the pod is live");
}

fn remove(index: &Index, pod: PodId, name: u64, tier: Tier) {
    let removed = CacheEvent::Removed { tier, blocks: &[EngineHash(name)] };
    index.writer().apply(pod, None, &[removed]).expect("the pod is live");
}

fn location(index: &Index, pod: PodId) -> BlockLocation {
    let mut locations = vec![];
    index.block_locations(pod, &[ROOT.then(CONTENT)], &mut locations).expect("the pod is live");
    locations[0]
}

fn start() -> (Index, PodId) {
    let index = Index::new(IndexLimits::default(), 3);
    let pod = index.add_pod().expect("a slot is free");
    (index, pod)
}

#[test]
fn the_fastest_tier_is_reported_with_its_location() {
    let (index, pod) = start();
    let address = Location { offset: 4096, length: 64, device: 1 };
    store(&index, pod, 1, Tier::Host, &[address]);
    assert_eq!(location(&index, pod), BlockLocation { tier: Tier::Host, location: Some(address) });
    store(&index, pod, 1, Tier::Gpu, &[]);
    assert_eq!(location(&index, pod), BlockLocation { tier: Tier::Gpu, location: None });
    remove(&index, pod, 1, Tier::Gpu);
    assert_eq!(location(&index, pod), BlockLocation { tier: Tier::Host, location: Some(address) });
}

#[test]
fn a_block_under_two_names_is_on_the_faster_tier_of_both() {
    let (index, pod) = start();
    store(&index, pod, 1, Tier::Gpu, &[]);
    store(&index, pod, 2, Tier::Host, &[]);
    assert_eq!(location(&index, pod).tier, Tier::Gpu);
    remove(&index, pod, 1, Tier::Gpu);
    assert_eq!(location(&index, pod).tier, Tier::Host);
}

#[test]
fn a_block_under_two_names_stays_until_both_are_removed() {
    let (index, pod) = start();
    store(&index, pod, 1, Tier::Host, &[]);
    store(&index, pod, 2, Tier::Disk, &[]);
    assert_eq!(location(&index, pod).tier, Tier::Host);
    remove(&index, pod, 1, Tier::Host);
    assert_eq!(location(&index, pod).tier, Tier::Disk);
    remove(&index, pod, 2, Tier::Disk);
    assert_eq!(index.stats().blocks, 0);
}

#[test]
fn speculative_blocks_are_distinguished_from_confirmed_ones() {
    let (index, pod) = start();
    let mut writer = index.writer();
    let mut reader = index.reader();
    let mut depths = Depths::default();
    let contents = [50, 51, 52, 53].map(ContentHash);
    let names = [1, 2, 3, 4].map(EngineHash);
    let mut chain: Vec<BlockHash> = Vec::new();
    for content in contents {
        chain.push(chain.last().copied().unwrap_or(ROOT).then(content));
    }
    let confirmed = |count: usize| index.block_locations(pod, &chain[..count], &mut vec![]);
    let mut is_confirmed = |at: usize| reader.is_confirmed(pod, chain[at], &mut depths);
    assert!(!is_confirmed(0), "no pod holds it");

    writer.insert_speculative(pod, &chain, Moment::from_secs(9)).expect("the pod is live");
    assert_eq!((confirmed(4), confirmed(0)), (Ok(0), Ok(0)));
    assert!(!is_confirmed(0));

    let content = Content::Chained { parent: Parent::Root(ROOT), contents: &contents[..3] };
    let stored = StoredBlocks { tier: Tier::Gpu, blocks: &names[..3], content, locations: &[] };
    writer.apply(pod, None, &[CacheEvent::Stored(stored)]).expect("the pod is live");
    assert_eq!((confirmed(4), confirmed(3), confirmed(2)), (Ok(3), Ok(3), Ok(2)));
    assert!(is_confirmed(2) && !is_confirmed(3));

    // A hole that a new request fills with a speculative block: the block after it is confirmed.
    remove(&index, pod, 2, Tier::Gpu);
    writer.insert_speculative(pod, &chain, Moment::from_secs(9)).expect("the pod is live");
    assert_eq!((confirmed(4), confirmed(3), confirmed(1)), (Ok(1), Ok(1), Ok(1)));
    assert!(!is_confirmed(2), "its prefix is not confirmed");

    index.remove_pod(pod);
    assert!(confirmed(1).is_err() && !is_confirmed(0));
}
