//! Random interleavings of many threads, on the index as released: all shards, real tables.
//!
//! Run with `RUSTFLAGS="--cfg shuttle" cargo test --release -p wornpath-index --test shuttle`.
//! `WORNPATH_SCHEDULES` sets how many schedules each test tries with each scheduler. A failing test
//! prints its seed; `SHUTTLE_RANDOM_SEED` overrides it.
//!
//! Shuttle runs one thread at a time and switches only inside the index, so the tests can track the
//! allowed results beside it ([`Watch`]): for every pod and block, whether the pod may hold it and
//! whether it certainly does. A query result must be true at some moment of the query, block by
//! block.
#![cfg(shuttle)]
#![allow(clippy::unwrap_used, reason = "a panic is how a test says no")]

use std::collections::BTreeSet;
use std::env;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use shuttle::rand::{Rng, thread_rng};
use shuttle::scheduler::{PctScheduler, RandomScheduler};
use shuttle::{Config, FailurePersistence, Runner, thread};
use wornpath_blocks::{BlockHash, ContentHash};
use wornpath_index::{
    Applied, CacheEvent, Capacity, Content, Depths, EngineHash, Index, IndexLimits, IndexReader,
    IndexWriter, Moment, Parent, PodId, PodSlot, Snapshot, StoredBlocks, Swept, Tier,
};

/// The preemptions per schedule of the second scheduler.
const PREEMPTIONS: usize = 4;

/// Tries a test under random schedules, and under schedules with few but well-placed preemptions.
fn explore(seed: u64, share: usize, test: fn()) {
    let schedules =
        env::var("WORNPATH_SCHEDULES").map_or(1500, |number| number.parse().expect("a number"));
    let schedules = (schedules / share).max(1);
    let config = || {
        let mut config = Config::new();
        config.stack_size = 1 << 18;
        config.failure_persistence = FailurePersistence::None;
        config.silence_warnings = true;
        config
    };
    eprintln!("seed {seed}, {schedules} random schedules");
    Runner::new(RandomScheduler::new_from_seed(seed, schedules), config()).run(test);
    eprintln!("seed {seed}, {schedules} schedules with {PREEMPTIONS} preemptions");
    let few = PctScheduler::new_from_seed(seed, PREEMPTIONS, schedules);
    Runner::new(few, config()).run(test);
}

#[test]
fn every_lookup_is_true_block_by_block_while_pods_change_leave_and_return() {
    explore(1, 4, || {
        let world = Arc::new(World::new());
        let mut settled = Driver::new(&world, Source::Chained);
        settled.store(&MAIN[..30]);
        let silent = Driver::new(&world, Source::Chained);
        let sources = [Source::Chained, Source::Chained, Source::Native, Source::Speculative];
        let threads: Vec<_> = sources
            .into_iter()
            .map(|source| {
                let mut driver = Driver::new(&world, source);
                driver.store(&MAIN[..20]);
                thread::spawn(move || {
                    for _ in 0..4 {
                        driver.random_change();
                    }
                    driver
                })
            })
            .collect();
        let sweeping = thread::spawn({
            let mut writer = world.index.writer();
            move || {
                for moment in 0..6 {
                    writer.sweep(7);
                    writer.expire(Moment::from_secs(moment));
                }
            }
        });
        let mut reader = world.index.reader();
        for _ in 0..6 {
            let path = if random_below(2) == 0 { MAIN } else { BRANCH };
            world.check_lookup(&mut reader, path);
        }
        let mut drivers = vec![settled, silent];
        drivers.extend(threads.into_iter().map(|thread| thread.join().unwrap()));
        sweeping.join().unwrap();
        for driver in &mut drivers {
            driver.expire_all();
        }
        for path in [MAIN, BRANCH] {
            let depths = world.check_lookup(&mut reader, path);
            for driver in &drivers {
                assert_eq!(depths.depth(driver.slot()), driver.depth(path), "at the end");
            }
        }
        drivers.iter_mut().for_each(Driver::leave);
        world.end();
    });
}

#[test]
fn a_query_does_not_bridge_an_older_hole_while_the_blocks_after_it_are_removed() {
    explore(2, 1, || {
        let world = Arc::new(World::new());
        let mut driver = Driver::new(&world, Source::Chained);
        driver.store(MAIN);
        driver.remove(&MAIN[19..20]);
        let mut reader = world.index.reader();
        let leaving = thread::spawn(move || {
            if random_below(2) == 0 { driver.clear() } else { driver.remove(&MAIN[20..]) }
        });
        world.check_lookup(&mut reader, MAIN);
        leaving.join().unwrap();
    });
}

#[test]
fn native_blocks_stored_and_removed_during_a_query_bridge_no_hole() {
    explore(3, 1, || {
        let world = Arc::new(World::new());
        let mut driver = Driver::new(&world, Source::Native);
        let mut reader = world.index.reader();
        let passing = thread::spawn(move || {
            let before = &MAIN[..19];
            let after = &MAIN[20..];
            for nodes in [before, after] {
                driver.store(nodes);
            }
            for nodes in [after, before] {
                driver.remove(nodes);
            }
        });
        world.check_lookup(&mut reader, MAIN);
        world.check_lookup(&mut reader, MAIN);
        passing.join().unwrap();
    });
}

/// Sends one of six batches to a pod that two sources report for; returns how many were applied.
fn send(writer: &mut IndexWriter, pod: PodId, number: u64) -> usize {
    let removed = |nodes| {
        let blocks = names(pod.slot(), nodes);
        move |writer: &mut IndexWriter| {
            let event = CacheEvent::Removed { tier: Tier::Gpu, blocks: &blocks };
            writer.apply(pod, Some(number), &[event])
        }
    };
    let stored = |writer: &mut IndexWriter, nodes| {
        chained(pod.slot(), nodes, |stored| {
            writer.apply(pod, Some(number), &[CacheEvent::Stored(stored)])
        })
    };
    let applied = match number {
        0 => stored(writer, &MAIN[..10]),
        1 => stored(writer, &MAIN[..5]),
        2 => removed(&MAIN[5..10])(writer),
        3 => stored(writer, &MAIN[5..20]),
        4 => removed(&MAIN[..5])(writer),
        _ => removed(&MAIN[15..20])(writer),
    };
    match applied.expect("the pod stays") {
        Applied::Now { caught_up } => 1 + caught_up,
        Applied::Duplicate | Applied::Early { .. } => 0,
        Applied::Dropped { .. } => panic!("six batches are within the limit"),
    }
}

#[test]
fn two_sources_with_the_same_numbers_count_every_batch_once() {
    explore(4, 2, || {
        let world = Arc::new(World::new());
        let pod = world.index.add_pod().unwrap();
        world.index.writer().start_at(pod, 0).unwrap();
        let orders = [[0, 1, 2, 3, 4, 5], [1, 0, 3, 5, 2, 4]];
        let threads = orders.map(|order| {
            let mut writer = world.index.writer();
            thread::spawn(move || -> usize {
                order.into_iter().map(|number| send(&mut writer, pod, number)).sum()
            })
        });
        let mut reader = world.index.reader();
        let mut depths = Depths::default();
        for _ in 0..4 {
            reader.lookup(&world.chain(MAIN), &mut depths);
            assert!(depths.depth(pod.slot()) <= 20, "no batch stores more");
        }
        let applied: usize = threads.into_iter().map(|thread| thread.join().unwrap()).sum();
        assert_eq!(applied, 6);
        reader.lookup(&world.chain(MAIN), &mut depths);
        assert_eq!(depths.depth(pod.slot()), 15);
        let stats = world.index.pod_stats(pod).unwrap();
        assert_eq!((stats.blocks, stats.early, stats.counters.unknown_removals), (15, 0, 0));
        assert!(world.index.remove_pod(pod));
        world.end();
    });
}

#[test]
fn a_snapshot_among_the_batches_leads_to_the_same_state() {
    explore(5, 2, || {
        let world = Arc::new(World::new());
        let pod = world.index.add_pod().unwrap();
        world.index.writer().start_at(pod, 0).unwrap();
        let numbered = thread::spawn({
            let mut writer = world.index.writer();
            move || {
                for number in 0..6 {
                    send(&mut writer, pod, number);
                }
            }
        });
        let mut writer = world.index.writer();
        // The state after batch 2: two copies of the first five blocks.
        chained(pod.slot(), &MAIN[..5], |stored| {
            let snapshot = Snapshot { sequence: Some(2), stored: &[stored, stored] };
            writer.apply_snapshot(pod, snapshot).unwrap();
        });
        for number in 3..6 {
            send(&mut writer, pod, number);
        }
        numbered.join().unwrap();
        let mut depths = Depths::default();
        world.index.reader().lookup(&world.chain(MAIN), &mut depths);
        assert_eq!(depths.depth(pod.slot()), 15);
        assert_eq!(world.index.digest(pod).unwrap().last_sequence, Some(5));
        assert!(world.index.remove_pod(pod));
        assert_eq!(writer.sweep(2), Swept::Partly);
        world.end();
    });
}

/// A node is a block on one of two paths, which diverge after sixteen blocks.
type Node = usize;
/// Long enough for the search by gaps.
const MAIN: &[Node] = &{
    let mut nodes = [0; 40];
    let mut at = 0;
    while at < nodes.len() {
        nodes[at] = at;
        at += 1;
    }
    nodes
};
/// The other path.
const BRANCH: &[Node] = &{
    let mut nodes = [0; 40];
    let mut at = 0;
    while at < nodes.len() {
        nodes[at] = if at < FORK { at } else { at - FORK + MAIN.len() };
        at += 1;
    }
    nodes
};
const FORK: usize = 16;
const NODES: usize = MAIN.len() + BRANCH.len() - FORK;
const ROOT: BlockHash = BlockHash(1);

fn content(node: Node) -> ContentHash {
    ContentHash(1000 + node as u64)
}

/// The engine's names for nodes: different on every pod.
fn names(slot: PodSlot, nodes: &[Node]) -> Vec<EngineHash> {
    nodes.iter().map(|node| EngineHash((slot.position() as u64 + 1) << 32 | *node as u64)).collect()
}

/// Calls `use_it` with the event that stores consecutive nodes of a path.
fn chained<T>(slot: PodSlot, nodes: &[Node], use_it: impl FnOnce(StoredBlocks<'_>) -> T) -> T {
    let parent = match nodes.first().copied().unwrap_or(0) {
        0 => Parent::Root(ROOT),
        first if first == MAIN.len() => Parent::Block(names(slot, &[FORK - 1])[0]),
        first => Parent::Block(names(slot, &[first - 1])[0]),
    };
    let blocks = names(slot, nodes);
    let contents: Vec<_> = nodes.iter().map(|node| content(*node)).collect();
    let content = Content::Chained { parent, contents: &contents };
    use_it(StoredBlocks { tier: Tier::Gpu, blocks: &blocks, content, locations: &[] })
}

/// An index and the allowed results of its lookups.
struct World {
    index: Index,
    blocks: Vec<BlockHash>,
    lives: Mutex<Vec<Life>>,
}

/// One incarnation of a pod.
struct Life {
    slot: PodSlot,
    watches: Vec<Watch>,
}

/// A block of a pod: its state now, and during the current query.
#[derive(Clone, Copy, Default)]
struct Watch {
    /// The pod holds the block, or a change in progress may have stored it.
    may: bool,
    /// The pod holds the block, and no change in progress may have removed it.
    sure: bool,
    may_have: bool,
    was_sure: bool,
}

impl World {
    fn new() -> Self {
        let limits = IndexLimits { capacity: Capacity::Pods64, ..IndexLimits::default() };
        let index = Index::new(limits, 7);
        let lives = Mutex::new(vec![]);
        let mut blocks = vec![BlockHash(0); NODES];
        for path in [MAIN, BRANCH] {
            let contents: Vec<_> = path.iter().map(|node| content(*node)).collect();
            for (node, block) in path.iter().zip(ROOT.chain(&contents)) {
                blocks[*node] = block;
            }
        }
        Self { index, blocks, lives }
    }

    fn chain(&self, path: &[Node]) -> Vec<BlockHash> {
        path.iter().map(|node| self.blocks[*node]).collect()
    }

    /// Starts to watch a pod; returns its number here.
    fn watch(&self, slot: PodSlot) -> usize {
        let mut lives = self.lives();
        lives.push(Life { slot, watches: vec![Watch::default(); NODES] });
        lives.len() - 1
    }

    /// A change that stores these blocks begins.
    fn storing(&self, life: usize, nodes: impl IntoIterator<Item = Node>) {
        self.each(life, nodes, |watch| {
            watch.may = true;
            watch.may_have = true;
        });
    }

    /// The pod holds these blocks now.
    fn stored(&self, life: usize, nodes: impl IntoIterator<Item = Node>) {
        self.each(life, nodes, |watch| watch.sure = true);
    }

    /// A change that removes these blocks begins.
    fn removing(&self, life: usize, nodes: impl IntoIterator<Item = Node>) {
        self.each(life, nodes, |watch| {
            watch.sure = false;
            watch.was_sure = false;
        });
    }

    /// The pod no longer holds these blocks.
    fn removed(&self, life: usize, nodes: impl IntoIterator<Item = Node>) {
        self.each(life, nodes, |watch| watch.may = false);
    }

    /// All nodes.
    fn all(&self) -> Range<Node> {
        0..NODES
    }

    fn each(
        &self,
        life: usize,
        nodes: impl IntoIterator<Item = Node>,
        change: impl Fn(&mut Watch),
    ) {
        let watches = &mut self.lives()[life].watches;
        nodes.into_iter().for_each(|node| change(&mut watches[node]));
    }

    /// Looks up a path with unknown blocks after it, and compares the result with the states during
    /// the query. Only one thread at a time calls this.
    fn check_lookup(&self, reader: &mut IndexReader, path: &[Node]) -> Depths {
        let mut chain = self.chain(path);
        chain.extend([BlockHash(2), BlockHash(3)]);
        for watch in self.lives().iter_mut().flat_map(|life| &mut life.watches) {
            watch.may_have = watch.may;
            watch.was_sure = watch.sure;
        }
        let mut depths = Depths::default();
        reader.lookup(&chain, &mut depths);
        let lives = self.lives();
        let slots: BTreeSet<_> = lives.iter().map(|life| life.slot).collect();
        let mut credited = 0;
        for slot in slots {
            let found = depths.depth(slot);
            credited += usize::from(found > 0);
            let longest = |held: fn(&Watch) -> bool| {
                let run = |life: &Life| {
                    path.iter().take_while(|node| held(&life.watches[**node])).count()
                };
                lives.iter().filter(|life| life.slot == slot).map(run).max().unwrap_or(0)
            };
            let least = longest(|watch| watch.was_sure);
            let most = longest(|watch| watch.may_have);
            assert!(found >= least, "{slot:?} got {found}, but held {least} all the time");
            assert!(found <= most, "{slot:?} got {found}, but never held more than {most}");
        }
        let reported: usize = depths.levels().map(|level| level.pods.len()).sum();
        assert_eq!(reported, credited, "only known pods are reported");
        assert!(depths.levels().is_sorted_by(|a, b| a.depth < b.depth));
        depths
    }

    /// Sweeps all removed pods; nothing stays.
    fn end(&self) {
        let mut writer = self.index.writer();
        while writer.sweep(50) == Swept::Partly {}
        let stats = self.index.stats();
        assert_eq!(
            (stats.blocks, stats.entries, stats.sets, stats.pods, stats.leaving, stats.suspects),
            (0, 0, 0, 0, 0, 0)
        );
    }

    fn lives(&self) -> MutexGuard<'_, Vec<Life>> {
        self.lives.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How a pod reports its blocks.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Source {
    /// Contents after parents, from anywhere on a path.
    Chained,
    /// Our own hashes.
    Native,
    /// Contents from the root, and speculative inserts.
    Speculative,
}

struct Driver {
    world: Arc<World>,
    writer: IndexWriter,
    source: Source,
    pod: PodId,
    life: usize,
    held: BTreeSet<Node>,
    /// Blocks that may still be speculative.
    speculative: BTreeSet<Node>,
}

/// A number from the schedule's own source, so that a seed stands for a whole run.
fn random_below(end: usize) -> usize {
    thread_rng().gen_range(0..end)
}

impl Driver {
    fn new(world: &Arc<World>, source: Source) -> Self {
        let world = Arc::clone(world);
        let writer = world.index.writer();
        let pod = world.index.add_pod().unwrap();
        let life = world.watch(pod.slot());
        Self {
            world,
            writer,
            source,
            pod,
            life,
            held: BTreeSet::new(),
            speculative: BTreeSet::new(),
        }
    }

    fn slot(&self) -> PodSlot {
        self.pod.slot()
    }

    /// The prefix of a path that the pod holds once its speculative blocks have expired.
    fn depth(&self, path: &[Node]) -> usize {
        path.iter().take_while(|node| self.held.contains(node)).count()
    }

    fn random_change(&mut self) {
        let path = if random_below(2) == 0 { MAIN } else { BRANCH };
        let one = random_below(path.len() + 1);
        let other = random_below(path.len() + 1);
        let nodes = &path[one.min(other)..one.max(other)];
        match random_below(10) {
            0..3 if self.source == Source::Speculative => self.store(&path[..one]),
            0..3 => self.store(nodes),
            3..5 => self.remove(nodes),
            5 => self.remove(&path[one..]),
            6 => self.clear(),
            7 => self.leave_and_return(),
            _ => match self.source {
                Source::Speculative if one < other => self.insert_speculative(&path[..one]),
                Source::Speculative => self.expire_all(),
                Source::Chained | Source::Native => self.apply_snapshot(nodes),
            },
        }
    }

    fn store(&mut self, nodes: &[Node]) {
        self.world.storing(self.life, nodes.iter().copied());
        let writer = &mut self.writer;
        let pod = self.pod;
        let apply =
            |stored: StoredBlocks<'_>| writer.apply(pod, None, &[CacheEvent::Stored(stored)]);
        match self.source {
            Source::Native => native(&self.world, nodes, apply),
            Source::Chained | Source::Speculative => chained(pod.slot(), nodes, apply),
        }
        .unwrap();
        self.world.stored(self.life, nodes.iter().copied());
        self.held.extend(nodes);
    }

    fn remove(&mut self, nodes: &[Node]) {
        self.world.removing(self.life, nodes.iter().copied());
        let blocks = match self.source {
            Source::Native => native_names(&self.world, nodes),
            Source::Chained | Source::Speculative => names(self.slot(), nodes),
        };
        let event = CacheEvent::Removed { tier: Tier::Gpu, blocks: &blocks };
        self.writer.apply(self.pod, None, &[event]).unwrap();
        let gone: Vec<_> =
            nodes.iter().copied().filter(|n| !self.speculative.contains(n)).collect();
        self.world.removed(self.life, gone);
        self.held.retain(|node| !nodes.contains(node));
    }

    fn clear(&mut self) {
        self.world.removing(self.life, self.world.all());
        self.writer.apply(self.pod, None, &[CacheEvent::Cleared]).unwrap();
        self.forget();
    }

    /// Applies a snapshot: a block that it lists and the pod holds is never missing.
    fn apply_snapshot(&mut self, nodes: &[Node]) {
        self.world.storing(self.life, nodes.iter().copied());
        let others: Vec<_> = self.world.all().filter(|node| !nodes.contains(node)).collect();
        self.world.removing(self.life, others.iter().copied());
        let writer = &mut self.writer;
        let pod = self.pod;
        let apply = |stored: StoredBlocks<'_>| {
            writer.apply_snapshot(pod, Snapshot { sequence: None, stored: &[stored] })
        };
        match self.source {
            Source::Native => native(&self.world, nodes, apply),
            Source::Chained | Source::Speculative => chained(pod.slot(), nodes, apply),
        }
        .unwrap();
        self.world.stored(self.life, nodes.iter().copied());
        self.world.removed(self.life, others);
        self.held = nodes.iter().copied().collect();
    }

    fn insert_speculative(&mut self, nodes: &[Node]) {
        self.world.storing(self.life, nodes.iter().copied());
        let until = Moment::from_secs(random_below(8) as u64);
        assert!(self.writer.insert_speculative(self.pod, &self.world.chain(nodes), until).unwrap());
        self.speculative.extend(nodes);
    }

    /// Expires all speculative blocks.
    fn expire_all(&mut self) {
        self.writer.expire(Moment::MAX);
        let gone: Vec<_> = self.speculative.difference(&self.held).copied().collect();
        self.world.removed(self.life, gone);
        self.speculative.clear();
    }

    fn leave_and_return(&mut self) {
        self.leave();
        self.pod = self.world.index.add_pod().unwrap();
        self.life = self.world.watch(self.pod.slot());
    }

    fn leave(&mut self) {
        self.world.removing(self.life, self.world.all());
        assert!(self.world.index.remove_pod(self.pod));
        self.forget();
        self.writer.apply(self.pod, None, &[CacheEvent::Cleared]).expect_err("the pod was removed");
    }

    fn forget(&mut self) {
        self.world.removed(self.life, self.world.all());
        self.held.clear();
        self.speculative.clear();
    }
}

fn native_names(world: &World, nodes: &[Node]) -> Vec<EngineHash> {
    world.chain(nodes).into_iter().map(|BlockHash(hash)| EngineHash(hash)).collect()
}

fn native<T>(world: &World, nodes: &[Node], use_it: impl FnOnce(StoredBlocks<'_>) -> T) -> T {
    let blocks = native_names(world, nodes);
    use_it(StoredBlocks {
        tier: Tier::Gpu,
        blocks: &blocks,
        content: Content::IndexHashes,
        locations: &[],
    })
}
