//! One pod between its sources and the index: executes what its [`Feed`] decides.
//!
//! Messages of all sources of a pod are handled one at a time: a batch is checked against the pod's
//! epoch, translated and applied under the same exclusive borrow, so that no batch of an earlier
//! epoch slips in between.

use crate::block_id::BlockIdScheme;
use crate::checkpoint::PodCheckpoint;
use crate::feed::{BatchAdmission, Feed, FeedRules, FeedStatus, FeedStep, Rebuild, SourceId};
use crate::message::{BatchId, Capabilities, Delivery, EngineDigest, SourceMessage, SourceQuery};
use crate::translate::Translator;
use crate::wire::WireBatch;
use std::collections::VecDeque;
use std::num::NonZeroUsize;
use wornpath_blocks::HashKey;
use wornpath_index::{
    CacheEvent, Index, IndexWriter, Moment, PodId, PodRemoved, Snapshot, StoredBlocks,
};

/// Batches held while a query is in flight.
const MAX_HELD: usize = 1 << 10;
/// Items (hashes and tokens) in held batches.
const MAX_HELD_ITEMS: usize = 4 << 20;

/// The model that a pod serves, which determines how its blocks are identified in the index.
#[derive(Clone)]
pub struct ServedModel {
    /// The cell's key.
    pub key: HashKey,
    /// The base model.
    pub model: String,
    /// Tokens per block of the index for this model.
    pub block_size: NonZeroUsize,
    /// How blocks without tokens are identified.
    pub id_scheme: BlockIdScheme,
}

impl ServedModel {
    fn translator(&self) -> Translator {
        Translator::new(&self.key, &self.model, self.block_size).with_id_scheme(self.id_scheme)
    }
}

/// A pod that is in the index.
pub struct PodFeed {
    id: PodId,
    index: Index,
    feed: Feed,
    served_model: ServedModel,
    translator: Translator,
    held: VecDeque<HeldBatch>,
    held_items: usize,
}

/// A live batch with its source.
struct HeldBatch {
    source: SourceId,
    id: BatchId,
    batch: Box<WireBatch>,
}

impl PodFeed {
    /// For a pod that was just added to the index.
    ///
    /// # Errors
    /// The pod has left the index.
    pub fn new(
        index: &Index,
        id: PodId,
        served_model: ServedModel,
        rules: FeedRules,
    ) -> Result<Self, PodRemoved> {
        index.writer().start_at(id, 0)?;
        Ok(Self {
            id,
            index: index.clone(),
            feed: Feed::new(rules),
            translator: served_model.translator(),
            served_model,
            held: VecDeque::new(),
            held_items: 0,
        })
    }

    /// The pod's id in the index.
    #[must_use]
    pub fn id(&self) -> PodId {
        self.id
    }

    /// Changes the rules.
    pub fn set_rules(&mut self, rules: FeedRules) {
        self.feed.set_rules(rules);
    }

    /// Changes the model. If it differs, the pod's state is cleared and fetched again, because its
    /// blocks get other ids.
    ///
    /// # Errors
    /// The pod has left the index.
    pub fn set_served_model(
        &mut self,
        writer: &mut IndexWriter,
        served_model: ServedModel,
        now: Moment,
    ) -> Result<(), PodRemoved> {
        let current = &self.served_model;
        if current.model == served_model.model && current.block_size == served_model.block_size {
            return Ok(());
        }
        self.served_model = served_model;
        let rebuild = self.feed.reset();
        self.rebuild(writer, rebuild, now)
    }

    /// The pod's record, unless its state is too uncertain to be worth one.
    ///
    /// # Errors
    /// The pod has left the index.
    pub fn checkpoint(&self, name: &str) -> Result<Option<PodCheckpoint>, PodRemoved> {
        let Some(resume_point) = self.feed.resume_point() else { return Ok(None) };
        let record = |blocks| PodCheckpoint {
            pod: name.to_owned(),
            identity: self.translator.identity(),
            resume_point,
            partial_groups: self.translator.partial_groups().to_vec(),
            blocks,
        };
        Ok(self.index.export(self.id)?.map(record))
    }

    /// Restores a record, before any message is handled. The state counts once a source has
    /// confirmed it; a record that is damaged or has another identity is dropped.
    ///
    /// # Errors
    /// The pod has left the index.
    pub fn restore(
        &mut self,
        writer: &mut IndexWriter,
        record: &PodCheckpoint,
    ) -> Result<(), PodRemoved> {
        let is_ours = record.identity == self.translator.identity();
        if !is_ours || writer.restore(self.id, &record.blocks).is_err() {
            self.feed.resume_failed();
            return Ok(());
        }
        if let Some(last) = record.resume_point.last {
            writer.start_at(self.id, last.saturating_add(1))?;
        }
        self.translator.restore_partial_groups(&record.partial_groups);
        self.feed.resume(record.resume_point);
        Ok(())
    }

    /// Adds a source of events.
    pub fn add_source(&mut self, capabilities: Capabilities) -> SourceId {
        self.feed.add_source(capabilities)
    }

    /// Removes a source, with the batches that are held of it.
    ///
    /// # Errors
    /// The pod has left the index.
    pub fn remove_source(
        &mut self,
        writer: &mut IndexWriter,
        from: SourceId,
        now: Moment,
    ) -> Result<(), PodRemoved> {
        self.held.retain(|held| held.source != from);
        self.held_items = self.held.iter().map(|held| held.batch.items()).sum();
        // Before it is removed, while it still counts as one that can be queried: another may take
        // over in a moment.
        self.handle(writer, from, SourceMessage::Disconnected, now)?;
        self.feed.remove_source(from);
        Ok(())
    }

    /// Handles a message of a source.
    ///
    /// # Errors
    /// The pod has left the index.
    pub fn handle(
        &mut self,
        writer: &mut IndexWriter,
        from: SourceId,
        message: SourceMessage,
        now: Moment,
    ) -> Result<(), PodRemoved> {
        let rebuild = match message {
            SourceMessage::Connected => {
                self.feed.connected(from, now);
                None
            }
            SourceMessage::Alive => {
                self.feed.alive(now);
                None
            }
            SourceMessage::Throttled => {
                self.feed.throttled();
                None
            }
            SourceMessage::Disconnected => self.feed.disconnected(from),
            // The feed knows from `Disconnected` that it is not connected.
            SourceMessage::Unreachable(_) => None,
            SourceMessage::Batch { id, delivery, batch } => {
                self.batch(writer, HeldBatch { source: from, id, batch }, delivery, now)?;
                None
            }
            SourceMessage::Malformed { id, reason } => self.feed.malformed(id, reason, now),
            SourceMessage::ReplayEnd => self.feed.replay_ended(from, now),
            SourceMessage::Snapshot { id, batch } => self.snapshot(writer, id, &batch, now)?,
            SourceMessage::Digest(digest) => self.digest(&digest, now)?,
            SourceMessage::Heartbeat(heartbeat) => self.feed.heartbeat(heartbeat, now),
            SourceMessage::Started(epoch) => self.feed.started(epoch, now),
            SourceMessage::Refused => {
                self.feed.refused(from);
                None
            }
            SourceMessage::Bye => self.feed.bye(now),
        };
        if let Some(rebuild) = rebuild {
            self.rebuild(writer, rebuild, now)?;
        }
        self.release(writer, now)
    }

    /// Runs due timers, and returns the next query and the source that it goes to.
    ///
    /// # Errors
    /// The pod has left the index.
    pub fn tick(
        &mut self,
        writer: &mut IndexWriter,
        now: Moment,
    ) -> Result<Option<(SourceId, SourceQuery)>, PodRemoved> {
        // A rebuild ends the reason for it, so the loop ends.
        while let Some(step) = self.feed.tick(now) {
            match step {
                FeedStep::Query(source, query) => return Ok(Some((source, query))),
                FeedStep::Rebuild(rebuild) => self.rebuild(writer, rebuild, now)?,
            }
        }
        self.release(writer, now)?;
        Ok(None)
    }

    /// When [`PodFeed::tick`] has something to do, if no message arrives before.
    #[must_use]
    pub fn next_tick(&self) -> Option<Moment> {
        self.feed.next_tick()
    }

    /// The state of the pod's events.
    #[must_use]
    pub fn status(&self, now: Moment) -> FeedStatus {
        self.feed.status(now)
    }

    fn batch(
        &mut self,
        writer: &mut IndexWriter,
        HeldBatch { source, id, batch }: HeldBatch,
        delivery: Delivery,
        now: Moment,
    ) -> Result<(), PodRemoved> {
        match self.feed.admit(source, id, delivery, now) {
            BatchAdmission::Skip => return Ok(()),
            BatchAdmission::Hold => {
                self.hold(HeldBatch { source, id, batch });
                return Ok(());
            }
            BatchAdmission::RebuildAndApply(rebuild) => self.rebuild(writer, rebuild, now)?,
            BatchAdmission::Apply => {}
        }
        let translated = match self.translator.translate(&batch) {
            Ok(translated) => translated,
            Err(error) => {
                let rebuild = self.feed.malformed(id, error.to_string(), now);
                return rebuild.map_or(Ok(()), |rebuild| self.rebuild(writer, rebuild, now));
            }
        };
        let outcome = writer.apply(self.id, id.sequence, &translated.events)?;
        let blocks = translated.events.iter().map(blocks).sum();
        self.feed.applied(id, outcome, blocks, now);
        Ok(())
    }

    fn hold(&mut self, held: HeldBatch) {
        let items = held.batch.items();
        if self.held.len() == MAX_HELD || self.held_items + items > MAX_HELD_ITEMS {
            self.feed.dropped();
            return;
        }
        self.held_items += items;
        self.held.push_back(held);
    }

    /// Applies held batches once the feed no longer holds them.
    fn release(&mut self, writer: &mut IndexWriter, now: Moment) -> Result<(), PodRemoved> {
        while !self.feed.holds()
            && let Some(held) = self.held.pop_front()
        {
            self.held_items -= held.batch.items();
            self.batch(writer, held, Delivery::Live, now)?;
        }
        Ok(())
    }

    fn snapshot(
        &mut self,
        writer: &mut IndexWriter,
        id: BatchId,
        batch: &WireBatch,
        now: Moment,
    ) -> Result<Option<Rebuild>, PodRemoved> {
        match self.feed.admit_snapshot(id, now) {
            BatchAdmission::Apply => {}
            BatchAdmission::RebuildAndApply(rebuild) => self.rebuild(writer, rebuild, now)?,
            BatchAdmission::Hold | BatchAdmission::Skip => return Ok(None),
        }
        let translated = match self.translator.translate(batch) {
            Ok(translated) => translated,
            Err(error) => {
                return Ok(self.feed.malformed(BatchId::default(), error.to_string(), now));
            }
        };
        let stored: Vec<StoredBlocks<'_>> = translated
            .events
            .iter()
            .filter_map(|event| match event {
                CacheEvent::Stored(stored) => Some(*stored),
                CacheEvent::Removed { .. } | CacheEvent::Cleared => None,
            })
            .collect();
        let snapshot = Snapshot { sequence: id.sequence, stored: &stored };
        let applied = writer.apply_snapshot(self.id, snapshot)?;
        self.feed.snapshot_applied(id, applied, now);
        Ok(None)
    }

    fn digest(
        &mut self,
        digest: &EngineDigest,
        now: Moment,
    ) -> Result<Option<Rebuild>, PodRemoved> {
        let ours = self.index.digest(self.id)?;
        Ok(self.feed.digest(digest, &ours, now))
    }

    fn rebuild(
        &mut self,
        writer: &mut IndexWriter,
        rebuild: Rebuild,
        now: Moment,
    ) -> Result<(), PodRemoved> {
        writer.apply(self.id, None, &[CacheEvent::Cleared])?;
        match rebuild {
            Rebuild::NewEpoch { first } => {
                self.translator = self.served_model.translator();
                // Past every number first, which drops all early batches.
                writer.start_at(self.id, u64::MAX)?;
                writer.start_at(self.id, first)?;
            }
            Rebuild::From(sequence) => {
                let caught_up = writer.start_at(self.id, sequence)?;
                self.feed.caught_up(caught_up, now);
            }
        }
        Ok(())
    }
}

fn blocks(event: &CacheEvent<'_>) -> usize {
    match event {
        CacheEvent::Stored(stored) => stored.blocks.len(),
        CacheEvent::Removed { blocks, .. } => blocks.len(),
        CacheEvent::Cleared => 0,
    }
}
