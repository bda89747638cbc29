//! Random event streams: any order of stores and removals, on any tier, with unknown parents, bare
//! names, duplicates, reordering, snapshots, clears, and pods that are removed and added again.

use wornpath_blocks::{BlockHash, ContentHash};
use wornpath_index::{
    Applied, CacheEvent, Capacity, Content, Depths, EngineHash, Index, IndexLimits, IndexReader,
    IndexWriter, Parent, PodId, Snapshot, StoredBlocks, Swept, Tier,
};

use super::world::{Pod, Rng, Tree, alias};

/// An event that owns its lists, and what it does to the model.
#[derive(Clone)]
enum Act {
    Store { tier: Tier, nodes: Vec<usize>, named: bool },
    Remove { tier: Tier, nodes: Vec<usize> },
    Clear,
}

struct Live {
    id: PodId,
    model: Pod,
    /// The next number, for sources that count.
    next: Option<u64>,
    log: Vec<(u64, Vec<Act>)>,
}

struct Run {
    seed: u64,
    rng: Rng,
    tree: Tree,
    index: Index,
    writer: IndexWriter,
    reader: IndexReader,
    pods: Vec<Live>,
    most_pods: usize,
    operations: usize,
}

pub(crate) fn run(seed: u64, operations: usize) {
    let mut rng = Rng(seed);
    let capacities = [Capacity::Pods64, Capacity::Pods256, Capacity::Pods1024, Capacity::Pods4096];
    let capacity = capacities[seed as usize % 4];
    let nodes = 50 + rng.below(400);
    let depth = 4 + rng.below(40);
    let tree = Tree::random(&mut rng, nodes, depth);
    let index = Index::new(IndexLimits { capacity, ..IndexLimits::default() }, seed);
    let writer = index.writer();
    let reader = index.reader();
    let most_pods = 3 + rng.below(if seed.is_multiple_of(3) { 60 } else { 12 });
    let mut run =
        Run { seed, rng, tree, index, writer, reader, pods: vec![], most_pods, operations: 0 };
    while run.operations < operations {
        run.step();
        run.check_lookup();
    }
    run.remove_all();
}

impl Run {
    fn step(&mut self) {
        self.operations += 1;
        let kind = self.rng.below(1000);
        if self.pods.is_empty() || (kind < 10 && self.pods.len() < self.most_pods) {
            let id = self.index.add_pod().expect("a slot is free");
            let next = (!self.rng.one_in(4)).then_some(0);
            if let Some(first) = next {
                self.writer.start_at(id, first).expect("the pod is live");
            }
            self.pods.push(Live { id, model: Pod::default(), next, log: vec![] });
            return;
        }
        let at = self.rng.below(self.pods.len());
        match kind {
            10..14 => {
                let gone = self.pods.swap_remove(at);
                assert!(self.index.remove_pod(gone.id));
                assert!(!self.index.remove_pod(gone.id), "a pod is removed once");
                self.writer.apply(gone.id, gone.next, &[]).expect_err("the pod was removed");
            }
            14..200 => {
                let blocks = 1 + self.rng.below(20);
                self.writer.sweep(blocks);
            }
            200..215 => self.snapshot(at),
            215..300 if self.pods[at].next.is_some() => self.shuffled(at),
            300..330 => self.repeat(at),
            _ => {
                let acts = self.batch(at);
                let number = self.pods[at].next;
                self.send(at, number, &acts);
                self.commit(at, &acts);
            }
        }
    }

    /// One to three acts that are valid in the state of the model.
    fn batch(&mut self, at: usize) -> Vec<Act> {
        let mut shadow = self.pods[at].model.clone();
        let counted = self.pods[at].next.is_some();
        let mut acts = vec![];
        for _ in 0..1 + self.rng.below(3) {
            let act = self.act(&shadow);
            play(&mut shadow, &act, counted, &self.tree);
            acts.push(act);
        }
        acts
    }

    fn act(&mut self, pod: &Pod) -> Act {
        let tier = if self.rng.one_in(4) { Tier::ALL[self.rng.below(4)] } else { Tier::Gpu };
        let node = self.rng.below(self.tree.len());
        let path = self.tree.path(node);
        match self.rng.below(100) {
            // A run of a path: from its root, or from anywhere.
            0..30 => Act::Store { tier, nodes: path, named: false },
            30..50 => {
                let from = self.rng.below(path.len());
                Act::Store { tier, nodes: path[from..].to_vec(), named: false }
            }
            50..58 => {
                let known = |n: &&usize| pod.known.contains(n) && pod.has_copy(**n);
                let fresh = |n: &&usize| !pod.mentioned.contains(n);
                // As an engine does that offloads what it has just evicted.
                let gone = |n: &&usize| pod.gone.contains(n);
                let nodes: Vec<_> = match self.rng.below(3) {
                    0 => path.iter().filter(known).copied().collect(),
                    1 => path.iter().filter(fresh).copied().collect(),
                    _ => self.tree.nodes().filter(|n| gone(&n)).collect(),
                };
                Act::Store { tier, nodes, named: true }
            }
            // Tail first, head first, or anything, held or not.
            58..75 => {
                let from = self.rng.below(path.len());
                Act::Remove { tier, nodes: path[from..].iter().rev().copied().collect() }
            }
            75..85 => {
                let to = self.rng.below(path.len());
                Act::Remove { tier, nodes: path[..=to].to_vec() }
            }
            85..99 => {
                let mut nodes: Vec<_> = pod.copies.keys().map(|key| key.0).collect();
                nodes.sort_unstable();
                self.rng.shuffle(&mut nodes);
                nodes.truncate(1 + self.rng.below(8));
                Act::Remove { tier, nodes }
            }
            _ if self.rng.one_in(5) => Act::Clear,
            _ => Act::Remove { tier, nodes: vec![node] },
        }
    }

    fn commit(&mut self, at: usize, acts: &[Act]) {
        let pod = &mut self.pods[at];
        for act in acts {
            play(&mut pod.model, act, pod.next.is_some(), &self.tree);
        }
        if let Some(number) = pod.next {
            pod.log.push((number, acts.to_vec()));
            if pod.log.len() > 8 {
                pod.log.remove(0);
            }
            pod.next = Some(number + 1);
        }
    }

    /// Sends several batches, shuffled, some of them twice.
    fn shuffled(&mut self, at: usize) {
        let mut batches = vec![];
        for _ in 0..2 + self.rng.below(6) {
            let acts = self.batch(at);
            let number = self.pods[at].next.expect("a counting source");
            self.commit(at, &acts);
            batches.push((number, acts));
        }
        for again in 0..self.rng.below(3) {
            batches.push(batches[again].clone());
        }
        self.rng.shuffle(&mut batches);
        for (number, acts) in &batches {
            self.send(at, Some(*number), acts);
        }
        let last = self.index.digest(self.pods[at].id).expect("the pod is live").last_sequence;
        assert_eq!(last, self.pods[at].next.map(|next| next - 1), "seed {}", self.seed);
    }

    /// Sends an old batch again: nothing may change.
    fn repeat(&mut self, at: usize) {
        if self.pods[at].log.is_empty() {
            return;
        }
        let old = self.rng.below(self.pods[at].log.len());
        let (number, acts) = self.pods[at].log[old].clone();
        let before = self.index.digest(self.pods[at].id).expect("the pod is live");
        assert_eq!(self.send(at, Some(number), &acts), Applied::Duplicate);
        assert_eq!(self.index.digest(self.pods[at].id).expect("the pod is live"), before);
    }

    fn send(&mut self, at: usize, number: Option<u64>, acts: &[Act]) -> Applied {
        let id = self.pods[at].id;
        let lists: Vec<_> = acts.iter().map(|act| Lists::of(act, id, &self.tree)).collect();
        let events: Vec<_> = acts.iter().zip(&lists).map(|(act, lists)| lists.event(act)).collect();
        self.writer.apply(id, number, &events).expect("the pod is live")
    }

    /// Sends a snapshot in any order, with random additions and losses.
    fn snapshot(&mut self, at: usize) {
        let id = self.pods[at].id;
        let mut wanted: Vec<(usize, Tier)> = vec![];
        for node in 0..self.tree.len() {
            for tier in Tier::ALL {
                let held = self.pods[at].model.copies.contains_key(&(node, 0, tier));
                let keep = if held { !self.rng.one_in(5) } else { self.rng.one_in(40) };
                if keep {
                    let several = self.pods[at].next.is_some() && self.rng.one_in(8);
                    wanted.resize(wanted.len() + 1 + usize::from(several), (node, tier));
                }
            }
        }
        self.rng.shuffle(&mut wanted);
        let acts: Vec<_> = wanted
            .iter()
            .map(|(node, tier)| Act::Store { tier: *tier, nodes: vec![*node], named: false })
            .collect();
        let lists: Vec<_> = acts.iter().map(|act| Lists::of(act, id, &self.tree)).collect();
        let stored: Vec<_> = acts
            .iter()
            .zip(&lists)
            .filter_map(|(act, lists)| match lists.event(act) {
                CacheEvent::Stored(stored) => Some(stored),
                _ => None,
            })
            .collect();
        let sequence = self.pods[at].next.map(|next| next + 3);
        self.writer
            .apply_snapshot(id, Snapshot { sequence, stored: &stored })
            .expect("the pod is live");
        let pod = &mut self.pods[at];
        pod.next = sequence.map(|sequence| sequence + 1);
        pod.model.copies.clear();
        pod.model.gone.clear();
        for (node, tier) in wanted {
            pod.model.store(node, 0, tier, true);
            pod.model.known.insert(node);
        }
    }

    /// Looks up a path, usually with unknown blocks after it, and compares.
    fn check_lookup(&mut self) {
        let node = self.rng.below(self.tree.len());
        let path = self.tree.path(node);
        let mut chain: Vec<BlockHash> = path.iter().map(|node| self.tree.block[*node]).collect();
        for _ in 0..self.rng.below(6) {
            chain.push(BlockHash(self.rng.next()));
        }
        let mut depths = Depths::default();
        self.reader.lookup(&chain, &mut depths);
        let mut dense = vec![7; 4_000];
        self.reader.depths(&chain, &mut dense);
        let mut credited = 0;
        for pod in &self.pods {
            let found = depths.depth(pod.id.slot());
            let truth = pod.model.depth(&path);
            assert_eq!(found, truth, "seed {}, operation {}", self.seed, self.operations);
            assert_eq!(dense[pod.id.slot().position()] as usize, truth, "the other form");
            credited += usize::from(truth > 0);
        }
        let reported: usize = depths.levels().map(|level| level.pods.len()).sum();
        assert_eq!(reported, credited, "only live pods are reported; seed {}", self.seed);
        let reported = dense.iter().filter(|depth| **depth > 0).count();
        assert_eq!(reported, credited, "only live pods are reported; seed {}", self.seed);
        assert!(depths.levels().is_sorted_by(|a, b| a.depth < b.depth));
    }

    fn remove_all(&mut self) {
        for pod in self.pods.drain(..) {
            self.index.remove_pod(pod.id);
        }
        while self.writer.sweep(1000) == Swept::Partly {}
        let stats = self.index.stats();
        assert_eq!(
            (stats.blocks, stats.entries, stats.sets, stats.pods, stats.leaving, stats.suspects),
            (0, 0, 0, 0, 0, 0),
            "seed {}: nothing stays after all pods are removed",
            self.seed
        );
    }
}

fn play(pod: &mut Pod, act: &Act, counted: bool, tree: &Tree) {
    pod.gone.clear();
    match act {
        Act::Store { tier, nodes, named } => {
            for node in nodes {
                pod.store(*node, 0, *tier, counted);
                if !named {
                    pod.known.insert(*node);
                }
            }
        }
        Act::Remove { tier, nodes } => {
            let held = pod.clone();
            for node in nodes {
                pod.remove(*node, 0, *tier, counted);
            }
            // The content of a block whose prefix is unknown is gone with it.
            let is_linked = |n: usize| tree.path(n).iter().all(|node| held.holds(*node));
            let is_gone = |n: &&usize| !pod.has_copy(**n) && is_linked(**n);
            pod.gone = nodes.iter().filter(is_gone).copied().collect();
        }
        Act::Clear => *pod = Pod::default(),
    }
}

struct Lists {
    blocks: Vec<EngineHash>,
    contents: Vec<ContentHash>,
    parent: Parent,
}

impl Lists {
    fn of(act: &Act, id: PodId, tree: &Tree) -> Self {
        let nodes: &[usize] = match act {
            Act::Store { nodes, .. } | Act::Remove { nodes, .. } => nodes,
            Act::Clear => &[],
        };
        let parent = nodes.first().and_then(|node| tree.parent[*node]);
        Self {
            blocks: nodes.iter().map(|node| alias(id, *node, 0)).collect(),
            contents: nodes.iter().map(|node| tree.content[*node]).collect(),
            parent: parent.map_or(Parent::Root(tree.root), |p| Parent::Block(alias(id, p, 0))),
        }
    }

    fn event(&self, act: &Act) -> CacheEvent<'_> {
        match act {
            Act::Store { tier, named, .. } => CacheEvent::Stored(StoredBlocks {
                tier: *tier,
                blocks: &self.blocks,
                content: if *named {
                    Content::KnownAliases
                } else {
                    Content::Chained { parent: self.parent, contents: &self.contents }
                },
                locations: &[],
            }),
            Act::Remove { tier, .. } => CacheEvent::Removed { tier: *tier, blocks: &self.blocks },
            Act::Clear => CacheEvent::Cleared,
        }
    }
}
