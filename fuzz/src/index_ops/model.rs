//! The naive model: each pod's copies in plain maps, and how far the model is exact.
//!
//! The index never holds more than the model. It holds exactly that unless something happened that
//! the model leaves open: a limit refused blocks, a bare name came after its content was dropped,
//! orphans wait beside others that they could follow, or names were used at random.

use std::collections::{BTreeMap, BTreeSet};

use wornpath_blocks::{BlockHash, ContentHash};
use wornpath_index::{Applied, Moment, Tier};

pub(super) type Node = usize;
pub(super) const NODES: usize = 48;
pub(super) const ROOT: BlockHash = BlockHash(1);

/// The node before: a trunk of 24, a branch from its eighth, and another path.
pub(super) fn parent(node: Node) -> Option<Node> {
    match node {
        0 | 36 => None,
        24 => Some(7),
        _ => Some(node - 1),
    }
}

pub(super) fn path(node: Node) -> Vec<Node> {
    let mut path: Vec<_> = std::iter::successors(Some(node), |node| parent(*node)).collect();
    path.reverse();
    path
}

pub(super) fn content(node: Node) -> ContentHash {
    ContentHash(0x1000 + node as u64)
}

pub(super) fn block(node: Node) -> BlockHash {
    path(node).into_iter().fold(ROOT, |hash, node| hash.then(content(node)))
}

/// The engine's name under which an event lists a block.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Name {
    First,
    Second,
    /// Our own hash.
    Native,
}

/// A change of a pod's cache, as its events report it.
#[derive(Clone, Debug)]
pub(super) enum CacheOp {
    Store {
        tier: Tier,
        name: Name,
        nodes: Vec<Node>,
    },
    /// Names without contents.
    StoreNamed {
        tier: Tier,
        nodes: Vec<Node>,
    },
    Remove {
        tier: Tier,
        name: Name,
        nodes: Vec<Node>,
    },
    Clear,
    /// Lists of arbitrary lengths, from these bytes.
    Arbitrary(Vec<u8>),
}

#[derive(Default, Debug)]
pub(super) struct Pod {
    pub(super) counted: bool,
    pub(super) next: Option<u64>,
    early: BTreeMap<u64, Vec<CacheOp>>,
    copies: BTreeMap<(Node, Name, Tier), u32>,
    /// Names that events have sent with their content.
    content_known: BTreeSet<(Node, Name)>,
    /// Nodes that any event has stored.
    ever_stored: BTreeSet<Node>,
    pub(super) expected: BTreeMap<Node, Moment>,
    /// When the last of all speculative inserts expires.
    latest_expiry: Moment,
    /// Other names than the first were used.
    several_names: bool,
    /// The index may hold less.
    pub(super) inexact: bool,
    /// The index may have fewer speculative inserts.
    pub(super) speculation_unsure: bool,
    /// The index may hold anything.
    pub(super) arbitrary: bool,
}

impl Pod {
    pub(super) fn new(counted: bool, next: Option<u64>) -> Self {
        Self { counted, next, ..Self::default() }
    }

    /// Applies a batch in order; returns the result that the index must return.
    pub(super) fn batch(&mut self, number: u64, ops: Vec<CacheOp>, window: usize) -> Applied {
        match self.next {
            Some(next) if number < next => Applied::Duplicate,
            Some(expected) if number > expected => {
                if self.early.len() >= window && !self.early.contains_key(&number) {
                    return Applied::Dropped { expected };
                }
                self.early.entry(number).or_insert(ops);
                Applied::Early { expected }
            }
            _ => {
                ops.iter().for_each(|op| self.apply(op));
                self.next = Some(number.wrapping_add(1));
                Applied::Now { caught_up: self.catch_up() }
            }
        }
    }

    pub(super) fn start_at(&mut self, number: u64) -> usize {
        self.next = Some(number);
        self.early = self.early.split_off(&number);
        self.catch_up()
    }

    pub(super) fn catch_up(&mut self) -> usize {
        let mut batches = 0;
        while let Some(next) = self.next
            && let Some(ops) = self.early.remove(&next)
        {
            ops.iter().for_each(|op| self.apply(op));
            self.next = Some(next.wrapping_add(1));
            batches += 1;
        }
        batches
    }

    pub(super) fn apply(&mut self, op: &CacheOp) {
        match op {
            CacheOp::Store { tier, name, nodes } => {
                nodes.iter().for_each(|node| self.store(*node, *name, *tier));
            }
            CacheOp::StoreNamed { tier, nodes } => nodes.iter().for_each(|node| {
                let known = self.content_known.contains(&(*node, Name::First))
                    && Tier::ALL.iter().any(|tier| self.count(*node, Name::First, *tier) > 0);
                self.inexact |= !known && self.ever_stored.contains(node);
                self.add(*node, Name::First, *tier);
            }),
            CacheOp::Remove { tier, name, nodes } => nodes.iter().for_each(|node| {
                let count = self.count(*node, *name, *tier);
                self.copies.insert((*node, *name, *tier), count.saturating_sub(1));
                if count < 2 || !self.counted {
                    self.copies.remove(&(*node, *name, *tier));
                }
                self.expect_again(*node);
            }),
            CacheOp::Clear => {
                let counted = self.counted;
                let next = self.next;
                let early = std::mem::take(&mut self.early);
                *self = Self { early, ..Self::new(counted, next) };
            }
            CacheOp::Arbitrary(_) => self.arbitrary = true,
        }
    }

    fn store(&mut self, node: Node, name: Name, tier: Tier) {
        self.several_names |= name != Name::First;
        self.add(node, name, tier);
        self.content_known.insert((node, name));
        if self.expected.contains_key(&node) {
            if self.surely_holds(node) {
                self.expected.remove(&node);
            } else {
                self.speculation_unsure = true;
            }
        }
    }

    fn add(&mut self, node: Node, name: Name, tier: Tier) {
        let counted = self.counted;
        let count = self.copies.entry((node, name, tier)).or_default();
        *count = if counted { *count + 1 } else { 1 };
        self.ever_stored.insert(node);
    }

    /// Makes the copies equal to a snapshot's.
    pub(super) fn become_equal(&mut self, wanted: &[(Node, Name, Tier)]) {
        self.copies.clear();
        self.speculation_unsure = true;
        for (node, name, tier) in wanted {
            self.several_names |= *name != Name::First;
            *self.copies.entry((*node, *name, *tier)).or_default() += 1;
            self.content_known.insert((*node, *name));
            self.ever_stored.insert(*node);
        }
        (0..NODES).rev().for_each(|node| self.expect_again(node));
    }

    /// A block that is no longer stored and that speculative blocks follow may become speculative
    /// itself, as long as these were at most.
    fn expect_again(&mut self, node: Node) {
        let is_followed = self.expected.keys().any(|other| parent(*other) == Some(node));
        if is_followed && !self.really_holds(node) && !self.expected.contains_key(&node) {
            self.expected.insert(node, self.latest_expiry);
            self.speculation_unsure = true;
        }
    }

    pub(super) fn expect(&mut self, nodes: &[Node], until: Moment) {
        self.latest_expiry = self.latest_expiry.max(until);
        for node in nodes {
            if !self.surely_holds(*node) {
                self.speculation_unsure |= self.really_holds(*node) || self.inexact;
                let expires = self.expected.entry(*node).or_insert(until);
                *expires = until.max(*expires);
            }
        }
    }

    pub(super) fn expire(&mut self, now: Moment) {
        self.expected.retain(|_, expires| *expires > now);
        self.speculation_unsure &= !self.expected.is_empty();
    }

    /// Whether the index must hold exactly what the model holds, given its number of orphans.
    pub(super) fn is_exact(&self, waiting: usize) -> bool {
        let plain = !self.several_names && self.expected.is_empty();
        let sure = !self.speculation_unsure || self.expected.is_empty();
        !self.arbitrary && !self.inexact && sure && (waiting == 0 || plain)
    }

    /// The longest run of leading nodes.
    pub(super) fn depth(&self, path: &[Node]) -> usize {
        let holds = |node: &&Node| self.expected.contains_key(node) || self.really_holds(**node);
        path.iter().take_while(holds).count()
    }

    /// The fastest tier of a held block; `None` if that depends on more than its copies.
    pub(super) fn tier(&self, node: Node) -> Option<Tier> {
        let on = |tier: &Tier| self.count(node, Name::First, *tier) > 0;
        let simple = !self.several_names && self.content_known.contains(&(node, Name::First));
        Tier::ALL.into_iter().find(on).filter(|_| simple && !self.expected.contains_key(&node))
    }

    fn count(&self, node: Node, name: Name, tier: Tier) -> u32 {
        self.copies.get(&(node, name, tier)).copied().unwrap_or(0)
    }

    fn holds_as(&self, node: Node, name: Name) -> bool {
        self.content_known.contains(&(node, name))
            && Tier::ALL.iter().any(|t| self.count(node, name, *t) > 0)
    }

    fn really_holds(&self, node: Node) -> bool {
        [Name::First, Name::Second, Name::Native].iter().any(|name| self.holds_as(node, *name))
    }

    /// Whether the index must have inserted the block: it needs no prefix, or has all of it.
    fn surely_holds(&self, node: Node) -> bool {
        let whole = |name| path(node).iter().all(|node| self.holds_as(*node, name));
        let native = self.holds_as(node, Name::Native);
        !self.inexact && !self.arbitrary && (native || whole(Name::First) || whole(Name::Second))
    }
}
