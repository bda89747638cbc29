//! Workload TREE: cache events and queries of a fleet, generated from one seed.
//!
//! Conversations share system prompts and branches of them, each lives on one to three pods, new
//! ones come and the tails of the oldest are evicted. Everything is generated once per size and
//! fed to every adapter, so that no generator time is measured and all see the same events.

use std::collections::VecDeque;

use rustc_hash::{FxHashMap, FxHashSet};

use crate::log::{EventLog, MOST_BLOCKS};

const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;
const PAIRS: usize = 1_000_000;
const SYSTEMS: u64 = 8;
const BRANCHES: u64 = 16;
/// How many queries there are.
pub(crate) const QUERIES: usize = 4096;
/// How many of them the check values cover.
pub(crate) const CHECKED: usize = 512;
const CHURN_PAIRS: usize = 300_000;
/// How many churns are generated: two for the timed life, six for the memory measure.
pub(crate) const CHURNS: usize = 6;

/// The check values of the workload's specification.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CheckValues {
    pub(crate) depths_built: u64,
    pub(crate) mean_pods_tenths: u64,
    pub(crate) build_events: usize,
    pub(crate) distinct_blocks: usize,
    pub(crate) conversations: usize,
    pub(crate) depths_churned: u64,
    pub(crate) depths_removed: u64,
}

/// One of the four sizes: pods x blocks per chain.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Size {
    pub(crate) name: &'static str,
    pub(crate) pods: usize,
    pub(crate) blocks: usize,
    pub(crate) check: CheckValues,
}

/// The sizes of the specification with their check values.
#[rustfmt::skip]
pub(crate) const SIZES: [Size; 4] = [
    size("64x32", 64, 32, [495_348, 628, 74_067, 772_272, 48_199, 494_406, 401_690]),
    size("256x32", 256, 32, [1_808_677, 2510, 77_435, 666_576, 41_593, 1_883_237, 1_795_172]),
    size("256x512", 256, 512, [14_576_159, 1853, 62_829, 485_120, 1_827, 17_128_921, 16_342_785]),
    size("1000x128", 1000, 128, [14_639_335, 7458, 63_848, 464_896, 7_196, 17_151_472, 16_939_882]),
];

const fn size(name: &'static str, pods: usize, blocks: usize, check: [u64; 7]) -> Size {
    let check = CheckValues {
        depths_built: check[0],
        mean_pods_tenths: check[1],
        build_events: check[2] as usize,
        distinct_blocks: check[3] as usize,
        conversations: check[4] as usize,
        depths_churned: check[5],
        depths_removed: check[6],
    };
    Size { name, pods, blocks, check }
}

const fn finish(z: u64) -> u64 {
    let z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// SplitMix64.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn from_seed(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(GOLDEN);
        finish(self.0)
    }

    /// Uniform in `0..bound`.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }
}

/// A block's content hash.
pub(crate) const fn local(kind: u64, id: u64, i: u64) -> u64 {
    finish(finish(finish(kind.wrapping_mul(GOLDEN)).wrapping_add(id)).wrapping_add(i))
}

/// The engine's chained hashes of a chain of contents.
pub(crate) fn chained(locals: &[u64]) -> Vec<u64> {
    let mut seqs = locals.to_vec();
    for i in 1..seqs.len() {
        seqs[i] = finish(finish(seqs[i - 1]).wrapping_add(seqs[i]));
    }
    seqs
}

/// Queries as one flat list: `QUERIES` chains of the same length.
pub(crate) struct QuerySet {
    /// Blocks per query.
    pub(crate) blocks: usize,
    /// Content hashes.
    pub(crate) locals: Vec<u64>,
    /// The engine's chained hashes.
    pub(crate) seqs: Vec<u64>,
}

/// Everything an adapter is fed at one size.
pub(crate) struct Workload {
    pub(crate) size: Size,
    pub(crate) log: EventLog,
    /// Events up to here build the index.
    pub(crate) built: usize,
    /// Events up to each of these have run that many churns.
    pub(crate) churned: [usize; CHURNS],
    /// These events make one hole on one pod, in a chain that no query asks for.
    pub(crate) hole: std::ops::Range<usize>,
    /// Live (pod, block) pairs after the build.
    pub(crate) pairs_built: usize,
    /// Live (pod, block) pairs after each churn.
    pub(crate) pairs_churned: [usize; CHURNS],
    pub(crate) queries: QuerySet,
}

impl Workload {
    /// Generates one size and checks what does not depend on an index.
    pub(crate) fn generate(size: Size) -> Self {
        let mut tree = Tree::new(size);
        tree.build();
        let built = tree.log.events.len();
        let pairs_built = tree.held.len();
        let distinct: FxHashSet<u64> = tree.held.iter().map(|(_, seq)| *seq).collect();
        assert_eq!(built, size.check.build_events, "{}: build events", size.name);
        assert_eq!(distinct.len(), size.check.distinct_blocks, "{}: distinct blocks", size.name);
        let conversations = tree.conversations.len();
        assert_eq!(conversations, size.check.conversations, "{}: conversations", size.name);
        drop(distinct);
        let queries = tree.queries();
        let mut churned = [0; CHURNS];
        let mut pairs_churned = [0; CHURNS];
        for round in 0..CHURNS {
            tree.churn();
            churned[round] = tree.log.events.len();
            pairs_churned[round] = tree.held.len();
        }
        let hole = tree.hole();
        Self { size, log: tree.log, built, churned, hole, pairs_built, pairs_churned, queries }
    }
}

#[derive(Clone, Copy)]
struct Conversation {
    id: u64,
    system: u64,
    branch: u64,
}

struct Tree {
    size: Size,
    random: Random,
    log: EventLog,
    held: FxHashSet<(u32, u64)>,
    conversations: Vec<Conversation>,
    placements: VecDeque<(u32, Conversation, usize)>,
    /// Chains of the first halves, which many conversations share: contents and chained hashes.
    shared: FxHashMap<(u64, u64), (Vec<u64>, Vec<u64>)>,
}

impl Tree {
    fn new(size: Size) -> Self {
        Self {
            size,
            random: Random::from_seed(42),
            log: EventLog::default(),
            held: FxHashSet::default(),
            conversations: Vec::new(),
            placements: VecDeque::new(),
            shared: FxHashMap::default(),
        }
    }

    fn pick(&mut self) -> (u64, u64) {
        let system = match self.random.below(16) {
            0..8 => 0,
            _ => 1 + self.random.below(SYSTEMS - 1),
        };
        (system, self.random.below(BRANCHES))
    }

    fn converse(&mut self) -> Conversation {
        let (system, branch) = self.pick();
        let conversation = Conversation { id: self.conversations.len() as u64, system, branch };
        self.conversations.push(conversation);
        conversation
    }

    /// Contents of a chain.
    fn contents(&self, of: Conversation) -> Vec<u64> {
        let quarter = self.size.blocks as u64 / 4;
        let half = self.size.blocks as u64 / 2;
        (0..self.size.blocks as u64)
            .map(|i| match i {
                _ if i < quarter => local(1, of.system, i),
                _ if i < half => local(2, of.system * BRANCHES + of.branch, i - quarter),
                _ => local(3, of.id, i - half),
            })
            .collect()
    }

    /// Contents and chained hashes of a chain; the shared half is computed once.
    fn chain(&mut self, of: Conversation) -> (Vec<u64>, Vec<u64>) {
        let half = self.size.blocks / 2;
        let key = (of.system, of.branch);
        if !self.shared.contains_key(&key) {
            let locals = self.contents(of);
            let seqs = chained(&locals);
            self.shared.insert(key, (locals[..half].to_vec(), seqs[..half].to_vec()));
        }
        let (mut locals, mut seqs) = self.shared[&key].clone();
        for i in half..self.size.blocks {
            let content = local(3, of.id, (i - half) as u64);
            seqs.push(finish(finish(seqs[i - 1]).wrapping_add(content)));
            locals.push(content);
        }
        (locals, seqs)
    }

    /// Puts the first `depth` blocks of a conversation on a pod; returns how many were new there.
    fn place(&mut self, pod: u32, conversation: Conversation, depth: usize) -> usize {
        let (locals, seqs) = self.chain(conversation);
        let known =
            seqs[..depth].iter().take_while(|seq| self.held.contains(&(pod, **seq))).count();
        for start in (known..depth).step_by(MOST_BLOCKS) {
            let end = depth.min(start + MOST_BLOCKS);
            let parent = start.checked_sub(1).map(|before| seqs[before]);
            self.log.store(pod, parent, &seqs[start..end], &locals[start..end]);
        }
        self.held.extend(seqs[known..depth].iter().map(|seq| (pod, *seq)));
        self.placements.push_back((pod, conversation, depth));
        depth - known
    }

    fn build(&mut self) {
        let pods = self.size.pods as u64;
        let blocks = self.size.blocks as u64;
        let mut pairs = 0;
        while pairs < PAIRS {
            let conversation = self.converse();
            let home = self.random.below(pods) as u32;
            pairs += self.place(home, conversation, blocks as usize);
            let extra = match self.random.below(10) {
                0..7 => 0,
                7..9 => 1,
                _ => 2,
            };
            let mut placed = vec![home];
            for _ in 0..extra {
                let pod = self.random.below(pods) as u32;
                let depth = (blocks / 2 + 1 + self.random.below(blocks / 2)) as usize;
                if !placed.contains(&pod) {
                    placed.push(pod);
                    pairs += self.place(pod, conversation, depth);
                }
            }
        }
    }

    /// Stores a chain of its own on pod 0, and evicts a block from its middle.
    fn hole(&mut self) -> std::ops::Range<usize> {
        let from = self.log.events.len();
        let locals: Vec<u64> = (0..16).map(|i| local(5, 0, i)).collect();
        let seqs = chained(&locals);
        self.log.store(0, None, &seqs, &locals);
        self.log.remove(0, &seqs[5..6]);
        from..self.log.events.len()
    }

    fn queries(&mut self) -> QuerySet {
        let blocks = self.size.blocks as u64;
        let mut set = QuerySet { blocks: self.size.blocks, locals: Vec::new(), seqs: Vec::new() };
        for fresh in 0..QUERIES as u64 {
            let roll = self.random.below(100);
            let (conversation, keep) = if roll < 60 {
                let resumed = self.random.below(self.conversations.len() as u64) as usize;
                (self.conversations[resumed], blocks / 2 + 1 + self.random.below(blocks / 2))
            } else {
                let (system, branch) = self.pick();
                let keep = match roll {
                    0..90 => blocks / 2,
                    90..98 => blocks / 4,
                    _ => 0,
                };
                (Conversation { id: u64::MAX, system, branch }, keep)
            };
            let mut locals = self.contents(conversation);
            for i in keep..blocks {
                locals[i as usize] = local(4, fresh, i);
            }
            set.seqs.extend(chained(&locals));
            set.locals.extend(locals);
        }
        set
    }

    fn churn(&mut self) {
        let mut stored = 0;
        while stored < CHURN_PAIRS {
            let conversation = self.converse();
            let pod = self.random.below(self.size.pods as u64) as u32;
            stored += self.place(pod, conversation, self.size.blocks);
            let oldest = self.placements.pop_front();
            let (pod, conversation, depth) = oldest.expect("one was placed just now");
            let (_, seqs) = self.chain(conversation);
            let tail: Vec<u64> = seqs[self.size.blocks / 2..depth].iter().rev().copied().collect();
            for leaves in tail.chunks(MOST_BLOCKS) {
                self.log.remove(pod, leaves);
            }
            for seq in &tail {
                self.held.remove(&(pod, *seq));
            }
        }
    }
}
