//! The naive model: every pod's copies in plain maps, and a scan for every lookup.

use std::collections::{HashMap, HashSet};

use wornpath_blocks::{BlockHash, ContentHash};
use wornpath_index::{EngineHash, Moment, PodId, Tier};

/// SplitMix64: small, seedable, the same everywhere.
pub(crate) struct Rng(pub(crate) u64);

impl Rng {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    pub(crate) fn below(&mut self, n: usize) -> usize {
        ((u128::from(self.next()) * n as u128) >> 64) as usize
    }

    pub(crate) fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    pub(crate) fn shuffle<T>(&mut self, items: &mut [T]) {
        for at in (1..items.len()).rev() {
            items.swap(at, self.below(at + 1));
        }
    }
}

/// A prompt tree: node = one block on one path.
pub(crate) struct Tree {
    pub(crate) parent: Vec<Option<usize>>,
    pub(crate) content: Vec<ContentHash>,
    pub(crate) block: Vec<BlockHash>,
    pub(crate) root: BlockHash,
}

impl Tree {
    pub(crate) fn random(rng: &mut Rng, nodes: usize, depth: usize) -> Self {
        let root = BlockHash(rng.next());
        let mut tree = Self { parent: vec![], content: vec![], block: vec![], root };
        let mut depths: Vec<usize> = vec![];
        while tree.parent.len() < nodes {
            // Mostly long single paths, sometimes a branch.
            let last = tree.parent.len().checked_sub(1);
            let parent = match last {
                Some(last) if depths[last] < depth && !rng.one_in(4) => Some(last),
                Some(last) if !rng.one_in(3) => Some(rng.below(last + 1)),
                _ => None,
            };
            let parent = parent.filter(|parent| depths[*parent] < depth);
            let content = ContentHash(rng.next());
            let before = parent.map_or(root, |parent| tree.block[parent]);
            depths.push(parent.map_or(1, |parent| depths[parent] + 1));
            tree.parent.push(parent);
            tree.content.push(content);
            tree.block.push(before.then(content));
        }
        tree
    }

    pub(crate) fn len(&self) -> usize {
        self.parent.len()
    }

    pub(crate) fn nodes(&self) -> std::ops::Range<usize> {
        0..self.len()
    }

    /// The nodes from the root to `node`.
    pub(crate) fn path(&self, node: usize) -> Vec<usize> {
        let mut path = vec![node];
        while let Some(parent) = self.parent[path[path.len() - 1]] {
            path.push(parent);
        }
        path.reverse();
        path
    }
}

/// The engine's name for a node on a pod: different on every pod, as with random hash seeds.
pub(crate) fn alias(pod: PodId, node: usize, variant: u64) -> EngineHash {
    let mut rng = Rng((pod.slot().position() as u64) << 40 | (node as u64) << 4 | variant);
    EngineHash(rng.next())
}

/// A pod of the naive model.
#[derive(Default, Clone)]
pub(crate) struct Pod {
    /// Copies per (node, name variant, tier).
    pub(crate) copies: HashMap<(usize, u64, Tier), u32>,
    /// Nodes whose content was reported since the last clear.
    pub(crate) known: HashSet<usize>,
    /// Nodes that any event mentioned.
    pub(crate) mentioned: HashSet<usize>,
    /// Known nodes whose last copies the last event removed.
    pub(crate) gone: HashSet<usize>,
    pub(crate) speculative: HashMap<usize, Moment>,
    /// For nodes that are not speculative and have speculative children: the latest time at which
    /// one of these expires, since there are any.
    pub(crate) expected: HashMap<usize, Moment>,
}

impl Pod {
    pub(crate) fn holds(&self, node: usize) -> bool {
        let held =
            |variant| Tier::ALL.iter().any(|t| self.copies.contains_key(&(node, variant, *t)));
        self.speculative.contains_key(&node) || self.known.contains(&node) && (0..2).any(held)
    }

    pub(crate) fn has_copy(&self, node: usize) -> bool {
        (0..2).any(|v| Tier::ALL.iter().any(|t| self.copies.contains_key(&(node, v, *t))))
    }

    pub(crate) fn store(&mut self, node: usize, variant: u64, tier: Tier, counted: bool) {
        let count = self.copies.entry((node, variant, tier)).or_default();
        *count = if counted { *count + 1 } else { 1 };
        self.mentioned.insert(node);
    }

    pub(crate) fn remove(&mut self, node: usize, variant: u64, tier: Tier, counted: bool) {
        if let Some(count) = self.copies.get_mut(&(node, variant, tier)) {
            *count = if counted { *count - 1 } else { 0 };
            if *count == 0 {
                self.copies.remove(&(node, variant, tier));
            }
        }
    }

    /// An event has stored a node.
    pub(crate) fn confirm(&mut self, node: usize, tree: &Tree) {
        if let Some(expires) = self.speculative.remove(&node) {
            self.expected.insert(node, expires);
        }
        self.note_expected(tree);
    }

    /// Updates `expected`.
    pub(crate) fn note_expected(&mut self, tree: &Tree) {
        let mut until: HashMap<usize, Moment> = HashMap::new();
        for (node, expires) in &self.speculative {
            if let Some(parent) = tree.parent[*node]
                && !self.speculative.contains_key(&parent)
            {
                let latest = until.entry(parent).or_insert(*expires);
                *latest = (*latest).max(*expires);
            }
        }
        for (node, latest) in &mut until {
            *latest = self.expected.get(node).map_or(*latest, |before| (*latest).max(*before));
        }
        self.expected = until;
    }

    /// The last copy of a node that speculative nodes follow was removed: it is expected as long as
    /// they are, if its parent is held.
    pub(crate) fn expect_again(&mut self, node: usize, variant: u64, tree: &Tree) {
        let Some(expires) = self.expected.get(&node).copied() else { return };
        let holds = |node| self.copies.contains_key(&(node, variant, Tier::Gpu));
        if !self.has_copy(node) && tree.parent[node].is_none_or(holds) {
            self.speculative.insert(node, expires);
        }
        self.note_expected(tree);
    }

    /// The longest run of leading nodes of `path`.
    pub(crate) fn depth(&self, path: &[usize]) -> usize {
        path.iter().take_while(|node| self.holds(**node)).count()
    }
}
