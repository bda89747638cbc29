//! One pod between its sources and the index: carries out what its [`Feed`] decides.
//!
//! All sources of a pod meet here, one at a time: an event is compared with the pod's epoch, translated
//! and applied under the same exclusive borrow, so that nothing of a life that is over slips in between.

use crate::checkpoint::PodCheckpoint;
use crate::feed::{BatchAdmission, Feed, FeedRules, FeedStatus, FeedStep, Rebuild, SourceId};
use crate::message::{BatchId, Capabilities, Delivery, EngineDigest, SourceMessage, SourceQuery};
use crate::translate::{BlockIdScheme, Translator};
use crate::wire::WireBatch;
use std::collections::VecDeque;
use std::num::NonZeroUsize;
use wornpath_blocks::HashKey;
use wornpath_index::{
    CacheEvent, Index, IndexWriter, Moment, PodId, PodRemoved, Snapshot, StoredBlocks,
};

/// What may be held while an answer is awaited: batches, and items (hashes and tokens) in them.
const MOST_HELD: usize = 1 << 10;
const MOST_HELD_ITEMS: usize = 4 << 20;

/// What a pod serves, which decides what its blocks are called in the index.
#[derive(Clone)]
pub struct ServedModel {
    /// The cell's key.
    pub key: HashKey,
    /// The base model.
    pub model: String,
    /// Tokens per block of the index for this model.
    pub block_size: NonZeroUsize,
    /// What blocks are called that come without tokens.
    pub names: BlockIdScheme,
}

impl ServedModel {
    fn translator(&self) -> Translator {
        Translator::new(&self.key, &self.model, self.block_size).with_names(self.names)
    }
}

/// A pod that is in the index.
pub struct PodFeed {
    id: PodId,
    index: Index,
    feed: Feed,
    serving: ServedModel,
    translator: Translator,
    held: VecDeque<(SourceId, BatchId, Box<WireBatch>)>,
    held_items: usize,
}

impl PodFeed {
    /// For a pod that was just added to the index.
    ///
    /// # Errors
    /// The pod has gone again.
    pub fn new(
        index: &Index,
        id: PodId,
        serving: ServedModel,
        rules: FeedRules,
    ) -> Result<Self, PodRemoved> {
        index.writer().start_at(id, 0)?;
        Ok(Self {
            id,
            index: index.clone(),
            feed: Feed::new(rules),
            translator: serving.translator(),
            serving,
            held: VecDeque::new(),
            held_items: 0,
        })
    }

    /// The pod's place in the index.
    #[must_use]
    pub fn id(&self) -> PodId {
        self.id
    }

    /// Goes by other rules from now on.
    pub fn set_rules(&mut self, rules: FeedRules) {
        self.feed.set_rules(rules);
    }

    /// The pod serves something else than was thought: what was said of it meant other blocks.
    ///
    /// # Errors
    /// The pod is no more in the index.
    pub fn serve(
        &mut self,
        writer: &mut IndexWriter,
        serving: ServedModel,
        now: Moment,
    ) -> Result<(), PodRemoved> {
        let (known, new) = (&self.serving, &serving);
        if (&known.model, known.block_size) == (&new.model, new.block_size) {
            return Ok(());
        }
        self.serving = serving;
        let rebuild = self.feed.begin_anew();
        self.rebuild(writer, rebuild, now)
    }

    /// What is worth writing down of it, under its name; nothing if that is not sure enough.
    ///
    /// # Errors
    /// The pod is no more in the index.
    pub fn record(&self, name: &str) -> Result<Option<PodCheckpoint>, PodRemoved> {
        let Some(memo) = self.feed.memo() else { return Ok(None) };
        let record = |items| PodCheckpoint {
            pod: name.to_owned(),
            naming: self.translator.naming(),
            memo,
            partial_groups: self.translator.partial_groups().to_vec(),
            items,
        };
        Ok(self.index.export(self.id)?.map(record))
    }

    /// Takes up what was written down, before anything was heard. It counts once a source has confirmed it; under
    /// another naming, or if it is damaged, never.
    ///
    /// # Errors
    /// The pod is no more in the index.
    pub fn recall(
        &mut self,
        writer: &mut IndexWriter,
        record: &PodCheckpoint,
    ) -> Result<(), PodRemoved> {
        let is_ours = record.naming == self.translator.naming();
        if !is_ours || writer.restore(self.id, &record.items).is_err() {
            self.feed.cannot_recall();
            return Ok(());
        }
        if let Some(last) = record.memo.last {
            writer.start_at(self.id, last.saturating_add(1))?;
        }
        self.translator.recall(&record.partial_groups);
        self.feed.recall(record.memo);
        Ok(())
    }

    /// Another source of events about this pod.
    pub fn add_source(&mut self, abilities: Capabilities) -> SourceId {
        self.feed.add_source(abilities)
    }

    /// A source ends. What is held of it goes: it can be had from another, or not at all.
    ///
    /// # Errors
    /// The pod is no more in the index.
    pub fn remove_source(
        &mut self,
        writer: &mut IndexWriter,
        from: SourceId,
        now: Moment,
    ) -> Result<(), PodRemoved> {
        self.held.retain(|(source, ..)| *source != from);
        self.held_items = self.held.iter().map(|(.., batch)| batch.items()).sum();
        // While it counts as one that can be asked: its place may be taken in a moment.
        self.hear(writer, from, SourceMessage::Disconnected, now)?;
        self.feed.remove_source(from);
        Ok(())
    }

    /// Takes in what a source says.
    ///
    /// # Errors
    /// The pod is no more in the index.
    pub fn hear(
        &mut self,
        writer: &mut IndexWriter,
        from: SourceId,
        said: SourceMessage,
        now: Moment,
    ) -> Result<(), PodRemoved> {
        let rebuild = match said {
            SourceMessage::Connected => {
                self.feed.connected(from, now);
                None
            }
            SourceMessage::Alive => {
                self.feed.alive(now);
                None
            }
            SourceMessage::Disconnected => self.feed.disconnected(from),
            // That it is not there is known already.
            SourceMessage::Unreachable(_) => None,
            SourceMessage::Batch { heading, via, batch } => {
                self.batch(writer, (from, heading, batch), via, now)?;
                None
            }
            SourceMessage::Malformed { heading, reason } => {
                self.feed.malformed(heading, reason, now)
            }
            SourceMessage::ReplayEnd => self.feed.replay_ended(from, now),
            SourceMessage::Snapshot { heading, batch } => {
                self.snapshot(writer, heading, &batch, now)?
            }
            SourceMessage::Digest(digest) => self.digest(&digest, now)?,
            SourceMessage::Beat(beat) => self.feed.beat(beat, now),
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

    /// Does what is due, and returns what is to be asked of which source.
    ///
    /// # Errors
    /// The pod is no more in the index.
    pub fn tick(
        &mut self,
        writer: &mut IndexWriter,
        now: Moment,
    ) -> Result<Option<(SourceId, SourceQuery)>, PodRemoved> {
        // A rebuild ends the need that it answers, so none comes twice at one moment.
        while let Some(step) = self.feed.tick(now) {
            match step {
                FeedStep::Ask(source, ask) => return Ok(Some((source, ask))),
                FeedStep::Rebuild(rebuild) => self.rebuild(writer, rebuild, now)?,
            }
        }
        self.release(writer, now)?;
        Ok(None)
    }

    /// When [`Pod::tick`] may have something to do, if nothing is said before.
    #[must_use]
    pub fn next_tick(&self) -> Option<Moment> {
        self.feed.next_tick()
    }

    /// Everything about the pod's events.
    #[must_use]
    pub fn status(&self, now: Moment) -> FeedStatus {
        self.feed.status(now)
    }

    fn batch(
        &mut self,
        writer: &mut IndexWriter,
        (from, heading, batch): (SourceId, BatchId, Box<WireBatch>),
        via: Delivery,
        now: Moment,
    ) -> Result<(), PodRemoved> {
        match self.feed.admit(from, heading, via, now) {
            BatchAdmission::PassOver => return Ok(()),
            BatchAdmission::Hold => {
                self.hold(from, heading, batch);
                return Ok(());
            }
            BatchAdmission::RebuildAndApply(rebuild) => self.rebuild(writer, rebuild, now)?,
            BatchAdmission::Apply => {}
        }
        let translated = match self.translator.translate(&batch) {
            Ok(translated) => translated,
            Err(error) => {
                let rebuild = self.feed.malformed(heading, error.to_string(), now);
                return rebuild.map_or(Ok(()), |rebuild| self.rebuild(writer, rebuild, now));
            }
        };
        let outcome = writer.apply(self.id, heading.sequence, &translated.events)?;
        let blocks = translated.events.iter().map(blocks).sum();
        self.feed.applied(heading, outcome, blocks, now);
        Ok(())
    }

    fn hold(&mut self, from: SourceId, heading: BatchId, batch: Box<WireBatch>) {
        let items = batch.items();
        if self.held.len() == MOST_HELD || self.held_items + items > MOST_HELD_ITEMS {
            self.feed.dropped();
            return;
        }
        self.held_items += items;
        self.held.push_back((from, heading, batch));
    }

    /// Applies what was held, once it may be.
    fn release(&mut self, writer: &mut IndexWriter, now: Moment) -> Result<(), PodRemoved> {
        while !self.feed.holds()
            && let Some(held) = self.held.pop_front()
        {
            self.held_items -= held.2.items();
            self.batch(writer, held, Delivery::Live, now)?;
        }
        Ok(())
    }

    fn snapshot(
        &mut self,
        writer: &mut IndexWriter,
        heading: BatchId,
        batch: &WireBatch,
        now: Moment,
    ) -> Result<Option<Rebuild>, PodRemoved> {
        match self.feed.admit_snapshot(heading, now) {
            BatchAdmission::Apply => {}
            BatchAdmission::RebuildAndApply(rebuild) => self.rebuild(writer, rebuild, now)?,
            BatchAdmission::Hold | BatchAdmission::PassOver => return Ok(None),
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
        let snapshot = Snapshot { sequence: heading.sequence, stored: &stored };
        let caught_up = writer.apply_snapshot(self.id, snapshot)?;
        self.feed.snapshot_applied(heading, caught_up, now);
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
            Rebuild::NewLife { first } => {
                self.translator = self.serving.translator();
                // Past every number, so that nothing that came early is left; then from the start.
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
