//! What must be true, kept beside the index while threads change it.

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

use wornpath_blocks::{BlockHash, ContentHash};
use wornpath_index::{
    Answer, Capacity, Content, EngineHash, Index, Limits, Parent, PodSlot, Reader, Stored, Swept,
};

/// A node is a block on one of two paths, which part after sixteen blocks.
pub type Node = usize;
/// Long enough for the search by gaps.
pub const MAIN: &[Node] = &{
    let mut nodes = [0; 40];
    let mut at = 0;
    while at < nodes.len() {
        nodes[at] = at;
        at += 1;
    }
    nodes
};
/// The other path.
pub const BRANCH: &[Node] = &{
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

/// The engine's names for nodes: others on every pod.
pub fn names(slot: PodSlot, nodes: &[Node]) -> Vec<EngineHash> {
    nodes.iter().map(|node| EngineHash((slot.position() as u64 + 1) << 32 | *node as u64)).collect()
}

/// Gives `use_it` the event that stores consecutive nodes of a path.
pub fn chained<T>(slot: PodSlot, nodes: &[Node], use_it: impl FnOnce(Stored<'_>) -> T) -> T {
    let parent = match nodes.first().copied().unwrap_or(0) {
        0 => Parent::Root(ROOT),
        first if first == MAIN.len() => Parent::Block(names(slot, &[FORK - 1])[0]),
        first => Parent::Block(names(slot, &[first - 1])[0]),
    };
    let blocks = names(slot, nodes);
    let contents: Vec<_> = nodes.iter().map(|node| content(*node)).collect();
    let content = Content::Chained { parent, contents: &contents };
    use_it(Stored { tier: wornpath_index::Tier::Gpu, blocks: &blocks, content, locations: &[] })
}

/// An index, and what must be true of it.
pub struct World {
    pub index: Index,
    blocks: Vec<BlockHash>,
    lives: Mutex<Vec<Life>>,
}

/// One incarnation of a pod.
pub struct Life {
    slot: PodSlot,
    watches: Vec<Watch>,
}

/// A pod and a block: now, and over the query under way.
#[derive(Clone, Copy, Default)]
struct Watch {
    /// The pod holds the block, or a change under way may have made it so.
    may: bool,
    /// The pod holds the block, and no change under way may have ended that.
    sure: bool,
    may_have: bool,
    was_sure: bool,
}

impl World {
    pub fn new() -> Self {
        let limits = Limits { capacity: Capacity::Pods64, ..Limits::default() };
        let (index, lives) = (Index::new(limits, 7), Mutex::new(vec![]));
        let mut blocks = vec![BlockHash(0); NODES];
        for path in [MAIN, BRANCH] {
            let contents: Vec<_> = path.iter().map(|node| content(*node)).collect();
            for (node, block) in path.iter().zip(ROOT.chain(&contents)) {
                blocks[*node] = block;
            }
        }
        Self { index, blocks, lives }
    }

    pub fn chain(&self, path: &[Node]) -> Vec<BlockHash> {
        path.iter().map(|node| self.blocks[*node]).collect()
    }

    /// Starts to watch a pod; returns its number here.
    pub fn watch(&self, slot: PodSlot) -> usize {
        let mut lives = self.lives();
        lives.push(Life { slot, watches: vec![Watch::default(); NODES] });
        lives.len() - 1
    }

    /// A change that gives these blocks to the pod begins.
    pub fn coming(&self, life: usize, nodes: impl IntoIterator<Item = Node>) {
        self.each(life, nodes, |watch| (watch.may, watch.may_have) = (true, true));
    }

    /// The pod holds these blocks now.
    pub fn came(&self, life: usize, nodes: impl IntoIterator<Item = Node>) {
        self.each(life, nodes, |watch| watch.sure = true);
    }

    /// A change that takes these blocks from the pod begins.
    pub fn going(&self, life: usize, nodes: impl IntoIterator<Item = Node>) {
        self.each(life, nodes, |watch| (watch.sure, watch.was_sure) = (false, false));
    }

    /// The pod no longer holds these blocks.
    pub fn gone(&self, life: usize, nodes: impl IntoIterator<Item = Node>) {
        self.each(life, nodes, |watch| watch.may = false);
    }

    /// All nodes.
    pub fn all(&self) -> std::ops::Range<Node> {
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

    /// Asks about a path, with something unknown after it, and holds the answer to what was true
    /// during the query. One thread asks at a time.
    pub fn ask(&self, reader: &mut Reader, path: &[Node]) -> Answer {
        let mut chain = self.chain(path);
        chain.extend([BlockHash(2), BlockHash(3)]);
        for watch in self.lives().iter_mut().flat_map(|life| &mut life.watches) {
            (watch.may_have, watch.was_sure) = (watch.may, watch.sure);
        }
        let mut answer = Answer::default();
        reader.lookup(&chain, &mut answer);
        let lives = self.lives();
        let slots: BTreeSet<_> = lives.iter().map(|life| life.slot).collect();
        let mut credited = 0;
        for slot in slots {
            let found = answer.depth(slot);
            credited += usize::from(found > 0);
            let longest = |held: fn(&Watch) -> bool| {
                let run = |life: &Life| {
                    path.iter().take_while(|node| held(&life.watches[**node])).count()
                };
                lives.iter().filter(|life| life.slot == slot).map(run).max().unwrap_or(0)
            };
            let (least, most) = (longest(|watch| watch.was_sure), longest(|watch| watch.may_have));
            assert!(found >= least, "{slot:?} got {found}, but held {least} all the time");
            assert!(found <= most, "{slot:?} got {found}, but never held more than {most}");
        }
        let answered: usize = answer.levels().map(|level| level.pods.len()).sum();
        assert_eq!(answered, credited, "only pods that came are answered");
        assert!(answer.levels().is_sorted_by(|a, b| a.depth < b.depth));
        answer
    }

    /// Everybody leaves; nothing stays.
    pub fn end(&self) {
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
