//! An engine, a link that loses, repeats and delays, and a pod that is fed; all in virtual time.

use crate::engine::{Engine, Random};
use crate::stores::served_model;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;
use wornpath_events::checkpoint::{PodCheckpoint, decode, encode};
use wornpath_events::{
    BatchId, Capabilities, Delivery, FeedRules, FeedState, FeedStatus, PodFeed, SourceId,
    SourceMessage, SourceQuery,
};
use wornpath_index::{
    CacheEvent, Content, EngineHash, ExportedBlock, Index, IndexLimits, IndexWriter, Moment,
    StoredBlocks, Tier,
};

/// What the link and the engine are like.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Faults {
    /// Percent of live batches that never come.
    pub(crate) lost: u64,
    /// Percent that come twice.
    pub(crate) doubled: u64,
    /// How many later ones a batch may come after.
    pub(crate) reordered: u64,
    /// Whether epochs travel with the batches.
    pub(crate) epochs: bool,
    /// The source's capabilities.
    pub(crate) capabilities: Capabilities,
    /// Whether it refuses replays in spite of its capabilities.
    pub(crate) refuses_replay: bool,
    /// How many batches it keeps for replay.
    pub(crate) ring: usize,
    /// How often it sends a digest.
    pub(crate) digest_every: Option<Duration>,
}

pub(crate) const STEP: Duration = Duration::from_millis(10);

/// Something on its way, by the time it arrives.
enum Parcel {
    Message(Box<SourceMessage>),
    Query(SourceQuery),
}

pub(crate) struct World {
    pub(crate) random: Random,
    pub(crate) engine: Engine,
    pub(crate) now: Moment,
    faults: Faults,
    /// Nothing passes.
    pub(crate) cut: bool,
    pod: PodFeed,
    source: SourceId,
    index: Index,
    writer: IndexWriter,
    /// Arrival, order of sending, position among the parcels.
    arrivals: BinaryHeap<Reverse<(Moment, usize)>>,
    parcels: Vec<Option<Parcel>>,
    next_digest: Moment,
    pub(crate) asked_at: Vec<Moment>,
}

/// A router that listens to one source.
fn listener(seed: u64, capabilities: Capabilities) -> (Index, PodFeed, SourceId) {
    let index = Index::new(IndexLimits::default(), seed);
    let id = index.add_pod().unwrap();
    let mut pod = PodFeed::new(&index, id, served_model(), FeedRules::default()).unwrap();
    let source = pod.add_source(capabilities);
    (index, pod, source)
}

impl World {
    pub(crate) fn new(seed: u64, faults: Faults) -> Self {
        let (index, pod, source) = listener(seed, faults.capabilities);
        let mut world = Self {
            random: Random(seed),
            engine: Engine::new(),
            now: Moment::ZERO,
            faults,
            cut: false,
            pod,
            source,
            writer: index.writer(),
            index,
            arrivals: BinaryHeap::new(),
            parcels: Vec::new(),
            next_digest: faults.digest_every.map_or(Moment::MAX, Moment::at),
            asked_at: Vec::new(),
        };
        world.handle(SourceMessage::Connected);
        world
    }

    /// The pod's checkpoint, encoded and decoded.
    pub(crate) fn checkpoint(&self) -> PodCheckpoint {
        let record = self.pod.checkpoint("pod").unwrap().expect("there is something worth keeping");
        decode(&encode(&[record])).unwrap().remove(0)
    }

    /// The router restarts with a checkpoint. It is not connected yet.
    pub(crate) fn start_again(&mut self, record: &PodCheckpoint) {
        (self.index, self.pod, self.source) =
            listener(self.random.next(), self.faults.capabilities);
        self.writer = self.index.writer();
        self.arrivals.clear();
        self.pod.restore(&mut self.writer, record).unwrap();
    }

    pub(crate) fn connect(&mut self) {
        self.handle(SourceMessage::Connected);
    }

    /// Blocks that the index has and the engine has not; unknown while some wait for their prefix.
    pub(crate) fn phantoms(&self) -> Option<usize> {
        let items = self.index.export(self.pod.id()).unwrap()?;
        let is_held = |item: &&ExportedBlock| item.copies != [0; 4];
        let is_phantom = |item: &&ExportedBlock| !self.engine.holds(item.engine);
        Some(items.iter().filter(is_held).filter(is_phantom).count())
    }

    /// The engine works and publishes for `duration`.
    pub(crate) fn work(&mut self, duration: Duration) {
        let end = self.now + duration;
        while self.now < end {
            self.engine.step(&mut self.random);
            self.publish();
            self.idle(STEP);
        }
    }

    /// The engine publishes batches that are all lost.
    pub(crate) fn lose_the_tail(&mut self, batches: usize) {
        for _ in 0..batches {
            self.engine.step(&mut self.random);
        }
    }

    /// The engine is started again in place. Connections break with it; without epochs nothing of
    /// the old life can come after that, as on a TCP connection.
    pub(crate) fn restart(&mut self) {
        self.engine.restart();
        if !self.faults.epochs {
            self.arrivals.clear();
            self.reconnect();
        }
    }

    /// The connection breaks and comes back, as it does when nothing passes for long.
    pub(crate) fn reconnect(&mut self) {
        self.handle(SourceMessage::Disconnected);
        self.handle(SourceMessage::Connected);
    }

    /// The engine restarts while the router is disconnected, and publishes as many batches as
    /// before.
    pub(crate) fn restart_disconnected(&mut self) {
        let batches = self.engine.batches.len();
        self.arrivals.clear();
        self.handle(SourceMessage::Disconnected);
        self.engine.restart();
        self.lose_the_tail(batches);
        self.handle(SourceMessage::Connected);
    }

    /// Puts a block into the index that the engine never stored.
    pub(crate) fn corrupt(&mut self) {
        let stored = CacheEvent::Stored(StoredBlocks {
            tier: Tier::Gpu,
            blocks: &[EngineHash(0xBAD)],
            content: Content::IndexHashes,
            locations: &[],
        });
        self.writer.apply(self.pod.id(), None, &[stored]).unwrap();
    }

    /// Time passes.
    pub(crate) fn idle(&mut self, duration: Duration) {
        let end = self.now + duration;
        loop {
            let arrival = self.arrivals.peek().map(|Reverse((at, _))| *at);
            let due = [arrival, self.pod.next_tick(), Some(self.next_digest)];
            let Some(at) = due.into_iter().flatten().filter(|at| *at <= end).min() else { break };
            self.now = self.now.max(at);
            self.digest();
            self.arrive();
            self.tick();
        }
        self.now = end;
    }

    pub(crate) fn status(&self) -> FeedStatus {
        self.pod.status(self.now)
    }

    /// Whether the index holds exactly what the engine holds.
    pub(crate) fn is_exact(&self) -> bool {
        self.index.digest(self.pod.id()).unwrap().tiers == self.engine.digest().tiers
    }

    /// Blocks in the index, and in the engine.
    pub(crate) fn counts(&self) -> (u64, u64) {
        let ours = self.index.digest(self.pod.id()).unwrap();
        (ours.tiers[0].count, self.engine.digest().tiers[0].count)
    }

    pub(crate) fn assert_exact(&self, when: &str, seed: u64) {
        let status = self.status();
        let (ours, theirs) = self.counts();
        assert!(
            self.is_exact() && matches!(status.state, FeedState::Live),
            "seed {seed}, {when}: {ours} blocks in the index, {theirs} in the engine; {status:?}"
        );
    }

    /// At most one query per second.
    pub(crate) fn assert_paced(&self, seed: u64) {
        for pair in self.asked_at.windows(2) {
            let pause = pair[1] - pair[0];
            assert!(pause >= Duration::from_secs(1), "seed {seed}: asked again after {pause:?}");
        }
    }

    fn publish(&mut self) {
        let sequence = self.engine.last().unwrap();
        if self.cut || self.random.chance(self.faults.lost) {
            return;
        }
        let times = 1 + u64::from(self.random.chance(self.faults.doubled));
        for _ in 0..times {
            let delay = STEP * self.random.below(self.faults.reordered + 1) as u32;
            let message = self.batch(sequence, Delivery::Live);
            self.send(delay + Duration::from_millis(1), Parcel::Message(Box::new(message)));
        }
    }

    fn batch(&self, sequence: u64, delivery: Delivery) -> SourceMessage {
        let id = self.travelling(self.engine.id(sequence));
        let batch = Box::new(self.engine.batches[sequence as usize].clone());
        SourceMessage::Batch { id, delivery, batch }
    }

    fn travelling(&self, id: BatchId) -> BatchId {
        BatchId { epoch: id.epoch.filter(|_| self.faults.epochs), ..id }
    }

    fn digest(&mut self) {
        let Some(every) = self.faults.digest_every.filter(|_| self.now >= self.next_digest) else {
            return;
        };
        self.next_digest += every;
        if !self.cut {
            let mut digest = self.engine.digest();
            digest.epoch = digest.epoch.filter(|_| self.faults.epochs);
            self.send(
                Duration::from_millis(1),
                Parcel::Message(Box::new(SourceMessage::Digest(digest))),
            );
        }
    }

    fn send(&mut self, delay: Duration, parcel: Parcel) {
        self.parcels.push(Some(parcel));
        self.arrivals.push(Reverse((self.now + delay, self.parcels.len() - 1)));
    }

    fn arrive(&mut self) {
        while let Some(Reverse((at, place))) = self.arrivals.peek().copied()
            && at <= self.now
        {
            self.arrivals.pop();
            match self.parcels[place].take().unwrap() {
                Parcel::Message(message) => self.handle(*message),
                Parcel::Query(query) => self.answer(query),
            }
        }
    }

    fn handle(&mut self, message: SourceMessage) {
        self.pod.handle(&mut self.writer, self.source, message, self.now).unwrap();
        self.tick();
    }

    fn tick(&mut self) {
        while let Some((_, query)) = self.pod.tick(&mut self.writer, self.now).unwrap() {
            let refused = matches!(query, SourceQuery::Replay { .. }) && self.faults.refuses_replay;
            if !refused {
                self.asked_at.push(self.now);
            }
            if !self.cut {
                self.send(Duration::from_millis(5), Parcel::Query(query));
            }
        }
    }

    /// The engine answers a query, reliably and in order.
    fn answer(&mut self, query: SourceQuery) {
        match query {
            SourceQuery::Replay { .. } if self.faults.refuses_replay => {
                self.reply(SourceMessage::Refused);
            }
            SourceQuery::Snapshot | SourceQuery::SnapshotWithTokens => {
                let (id, batch) = self.engine.snapshot();
                let id = self.travelling(id);
                let batch = Box::new(batch);
                self.reply(SourceMessage::Snapshot { id, batch });
            }
            SourceQuery::Replay { from } => {
                let kept = self.engine.batches.len().saturating_sub(self.faults.ring) as u64;
                for sequence in from.max(kept)..self.engine.batches.len() as u64 {
                    self.reply(self.batch(sequence, Delivery::Replay));
                }
                self.reply(SourceMessage::ReplayEnd);
            }
        }
    }

    /// Replies take longer than the interval of live batches, so that some arrive between query and
    /// reply.
    fn reply(&mut self, message: SourceMessage) {
        self.send(Duration::from_millis(35), Parcel::Message(Box::new(message)));
    }
}
