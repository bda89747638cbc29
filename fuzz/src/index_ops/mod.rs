//! Bytes as a sequence of operations on a small index, each followed by a lookup.
//!
//! The first byte chooses the limits: large ones, or so small that they are hit all the time. Then
//! every operation consumes the bytes it needs. After each, a path is looked up and the result is
//! compared with the model ([`model`]) as far as that is defined; at the end all pods are removed
//! and the index must be empty.

mod events;
mod model;

use std::time::Duration;

use events::OwnedEvent;
use model::{CacheOp, NODES, Name, Node, Pod, block, path};
use wornpath_blocks::BlockHash;
use wornpath_index::{
    Applied, Capacity, Depths, Index, IndexLimits, IndexReader, IndexWriter, Moment, PodId,
    Snapshot, Swept, Tier, within_steps,
};

/// Operations in one run: more bytes would only make runs slower.
const MAX_OPERATIONS: usize = 400;
const MAX_PODS: usize = 6;
/// Steps that an operation may take: this index never has more than a few hundred blocks.
const MAX_STEPS: u64 = 20_000;

/// Applies the operations that the bytes encode.
pub fn index_ops(bytes: &[u8]) {
    let mut bytes = Bytes(bytes);
    let mut limits = IndexLimits { capacity: Capacity::Pods64, ..IndexLimits::default() };
    if bytes.next() % 2 == 1 {
        limits = IndexLimits {
            capacity: Capacity::Pods64,
            blocks: 60,
            blocks_per_pod: 24,
            orphans_per_pod: 6,
            speculative_per_pod: 20,
            early_per_pod: 3,
            ..limits
        };
    }
    let index = Index::new(limits, 7);
    let writer = index.writer();
    let reader = index.reader();
    let now = Moment::ZERO;
    let mut run = Run { bytes, limits, index, writer, reader, now, pods: vec![] };
    for _ in 0..MAX_OPERATIONS {
        if run.bytes.0.is_empty() {
            break;
        }
        within_steps(MAX_STEPS, || run.step());
        within_steps(MAX_STEPS, || run.look_up());
    }
    run.remove_all();
}

/// The rest of the input; zeros when it has ended.
struct Bytes<'a>(&'a [u8]);

impl Bytes<'_> {
    fn next(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        *first
    }

    fn below(&mut self, end: usize) -> usize {
        usize::from(self.next()) % end
    }
}

struct Run<'a> {
    bytes: Bytes<'a>,
    limits: IndexLimits,
    index: Index,
    writer: IndexWriter,
    reader: IndexReader,
    now: Moment,
    pods: Vec<(PodId, Pod)>,
}

impl Run<'_> {
    fn step(&mut self) {
        let kind = self.bytes.below(16);
        if self.pods.is_empty() || (kind == 0 && self.pods.len() < MAX_PODS) {
            return self.add();
        }
        let at = self.bytes.below(self.pods.len());
        let before = self.pods[at].1.expected.clone();
        let refused = self.refused(at);
        match kind {
            1 => return self.remove(at),
            2 => {
                let blocks = self.bytes.below(32);
                self.writer.sweep(blocks);
            }
            3 => self.snapshot(at),
            4 => self.expect(at),
            5 => {
                self.now += Duration::from_secs(self.bytes.below(4) as u64);
                self.writer.expire(self.now);
                self.pods.iter_mut().for_each(|(_, pod)| pod.expire(self.now));
            }
            6 if self.pods[at].1.counted => self.start_at(at),
            _ => self.batch(at),
        }
        if self.refused(at) > refused {
            let pod = &mut self.pods[at].1;
            pod.inexact = true;
            pod.speculation_unsure = true;
            // A refused block confirms no speculative insert.
            for (node, until) in before {
                pod.expected.entry(node).or_insert(until);
            }
        }
    }

    fn refused(&self, at: usize) -> u64 {
        self.index.pod_stats(self.pods[at].0).expect("it lives").counters.refused
    }

    fn add(&mut self) {
        let id = self.index.add_pod().unwrap_or_else(|full| {
            // A removed pod keeps its slot until it is swept.
            assert_eq!(full.leaving, full.capacity - self.pods.len());
            while self.writer.sweep(1000) == Swept::Partly {}
            self.index.add_pod().expect("few of 64 slots are taken")
        });
        let first = [None, Some(0), Some(5), Some(u64::MAX - 1)][self.bytes.below(4)];
        let counted = self.bytes.below(4) != 0;
        if let Some(first) = first.filter(|_| counted) {
            self.writer.start_at(id, first).expect("it lives");
        }
        self.pods.push((id, Pod::new(counted, first.filter(|_| counted))));
    }

    fn remove(&mut self, at: usize) {
        let (id, _) = self.pods.swap_remove(at);
        assert!(self.index.remove_pod(id));
        assert!(!self.index.remove_pod(id), "a pod is removed once");
        self.writer.apply(id, None, &[]).expect_err("it was removed");
    }

    fn batch(&mut self, at: usize) {
        let ops: Vec<_> = (0..1 + self.bytes.below(3)).map(|_| self.op()).collect();
        let (id, pod) = &mut self.pods[at];
        let owned: Vec<_> = ops.iter().map(|op| OwnedEvent::of(op, *id)).collect();
        let events: Vec<_> = owned.iter().map(OwnedEvent::event).collect();
        if !pod.counted {
            ops.iter().for_each(|op| pod.apply(op));
            let applied = self.writer.apply(*id, None, &events).expect("it lives");
            assert_eq!(applied, Applied::Now { caught_up: 0 });
            return;
        }
        let due = pod.next.unwrap_or(3);
        let number = match self.bytes.below(8) {
            5 => due.wrapping_add(1),
            6 => due.wrapping_add(2 + self.bytes.below(4) as u64),
            7 => due.wrapping_sub(1),
            _ => due,
        };
        let expected = pod.batch(number, ops, self.limits.early_per_pod);
        let applied = self.writer.apply(*id, Some(number), &events).expect("it lives");
        assert_eq!(applied, expected, "batch {number}");
        let last = self.index.digest(*id).expect("it lives").last_sequence;
        assert_eq!(last, pod.next.and_then(|next| next.checked_sub(1)));
    }

    fn op(&mut self) -> CacheOp {
        let kind = self.bytes.below(16);
        let tier = Tier::ALL[self.bytes.below(16).saturating_sub(12)];
        let whole = path(self.bytes.below(NODES));
        let cut = self.bytes.below(whole.len() + 1);
        let head = whole[..cut].to_vec();
        let tail = whole[cut..].to_vec();
        match kind {
            0..4 => CacheOp::Store { tier, name: Name::First, nodes: whole },
            4 => CacheOp::Store { tier, name: Name::First, nodes: tail },
            5 => CacheOp::Store { tier, name: Name::Second, nodes: whole },
            6 => CacheOp::Store { tier, name: Name::Native, nodes: tail },
            7 => CacheOp::StoreNamed { tier, nodes: tail },
            8 | 9 => CacheOp::Remove { tier, name: Name::First, nodes: reversed(tail) },
            10 => CacheOp::Remove { tier, name: Name::First, nodes: head },
            11 => CacheOp::Remove { tier, name: Name::Second, nodes: reversed(tail) },
            12 => CacheOp::Remove { tier, name: Name::Native, nodes: tail },
            13 => CacheOp::Remove {
                tier,
                name: Name::First,
                nodes: tail[..tail.len().min(1)].to_vec(),
            },
            14 => CacheOp::Clear,
            _ => CacheOp::Arbitrary((0..10).map(|_| self.bytes.next()).collect()),
        }
    }

    /// A snapshot of some nodes, children before parents, some of them twice.
    fn snapshot(&mut self, at: usize) {
        let (id, pod) = &mut self.pods[at];
        let mut wanted: Vec<(Node, Name, Tier)> = vec![];
        for _ in 0..self.bytes.below(3) {
            let name = [Name::First, Name::First, Name::Second, Name::Native][self.bytes.below(4)];
            let tier = Tier::ALL[self.bytes.below(8).saturating_sub(4)];
            let nodes = path(self.bytes.below(NODES));
            let skipped = self.bytes.below(8) / 4;
            wanted.extend(nodes.iter().skip(skipped).rev().map(|node| (*node, name, tier)));
        }
        let ops: Vec<_> = wanted
            .iter()
            .map(|(node, name, tier)| CacheOp::Store {
                tier: *tier,
                name: *name,
                nodes: vec![*node],
            })
            .collect();
        let owned: Vec<_> = ops.iter().map(|op| OwnedEvent::of(op, *id)).collect();
        let stored: Vec<_> = owned.iter().filter_map(OwnedEvent::stored).collect();
        let sequence = pod.next.filter(|_| pod.counted).map(|next| next.wrapping_add(1));
        let snapshot = Snapshot { sequence, stored: &stored };
        let caught_up = self.writer.apply_snapshot(*id, snapshot).expect("it lives").caught_up;
        pod.become_equal(&wanted);
        let expected = match sequence {
            Some(last) => pod.start_at(last.wrapping_add(1)),
            None => pod.catch_up(),
        };
        assert_eq!(caught_up, expected);
    }

    fn start_at(&mut self, at: usize) {
        let (id, pod) = &mut self.pods[at];
        let number = pod.next.unwrap_or(0).wrapping_add(self.bytes.below(3) as u64);
        let caught_up = self.writer.start_at(*id, number).expect("it lives");
        assert_eq!(caught_up, pod.start_at(number));
    }

    fn expect(&mut self, at: usize) {
        let (id, pod) = &mut self.pods[at];
        let nodes = path(self.bytes.below(NODES));
        let chain: Vec<_> = nodes.iter().map(|node| block(*node)).collect();
        let until = self.now + Duration::from_secs(self.bytes.below(6) as u64);
        if self.writer.insert_speculative(*id, &chain, until).expect("it lives") {
            // Time is counted in steps of 50 ms, and nothing expires early.
            let steps = until.since_zero().as_millis().div_ceil(50) as u64;
            pod.expect(&nodes, Moment::from_millis(steps * 50));
            // At the limit, those that would expire next are dropped.
            pod.speculation_unsure |= pod.expected.len() > self.limits.speculative_per_pod;
        } else {
            let of_pod = chain.len() + pod.expected.len() > self.limits.speculative_per_pod;
            let of_all = chain.len() + self.index.stats().entries > self.limits.blocks;
            assert!(of_pod || of_all, "a speculative insert is refused only at a limit");
        }
    }

    /// Looks up a path followed by an unknown block.
    fn look_up(&mut self) {
        let nodes = path(self.bytes.below(NODES));
        let mut chain: Vec<_> = nodes.iter().map(|node| block(*node)).collect();
        chain.push(BlockHash(0xdead));
        let mut depths = Depths::default();
        self.reader.lookup(&chain, &mut depths);
        let mut holders = 0;
        for (id, pod) in &self.pods {
            let found = depths.depth(id.slot());
            let stats = self.index.pod_stats(*id).expect("it lives");
            let (least, most) = match (pod.arbitrary, pod.depth(&nodes)) {
                (true, _) => (0, nodes.len()),
                (false, most) => (if pod.is_exact(stats.orphans) { most } else { 0 }, most),
            };
            assert!((least..=most).contains(&found), "{found} not in {least}..={most}: {pod:?}");
            holders += usize::from(found > 0);
            if least == most {
                self.check_tiers(*id, pod, &nodes[..found]);
            }
        }
        let listed: usize = depths.levels().map(|level| level.pods.len()).sum();
        assert_eq!(listed, holders, "only live pods are listed");
        assert!(depths.levels().is_sorted_by(|a, b| a.depth < b.depth));
    }

    fn check_tiers(&self, id: PodId, pod: &Pod, nodes: &[Node]) {
        let chain: Vec<_> = nodes.iter().map(|node| block(*node)).collect();
        let mut holdings = vec![];
        self.index.block_locations(id, &chain, &mut holdings).expect("it lives");
        for (node, holding) in nodes.iter().zip(holdings) {
            if let Some(tier) = pod.tier(*node) {
                assert_eq!(holding.tier, tier, "of node {node}: {pod:?}");
            }
        }
    }

    fn remove_all(&mut self) {
        for (id, _) in self.pods.drain(..) {
            self.index.remove_pod(id);
        }
        while self.writer.sweep(1000) == Swept::Partly {}
        let stats = self.index.stats();
        assert_eq!(
            (stats.blocks, stats.entries, stats.sets, stats.pods, stats.leaving, stats.suspects),
            (0, 0, 0, 0, 0, 0),
            "the index is empty when all pods are removed"
        );
    }
}

fn reversed(mut nodes: Vec<Node>) -> Vec<Node> {
    nodes.reverse();
    nodes
}
