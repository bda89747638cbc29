//! What to make of what is said about one pod: every decision about consistency, and nothing else.
//!
//! The engine is the source of truth, and whatever carries its events may lose, repeat and delay them, or
//! lose the engine itself. A feed is told what comes and what became of it in the index, and decides:
//! apply it, hold it, pass it over, forget the pod's state, ask for a replay or a snapshot. It does no I/O
//! and reads no clock, so that an hour of faults is tested in a second and replays from a seed.
//!
//! - A batch counts once. Its number says its place; a number that was applied before is a repetition, or
//!   the sign of a restart when the batch's fingerprint differs.
//! - A gap is given a moment to close by itself, then replayed; what cannot be replayed is replaced by a
//!   snapshot; where there is none either, the pod's state is forgotten and grows again ([`State::Partial`]).
//!   Nothing that the engine does not hold stays.
//! - A restart is known by a later epoch, by a number with another batch than before, or, after the
//!   connection was lost, by a replay that does not begin with the last batch applied. Until that has
//!   come, live batches are held: they could be another life's.
//! - A lost tail is found by the engine's digest, or where there is none by asking a silent source to
//!   replay from the last batch on.
//! - There is at most one question per second and pod, and fewer while they fail.
//!
//! The limit: a source without epochs and without replay shows a restart only by breaking its connection
//! or by a low number, and what it lost stays unknown.

mod backoff;
mod epoch;
mod liveness;
mod recent;
mod recovery;
mod replies;
mod resume;
mod rules;
mod status;

pub use recovery::FeedStep;
pub use resume::ResumePoint;
pub use rules::FeedRules;
pub use status::{FeedCounters, FeedState, FeedStatus, Resumed};

use crate::message::{BatchId, Capabilities, Delivery, Epoch};
use backoff::Backoff;
use epoch::{EpochRelation, RivalEpoch};
use recent::{RecentBatches, Repetition};
use recovery::PendingQuery;
use status::Rate;
use std::collections::{BTreeMap, VecDeque};
use wornpath_index::{Applied, Moment};

/// One of the sources that speak about a pod.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SourceId(pub(crate) usize);

/// How the pod's state in the index is to begin anew. Everything it held goes first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rebuild {
    /// Another life of the engine, or all doubt about this one: batches that came early go as well.
    NewLife {
        /// The batch to be applied next: zero, unless what came before it cannot be had.
        first: u64,
    },
    /// The same life from this batch on; later ones that came early stay.
    From(u64),
}

impl Rebuild {
    /// From the very start.
    pub(crate) const ANEW: Self = Self::NewLife { first: 0 };
}

/// What to do with a batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BatchAdmission {
    /// Apply it, and tell [`Feed::applied`].
    Apply,
    /// Begin anew, then apply it.
    RebuildAndApply(Rebuild),
    /// Keep it until [`Feed::holds`] says no more, then ask again.
    Hold,
    /// It has no effect.
    PassOver,
}

#[derive(Debug)]
struct FeedSource {
    abilities: Capabilities,
    connected: bool,
    is_gone: bool,
}

/// The state of knowledge about one pod.
#[derive(Debug)]
pub struct Feed {
    rules: FeedRules,
    sources: Vec<FeedSource>,
    epoch: Option<Epoch>,
    /// An earlier life that speaks while this one does not.
    rival: Option<RivalEpoch>,
    /// A later life that fell silent and was given up for this one.
    silenced: Option<Epoch>,
    /// The number to be applied next, in this life.
    next: u64,
    /// The highest number known to exist.
    highest: Option<u64>,
    recent: RecentBatches,
    /// Batches that the index keeps until their turn, with their fingerprints.
    early: BTreeMap<u64, Option<u64>>,
    /// Whether the source numbers its batches.
    numbered: bool,
    /// Whether there is a state from which events can go on.
    based: bool,
    /// Since when batches are missing.
    gap: Option<Moment>,
    /// The engine's digest says that the state is wrong.
    differs: bool,
    /// Whether this is still the life that was known is to be found out.
    verifying: bool,
    partial: bool,
    /// What became of what an earlier feed had written down, if anything was.
    recalled: Option<Resumed>,
    /// Until when it may wait to be confirmed.
    recalled_until: Option<Moment>,
    /// A replay cannot fill the gap.
    replay_useless: bool,
    asked: Option<PendingQuery>,
    pace: Backoff,
    /// A snapshot was applied because digests differed, and no digest has come since.
    cured: bool,
    heard: Option<Moment>,
    malformed: VecDeque<Moment>,
    last_malformed: Option<String>,
    quarantined_until: Option<Moment>,
    rate: Rate,
    phantom: u64,
    missing: u64,
    counters: FeedCounters,
}

impl Feed {
    /// For a pod of which nothing is known.
    #[must_use]
    pub fn new(rules: FeedRules) -> Self {
        Self {
            rules,
            sources: Vec::new(),
            epoch: None,
            rival: None,
            silenced: None,
            next: 0,
            highest: None,
            recent: RecentBatches::default(),
            early: BTreeMap::new(),
            numbered: false,
            based: false,
            gap: None,
            differs: false,
            verifying: false,
            partial: false,
            recalled: None,
            recalled_until: None,
            replay_useless: false,
            asked: None,
            pace: Backoff::default(),
            cured: false,
            heard: None,
            malformed: VecDeque::new(),
            last_malformed: None,
            quarantined_until: None,
            rate: Rate::default(),
            phantom: 0,
            missing: 0,
            counters: FeedCounters::default(),
        }
    }

    /// Goes by other rules from now on.
    pub fn set_rules(&mut self, rules: FeedRules) {
        self.rules = rules;
    }

    /// Another source of this pod.
    pub fn add_source(&mut self, abilities: Capabilities) -> SourceId {
        let source = FeedSource { abilities, connected: false, is_gone: false };
        if let Some(at) = self.sources.iter().position(|source| source.is_gone) {
            self.sources[at] = source;
            return SourceId(at);
        }
        self.sources.push(source);
        SourceId(self.sources.len() - 1)
    }

    /// A source that is disconnected does not come back: nothing can be asked of it.
    pub fn remove_source(&mut self, from: SourceId) {
        if let Some(source) = self.sources.get_mut(from.0) {
            let abilities = Capabilities::default();
            *source = FeedSource { abilities, connected: false, is_gone: true };
        }
    }

    /// A source cannot be reached any more.
    pub fn disconnected(&mut self, from: SourceId) -> Option<Rebuild> {
        if let Some(source) = self.sources.get_mut(from.0) {
            source.connected = false;
        }
        if self.asked.as_ref().is_some_and(|asked| asked.source == from) {
            self.asked = None;
        }
        if self.epoch.is_some() || !self.numbered {
            return None;
        }
        if !self.can_ask() {
            return Some(self.begin(None));
        }
        if self.next > 0 {
            self.verifying = true;
            return None;
        }
        self.forget();
        self.based = false;
        Some(Rebuild::ANEW)
    }

    /// The engine's process started then, as learnt from elsewhere.
    pub fn started(&mut self, epoch: Epoch, now: Moment) -> Option<Rebuild> {
        let life = self.life(Some(epoch), Delivery::Live, now);
        if life == EpochRelation::Over {
            self.counters.outdated += 1;
            return None;
        }
        self.hear(now);
        self.epoch = self.epoch.or(Some(epoch));
        (life == EpochRelation::New).then(|| self.begin(Some(epoch)))
    }

    /// What was said so far is not to be kept, and wanted again: also what could not be understood.
    pub fn begin_anew(&mut self) -> Rebuild {
        self.malformed.clear();
        self.last_malformed = None;
        self.quarantined_until = None;
        self.forget();
        self.based = false;
        Rebuild::ANEW
    }

    /// The engine says that it ends.
    pub fn bye(&mut self, now: Moment) -> Option<Rebuild> {
        self.hear(now);
        self.forget();
        Some(Rebuild::ANEW)
    }

    /// What to do with a batch.
    pub fn admit(
        &mut self,
        from: SourceId,
        heading: BatchId,
        via: Delivery,
        now: Moment,
    ) -> BatchAdmission {
        if self.is_quarantined(now) {
            return BatchAdmission::PassOver;
        }
        let life = self.life(heading.epoch, via, now);
        if life != EpochRelation::Over {
            self.hear_batch(from, via, now);
        }
        if self.numbered && heading.sequence.is_none() {
            self.counters.unnumbered += 1;
            return BatchAdmission::PassOver;
        }
        match life {
            EpochRelation::Over => {
                self.counters.outdated += 1;
                if via == Delivery::Replay {
                    self.answer_goes_on(from, now);
                }
                BatchAdmission::PassOver
            }
            EpochRelation::New => {
                let rebuild = self.begin(heading.epoch);
                match self.admit_numbered(from, heading, via, now) {
                    further @ BatchAdmission::RebuildAndApply(_) => further,
                    _ => BatchAdmission::RebuildAndApply(rebuild),
                }
            }
            EpochRelation::Same => {
                self.epoch = self.epoch.or(heading.epoch);
                self.admit_numbered(from, heading, via, now)
            }
        }
    }

    fn admit_numbered(
        &mut self,
        from: SourceId,
        heading: BatchId,
        via: Delivery,
        now: Moment,
    ) -> BatchAdmission {
        let Some(sequence) = heading.sequence else {
            self.based = true;
            return BatchAdmission::Apply;
        };
        self.numbered = true;
        match via {
            Delivery::Live => self.admit_live(sequence, heading),
            Delivery::Replay => self.admit_replayed(from, sequence, heading, now),
        }
    }

    fn admit_live(&mut self, sequence: u64, heading: BatchId) -> BatchAdmission {
        if self.holds() {
            return BatchAdmission::Hold;
        }
        if !self.based && !self.can_ask() {
            self.based = true;
            self.partial = sequence > 0;
            self.next = sequence;
            return BatchAdmission::RebuildAndApply(Rebuild::NewLife { first: sequence });
        }
        if sequence >= self.next {
            return BatchAdmission::Apply;
        }
        match self.recent.compare(sequence, heading.fingerprint) {
            Repetition::Same => self.repeated(),
            Repetition::Unknown if self.epoch.is_some() => self.repeated(),
            Repetition::Unknown if self.can_ask() => {
                self.verifying = true;
                BatchAdmission::Hold
            }
            Repetition::Other | Repetition::Unknown => self.begin_with(sequence),
        }
    }

    /// Another life shows itself by a batch of its own.
    fn begin_with(&mut self, sequence: u64) -> BatchAdmission {
        let rebuild = self.begin(None);
        if self.based {
            return BatchAdmission::RebuildAndApply(rebuild);
        }
        self.based = true;
        self.partial = sequence > 0;
        self.next = sequence;
        BatchAdmission::RebuildAndApply(Rebuild::NewLife { first: sequence })
    }

    fn repeated(&mut self) -> BatchAdmission {
        self.counters.repeated += 1;
        BatchAdmission::PassOver
    }

    /// Tells what became of a batch of `blocks` blocks that was applied.
    pub fn applied(&mut self, heading: BatchId, outcome: Applied, blocks: usize, now: Moment) {
        self.counters.blocks += blocks as u64;
        self.rate.note(blocks as u64, now);
        let Some(sequence) = heading.sequence else {
            self.counters.batches += 1;
            return;
        };
        self.highest = self.highest.max(Some(sequence));
        match outcome {
            Applied::Now { caught_up } => {
                self.counters.batches += 1 + caught_up as u64;
                self.recent.note(sequence, heading.fingerprint);
                self.advance(sequence.saturating_add(1).saturating_add(caught_up as u64));
            }
            Applied::Duplicate => self.counters.repeated += 1,
            Applied::Early { .. } if self.early.len() < self.rules.early_most => {
                self.early.insert(sequence, heading.fingerprint);
            }
            Applied::Early { .. } | Applied::Dropped { .. } => self.counters.dropped += 1,
        }
        self.note_gap(now);
    }

    /// Tells how many batches that had come early followed a [`Rebuild::From`].
    pub fn caught_up(&mut self, batches: usize, now: Moment) {
        self.counters.batches += batches as u64;
        self.advance(self.next.saturating_add(batches as u64));
        self.note_gap(now);
    }

    /// Something came that could not be understood: it is missing now, unless it is of a life that is over. Many of
    /// them, and the pod's events are passed over for a while.
    pub fn malformed(
        &mut self,
        BatchId { epoch, sequence, .. }: BatchId,
        reason: String,
        now: Moment,
    ) -> Option<Rebuild> {
        if epoch.is_some_and(|epoch| self.epoch.is_some_and(|known| epoch < known)) {
            self.counters.outdated += 1;
            if let Some(asked) = &mut self.asked {
                asked.at = now;
            }
            return None;
        }
        if self.is_gone_past(sequence, now) {
            self.hear_unreadable(now);
            return None;
        }
        self.counters.malformed += 1;
        self.last_malformed = Some(reason);
        if self.is_quarantined(now) {
            return None;
        }
        self.hear_unreadable(now);
        if let Some(sequence) = sequence.filter(|sequence| *sequence >= self.next) {
            self.highest = self.highest.max(Some(sequence));
            self.note_gap(now);
        }
        let since = now.saturating_sub(self.rules.malformed_within);
        self.malformed.push_back(now);
        self.malformed.retain(|at| *at >= since);
        if self.malformed.len() <= self.rules.malformed_most {
            return None;
        }
        self.malformed.clear();
        self.quarantined_until = Some(now + self.rules.quarantine);
        self.forget();
        self.based = false;
        Some(Rebuild::ANEW)
    }

    /// A batch that was held found no room, or one for which the index had none.
    pub fn dropped(&mut self) {
        self.counters.dropped += 1;
    }

    /// Whether live batches are to be held.
    #[must_use]
    pub fn holds(&self) -> bool {
        self.verifying || self.asked.as_ref().is_some_and(PendingQuery::is_snapshot)
    }

    /// How many batches are known to exist that are not applied. There may be one with the greatest number of all.
    fn lag(&self) -> u64 {
        self.highest.map_or(0, |highest| highest.saturating_add(1).saturating_sub(self.next))
    }

    /// Everything about the pod's events.
    #[must_use]
    pub fn status(&self, now: Moment) -> FeedStatus {
        FeedStatus {
            state: self.state(now),
            confidence: self.confidence(now),
            freshness: self.freshness(now),
            epoch: self.epoch,
            last_sequence: self.next.checked_sub(1).filter(|_| self.numbered),
            lag: self.lag(),
            rate: self.rate.at(now),
            age: self.heard.map(|heard| now.saturating_sub(heard)),
            phantom: self.phantom,
            missing: self.missing,
            recalled: self.recalled,
            counters: self.counters,
            last_malformed: self.last_malformed.clone(),
        }
    }

    fn is_quarantined(&self, now: Moment) -> bool {
        self.quarantined_until.is_some_and(|until| now < until)
    }

    /// Whether some source, reachable or not, can do something.
    fn can(&self, ability: impl Fn(Capabilities) -> bool) -> bool {
        self.sources.iter().any(|source| ability(source.abilities))
    }

    fn can_ask(&self) -> bool {
        self.can(|abilities| abilities.replay || abilities.snapshot)
    }

    /// A new life of the engine.
    fn begin(&mut self, epoch: Option<Epoch>) -> Rebuild {
        self.forget();
        self.epoch = epoch;
        self.counters.restarts += 1;
        // Its numbers begin at zero, so all that it ever said can be missed or had. Who cannot ask goes
        // on with what comes first.
        self.based = self.can_ask();
        Rebuild::ANEW
    }

    fn forget(&mut self) {
        self.drop_recalled();
        self.next = 0;
        self.highest = None;
        self.recent.clear();
        self.early.clear();
        self.gap = None;
        self.differs = false;
        self.verifying = false;
        self.partial = false;
        self.replay_useless = false;
        self.asked = None;
    }

    /// Moves on to `next`; what had come early and is before it has been applied.
    fn advance(&mut self, next: u64) {
        let after = self.early.split_off(&next);
        for (sequence, fingerprint) in std::mem::replace(&mut self.early, after) {
            self.recent.note(sequence, fingerprint);
        }
        self.next = next;
    }

    fn note_gap(&mut self, now: Moment) {
        if self.highest.is_none_or(|highest| highest < self.next) {
            self.gap = None;
        } else if self.gap.is_none() {
            self.gap = Some(now);
            self.counters.gaps += 1;
        }
    }
}

#[cfg(test)]
mod tests;
