//! A pod and the one thread that speaks for it.

use std::collections::BTreeSet;
use std::sync::Arc;

use shuttle::rand::{Rng, thread_rng};
use wornpath_blocks::BlockHash;
use wornpath_index::{
    Content, EngineHash, Event, Moment, PodId, PodSlot, Snapshot, Stored, Tier, Writer,
};

use crate::watch::{BRANCH, MAIN, Node, World, chained, names};

/// How a pod speaks.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Manner {
    /// Contents after parents, from anywhere on a path.
    Chained,
    /// Our own hashes.
    Native,
    /// Contents from the root, and expectations.
    Expecting,
}

pub struct Speaker {
    world: Arc<World>,
    writer: Writer,
    manner: Manner,
    pod: PodId,
    life: usize,
    held: BTreeSet<Node>,
    /// What may still be expected.
    expected: BTreeSet<Node>,
}

/// A number from the schedule's own source, so that a seed stands for a whole run.
pub fn random_below(end: usize) -> usize {
    thread_rng().gen_range(0..end)
}

impl Speaker {
    pub fn new(world: &Arc<World>, manner: Manner) -> Self {
        let (world, writer) = (Arc::clone(world), world.index.writer());
        let pod = world.index.add_pod().unwrap();
        let life = world.watch(pod.slot());
        let (held, expected) = (BTreeSet::new(), BTreeSet::new());
        Self { world, writer, manner, pod, life, held, expected }
    }

    pub fn slot(&self) -> PodSlot {
        self.pod.slot()
    }

    /// The run of a path that the pod holds once its expectations have ended.
    pub fn depth(&self, path: &[Node]) -> usize {
        path.iter().take_while(|node| self.held.contains(node)).count()
    }

    pub fn do_something(&mut self) {
        let path = if random_below(2) == 0 { MAIN } else { BRANCH };
        let (one, other) = (random_below(path.len() + 1), random_below(path.len() + 1));
        let nodes = &path[one.min(other)..one.max(other)];
        match random_below(10) {
            0..3 if self.manner == Manner::Expecting => self.store(&path[..one]),
            0..3 => self.store(nodes),
            3..5 => self.remove(nodes),
            5 => self.remove(&path[one..]),
            6 => self.clear(),
            7 => self.leave_and_return(),
            _ => match self.manner {
                Manner::Expecting if one < other => self.expect(&path[..one]),
                Manner::Expecting => self.settle(),
                Manner::Chained | Manner::Native => self.become_equal(nodes),
            },
        }
    }

    pub fn store(&mut self, nodes: &[Node]) {
        self.world.coming(self.life, nodes.iter().copied());
        let (writer, pod) = (&mut self.writer, self.pod);
        let apply = |stored: Stored<'_>| writer.apply(pod, None, &[Event::Stored(stored)]);
        match self.manner {
            Manner::Native => native(&self.world, nodes, apply),
            Manner::Chained | Manner::Expecting => chained(pod.slot(), nodes, apply),
        }
        .unwrap();
        self.world.came(self.life, nodes.iter().copied());
        self.held.extend(nodes);
    }

    pub fn remove(&mut self, nodes: &[Node]) {
        self.world.going(self.life, nodes.iter().copied());
        let blocks = match self.manner {
            Manner::Native => native_names(&self.world, nodes),
            Manner::Chained | Manner::Expecting => names(self.slot(), nodes),
        };
        let event = Event::Removed { tier: Tier::Gpu, blocks: &blocks };
        self.writer.apply(self.pod, None, &[event]).unwrap();
        let gone: Vec<_> = nodes.iter().copied().filter(|n| !self.expected.contains(n)).collect();
        self.world.gone(self.life, gone);
        self.held.retain(|node| !nodes.contains(node));
    }

    pub fn clear(&mut self) {
        self.world.going(self.life, self.world.all());
        self.writer.apply(self.pod, None, &[Event::Cleared]).unwrap();
        self.forget();
    }

    /// A snapshot: what it names and the pod holds is never missing.
    fn become_equal(&mut self, nodes: &[Node]) {
        self.world.coming(self.life, nodes.iter().copied());
        let others: Vec<_> = self.world.all().filter(|node| !nodes.contains(node)).collect();
        self.world.going(self.life, others.iter().copied());
        let (writer, pod) = (&mut self.writer, self.pod);
        let apply = |stored: Stored<'_>| {
            writer.apply_snapshot(pod, Snapshot { sequence: None, stored: &[stored] })
        };
        match self.manner {
            Manner::Native => native(&self.world, nodes, apply),
            Manner::Chained | Manner::Expecting => chained(pod.slot(), nodes, apply),
        }
        .unwrap();
        self.world.came(self.life, nodes.iter().copied());
        self.world.gone(self.life, others);
        self.held = nodes.iter().copied().collect();
    }

    fn expect(&mut self, nodes: &[Node]) {
        self.world.coming(self.life, nodes.iter().copied());
        let until = Moment::from_secs(random_below(8) as u64);
        assert!(self.writer.expect(self.pod, &self.world.chain(nodes), until).unwrap());
        self.expected.extend(nodes);
    }

    /// Ends all expectations.
    pub fn settle(&mut self) {
        self.writer.expire(Moment::MAX);
        let gone: Vec<_> = self.expected.difference(&self.held).copied().collect();
        self.world.gone(self.life, gone);
        self.expected.clear();
    }

    fn leave_and_return(&mut self) {
        self.leave();
        self.pod = self.world.index.add_pod().unwrap();
        self.life = self.world.watch(self.pod.slot());
    }

    pub fn leave(&mut self) {
        self.world.going(self.life, self.world.all());
        assert!(self.world.index.remove_pod(self.pod));
        self.forget();
        self.writer.apply(self.pod, None, &[Event::Cleared]).expect_err("it has gone");
    }

    fn forget(&mut self) {
        self.world.gone(self.life, self.world.all());
        self.held.clear();
        self.expected.clear();
    }
}

fn native_names(world: &World, nodes: &[Node]) -> Vec<EngineHash> {
    world.chain(nodes).into_iter().map(|BlockHash(hash)| EngineHash(hash)).collect()
}

fn native<T>(world: &World, nodes: &[Node], use_it: impl FnOnce(Stored<'_>) -> T) -> T {
    let blocks = native_names(world, nodes);
    use_it(Stored { tier: Tier::Gpu, blocks: &blocks, content: Content::Native, locations: &[] })
}
