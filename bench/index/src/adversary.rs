//! Adversarial event sequences on small caches, which an exact index must answer correctly.
//!
//! Every case is a short, seeded sequence of events of a few pods that store, evict and store
//! again. All events are possible for an engine: nothing is evicted that is not there.

use rustc_hash::FxHashMap;

use crate::log::{EventLog, MOST_BLOCKS};
use crate::workload::{QuerySet, Random, chained, local};

const BLOCKS: usize = 24;

/// A class of event sequences.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    TailFirst,
    HeadFirst,
    Middle,
    AcrossBranches,
    Restores,
    Duplicates,
    UnknownParents,
    PodsLeave,
    ManyPods,
    Tiers,
    Everything,
}

use Class::*;

impl Class {
    /// In the order of the table.
    pub(crate) const ALL: [Class; 11] = [
        TailFirst,
        HeadFirst,
        Middle,
        AcrossBranches,
        Restores,
        Duplicates,
        UnknownParents,
        PodsLeave,
        ManyPods,
        Tiers,
        Everything,
    ];

    /// The label of its row.
    pub(crate) fn label(self) -> &'static str {
        match self {
            TailFirst => "tail evicted first",
            HeadFirst => "head evicted first",
            Middle => "middle evicted",
            AcrossBranches => "evictions across branches",
            Restores => "evicted head or middle stored again",
            Duplicates => "several copies under one hash",
            UnknownParents => "unknown parents, filled later",
            PodsLeave => "pods leave",
            ManyPods => "4096 pods",
            Tiers => "tiers with holes",
            Everything => "all of it at random",
        }
    }

    /// Whether only an index with tiers can be compared.
    pub(crate) fn needs_tiers(self) -> bool {
        matches!(self, Tiers | Everything)
    }
}

/// One sequence of events, and the queries to compare.
pub(crate) struct Case {
    pub(crate) pods: usize,
    pub(crate) log: EventLog,
    pub(crate) leaving: Vec<u32>,
    pub(crate) queries: QuerySet,
    pub(crate) query_count: usize,
}

impl Case {
    /// The case of a class with a seed.
    pub(crate) fn of(class: Class, seed: u64) -> Self {
        let pods = if class == ManyPods { 4096 } else { 8 };
        let branching = !matches!(class, TailFirst | HeadFirst | Middle | UnknownParents);
        let mut scene = Scene::new(seed, pods, branching);
        if class == UnknownParents {
            for _ in 0..12 {
                scene.store_shuffled();
            }
            return scene.case(Vec::new());
        }
        for _ in 0..pods * 3 {
            scene.place();
        }
        for _ in 0..pods * 2 {
            let action = match class {
                Everything => Class::ALL[scene.below(Class::ALL.len())],
                class => class,
            };
            scene.act(action);
        }
        let leaving = match class {
            PodsLeave | Everything => (0..pods as u32).filter(|pod| pod % 3 == 1).collect(),
            _ => Vec::new(),
        };
        scene.case(leaving)
    }
}

/// A chain: the engine's hashes and the contents.
type Chain = (Vec<u64>, Vec<u64>);

struct Scene {
    random: Random,
    pods: usize,
    chains: Vec<Chain>,
    log: EventLog,
    /// Copies of a block on a pod's tier.
    copies: FxHashMap<(u32, u64, u8), u16>,
    /// Pods and chains that were stored, so that later actions hit stored blocks.
    placed: Vec<(u32, usize)>,
}

impl Scene {
    /// With branches, twelve chains share two heads and six trunks; else they share nothing.
    fn new(seed: u64, pods: usize, branching: bool) -> Self {
        let chain = |leaf: u64| {
            let content = |i: u64| match i {
                0..8 if branching => local(11, leaf / 6, i),
                8..16 if branching => local(12, leaf / 2, i),
                _ => local(13, leaf, i),
            };
            let locals: Vec<u64> = (0..BLOCKS as u64).map(content).collect();
            (chained(&locals), locals)
        };
        Self {
            random: Random::from_seed(seed),
            pods,
            chains: (0..12).map(chain).collect(),
            log: EventLog::default(),
            copies: FxHashMap::default(),
            placed: Vec::new(),
        }
    }

    fn below(&mut self, bound: usize) -> usize {
        self.random.below(bound as u64) as usize
    }

    fn pick(&mut self) -> (u32, usize) {
        let pods = self.pods;
        (self.below(pods) as u32, self.below(12))
    }

    /// Stores most of a chain on a pod.
    fn place(&mut self) {
        let (pod, chain) = self.pick();
        let depth = BLOCKS / 2 + 1 + self.below(BLOCKS / 2);
        self.placed.push((pod, chain));
        self.fill(pod, chain, depth);
    }

    /// Stores what a pod lacks of the first `depth` blocks of a chain.
    fn fill(&mut self, pod: u32, chain: usize, depth: usize) {
        let lacks = |scene: &Self, i: usize| {
            !scene.copies.contains_key(&(pod, scene.chains[chain].0[i], 0))
        };
        let mut from = 0;
        while from < depth {
            let most = MOST_BLOCKS.min(depth - from);
            let run = (from..from + most).take_while(|i| lacks(self, *i)).count();
            if run > 0 {
                self.store(pod, chain, from..from + run);
            }
            from += run.max(1);
        }
    }

    fn store(&mut self, pod: u32, chain: usize, blocks: std::ops::Range<usize>) {
        let (seqs, locals) = &self.chains[chain];
        let parent = blocks.start.checked_sub(1).map(|before| seqs[before]);
        self.log.store(pod, parent, &seqs[blocks.clone()], &locals[blocks.clone()]);
        for seq in &seqs[blocks] {
            *self.copies.entry((pod, *seq, 0)).or_default() += 1;
        }
    }

    /// Stores the pieces of a chain in any order.
    fn store_shuffled(&mut self) {
        let (pod, chain) = self.pick();
        if self.copies.contains_key(&(pod, self.chains[chain].0[0], 0)) {
            return;
        }
        let mut cuts: Vec<usize> = (0..3).map(|_| 1 + self.below(BLOCKS - 1)).collect();
        cuts.extend([0, BLOCKS]);
        cuts.sort_unstable();
        cuts.dedup();
        let mut pieces: Vec<_> = cuts.windows(2).map(|ends| ends[0]..ends[1]).collect();
        while !pieces.is_empty() {
            let next = self.below(pieces.len());
            let piece = pieces.swap_remove(next);
            let middle = piece.end.min(piece.start + MOST_BLOCKS);
            self.store(pod, chain, piece.start..middle);
            if middle < piece.end {
                self.store(pod, chain, middle..piece.end);
            }
        }
    }

    /// Evicts one copy of each of these blocks that the pod has on the tier, in this order.
    fn evict(&mut self, pod: u32, chain: usize, blocks: impl Iterator<Item = usize>, tier: u8) {
        let mut evicted = Vec::new();
        for i in blocks {
            let key = (pod, self.chains[chain].0[i], tier);
            if let Some(count) = self.copies.get_mut(&key) {
                evicted.push(key.1);
                *count -= 1;
                if *count == 0 {
                    self.copies.remove(&key);
                }
            }
        }
        for piece in evicted.chunks(MOST_BLOCKS) {
            self.log.remove(pod, piece);
            self.log.on_tier(tier);
        }
    }

    /// Copies some blocks that a pod has on its GPU to another tier, leaf first.
    fn offload(&mut self, pod: u32, chain: usize, tier: u8) {
        for i in (0..BLOCKS).rev() {
            let seq = self.chains[chain].0[i];
            if self.below(2) == 0 && self.copies.contains_key(&(pod, seq, 0)) {
                let content = self.chains[chain].1[i];
                let parent = i.checked_sub(1);
                let parent = parent.map(|before| self.chains[chain].0[before]);
                self.log.store(pod, parent, &[seq], &[content]);
                self.log.on_tier(tier);
                *self.copies.entry((pod, seq, tier)).or_default() += 1;
            }
        }
    }

    fn act(&mut self, class: Class) {
        let index = self.below(self.placed.len());
        let (pod, chain) = self.placed[index];
        let a = self.below(BLOCKS);
        let b = self.below(BLOCKS);
        let middle = a.min(b)..a.max(b) + 1;
        match class {
            TailFirst | PodsLeave => self.evict(pod, chain, (a..BLOCKS).rev(), 0),
            HeadFirst => self.evict(pod, chain, 0..=a, 0),
            Middle | Everything => self.evict(pod, chain, middle, 0),
            AcrossBranches | ManyPods | UnknownParents => match self.below(4) {
                0 => self.evict(pod, chain, (a..BLOCKS).rev(), 0),
                1 => self.evict(pod, chain, 0..=a, 0),
                2 => self.evict(pod, chain, middle, 0),
                _ => self.place(),
            },
            Restores => {
                let from = if self.below(2) == 0 { 0 } else { middle.start };
                self.evict(pod, chain, from..middle.end, 0);
                if self.below(4) > 0 {
                    self.fill(pod, chain, middle.end);
                }
            }
            Duplicates => {
                let end = middle.end.min(middle.start + MOST_BLOCKS);
                let held = |scene: &Self, i: usize| {
                    scene.copies.contains_key(&(pod, scene.chains[chain].0[i], 0))
                };
                if (0..end).all(|i| held(self, i)) {
                    self.store(pod, chain, middle.start..end);
                }
                self.evict(pod, chain, (middle.start..BLOCKS).rev(), 0);
            }
            Tiers => {
                let tier = 1 + self.below(3) as u8;
                self.offload(pod, chain, tier);
                match self.below(3) {
                    0 => self.evict(pod, chain, 0..=a, 0),
                    1 => self.evict(pod, chain, middle, tier),
                    _ => self.evict(pod, chain, (a..BLOCKS).rev(), 0),
                }
            }
        }
    }

    /// Queries every chain, and every chain with another continuation from a random depth.
    fn case(mut self, leaving: Vec<u32>) -> Case {
        let mut queries = QuerySet { blocks: BLOCKS, locals: Vec::new(), seqs: Vec::new() };
        let query_count = self.chains.len() * 2;
        for query in 0..query_count {
            let mut locals = self.chains[query % 12].1.clone();
            if query >= 12 {
                let keep = self.below(BLOCKS);
                locals[keep..].iter_mut().for_each(|content| *content ^= 1);
            }
            queries.seqs.extend(chained(&locals));
            queries.locals.extend(locals);
        }
        Case { pods: self.pods, log: self.log, leaving, queries, query_count }
    }
}
