//! Which tier holds what, as a chosen pod's engine would be told.
#![cfg(not(any(loom, shuttle)))]

use wornpath_blocks::{BlockHash, ContentHash};
use wornpath_index::{
    Content, EngineHash, Event, Holding, Index, Limits, Location, Parent, PodId, Stored, Tier,
};

const ROOT: BlockHash = BlockHash(5);
const CONTENT: ContentHash = ContentHash(50);

fn store(index: &Index, pod: PodId, name: u64, tier: Tier, locations: &[Location]) {
    let content = Content::Chained { parent: Parent::Root(ROOT), contents: &[CONTENT] };
    let stored = Stored { tier, blocks: &[EngineHash(name)], content, locations };
    index.writer().apply(pod, None, &[Event::Stored(stored)]).expect("it lives");
}

fn remove(index: &Index, pod: PodId, name: u64, tier: Tier) {
    let removed = Event::Removed { tier, blocks: &[EngineHash(name)] };
    index.writer().apply(pod, None, &[removed]).expect("it lives");
}

fn holding(index: &Index, pod: PodId) -> Holding {
    let mut holdings = vec![];
    index.holdings(pod, &[ROOT.then(CONTENT)], &mut holdings).expect("it lives");
    holdings[0]
}

fn start() -> (Index, PodId) {
    let index = Index::new(Limits::default(), 3);
    let pod = index.add_pod().expect("a slot is free");
    (index, pod)
}

#[test]
fn the_fastest_tier_is_told_with_its_location() {
    let (index, pod) = start();
    let place = Location { offset: 4096, length: 64, device: 1 };
    store(&index, pod, 1, Tier::Host, &[place]);
    assert_eq!(holding(&index, pod), Holding { tier: Tier::Host, location: Some(place) });
    store(&index, pod, 1, Tier::Gpu, &[]);
    assert_eq!(holding(&index, pod), Holding { tier: Tier::Gpu, location: None });
    remove(&index, pod, 1, Tier::Gpu);
    assert_eq!(holding(&index, pod), Holding { tier: Tier::Host, location: Some(place) });
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
