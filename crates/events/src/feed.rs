//! Consistency of one pod's events: every decision, and nothing else.
//!
//! The engine is the source of truth; a transport may lose, repeat and delay its events, or lose
//! the engine itself. A feed is told which messages arrive and what became of them in the index,
//! and decides: apply a batch, hold it, skip it, clear the pod's state, request a replay or a
//! snapshot. It does no I/O and reads no clock, so that tests run an hour of faults in a second and
//! reproduce it from a seed.
//!
//! - A batch is applied once. A sequence number that was applied before is a repetition, or the
//!   sign of a restart if the batch's fingerprint differs.
//! - A gap gets a moment to close by itself, then a replay is requested; if that cannot fill it, a
//!   snapshot; where there is none either, the pod's state is cleared and grows again
//!   ([`FeedState::Partial`]). No block stays that the engine does not hold.
//! - A snapshot may name blocks by hashes alone, which say nothing to a router that has not seen
//!   their tokens. The pod is then partial too, and its source is asked for a snapshot with tokens.
//! - A restart shows by a later epoch, by another batch under a known number, or, after the
//!   connection was lost, by a replay that does not begin with the last batch applied. Until that
//!   has arrived, live batches are held: they could belong to a new epoch.
//! - A lost tail is found by the engine's digest, or where there is none by probing a silent
//!   source: a replay from the last batch on.
//! - There is at most one query per second and pod, and fewer while they fail.
//!
//! The limit: a source without epochs and without replay shows a restart only by a broken
//! connection or by a low number, and batches that it lost stay unknown.

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
use liveness::{EarlierEpoch, EpochRelation};
use recent::{RecentBatches, Repetition};
use recovery::PendingQuery;
use status::Rate;
use std::collections::{BTreeMap, VecDeque};
use wornpath_index::{Applied, Moment};
use wornpath_time::Backoff;

/// A source of a pod.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SourceId(pub(crate) usize);

/// How the pod's state in the index is rebuilt. It is cleared first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rebuild {
    /// For a new epoch, or to fetch everything again: early batches are dropped too.
    NewEpoch {
        /// The batch to apply next: zero, unless earlier ones cannot be fetched.
        first: u64,
    },
    /// Continues the epoch from this batch on; later batches that were early stay.
    From(u64),
}

impl Rebuild {
    pub(crate) const FROM_START: Self = Self::NewEpoch { first: 0 };
}

/// What to do with a batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BatchAdmission {
    /// Apply it, and call [`Feed::applied`].
    Apply,
    /// Rebuild, then apply it.
    RebuildAndApply(Rebuild),
    /// Keep it until [`Feed::holds`] returns false, then admit it again.
    Hold,
    /// Drop it.
    Skip,
}

#[derive(Debug)]
struct FeedSource {
    capabilities: Capabilities,
    connected: bool,
    is_removed: bool,
}

/// The consistency state of one pod.
#[derive(Debug)]
pub struct Feed {
    rules: FeedRules,
    sources: Vec<FeedSource>,
    epoch: Option<Epoch>,
    /// An earlier epoch whose messages arrive while the current one is silent.
    resurfaced: Option<EarlierEpoch>,
    /// A later epoch that fell silent and was given up for the current one.
    given_up: Option<Epoch>,
    /// The number to apply next in this epoch.
    next: u64,
    /// The highest number known to exist.
    highest: Option<u64>,
    recent: RecentBatches,
    /// Batches that the index keeps until their predecessors arrive, with their fingerprints.
    early: BTreeMap<u64, Option<u64>>,
    /// Whether the source numbers its batches.
    numbered: bool,
    /// Whether there is a state that events can be applied to.
    has_base: bool,
    /// Since when batches are missing.
    gap: Option<Moment>,
    /// The engine's digest does not match the index.
    digest_differs: bool,
    /// Whether the engine still runs in the current epoch has to be verified.
    verifying: bool,
    partial: bool,
    /// Hashes of the last snapshot whose tokens are unknown.
    unnamed: u64,
    /// A source may have what a partial state lacks.
    wants_rest: bool,
    /// Between queries for the rest. A source that ignores them leaves the pod partial, and the
    /// rest of its events as good as they are.
    rest_backoff: Backoff,
    /// What became of the checkpoint, if there was one.
    resumed: Option<Resumed>,
    /// Until when the checkpoint may wait to be confirmed.
    resume_deadline: Option<Moment>,
    /// A replay does not fill the gap.
    replay_exhausted: bool,
    pending: Option<PendingQuery>,
    /// Between queries; a failure is a query without a usable reply.
    backoff: Backoff,
    /// When the last query was sent, unless it cost the source nothing.
    last_query: Option<Moment>,
    /// A snapshot was applied because digests differed, and no digest has arrived since.
    repaired: bool,
    last_activity: Option<Moment>,
    malformed: VecDeque<Moment>,
    last_malformed: Option<String>,
    quarantined_until: Option<Moment>,
    rate: Rate,
    phantom: u64,
    missing: u64,
    counters: FeedCounters,
}

impl Feed {
    /// Knows nothing of the pod yet.
    #[must_use]
    pub fn new(rules: FeedRules) -> Self {
        Self {
            rules,
            sources: Vec::new(),
            epoch: None,
            resurfaced: None,
            given_up: None,
            next: 0,
            highest: None,
            recent: RecentBatches::default(),
            early: BTreeMap::new(),
            numbered: false,
            has_base: false,
            gap: None,
            digest_differs: false,
            verifying: false,
            partial: false,
            unnamed: 0,
            wants_rest: false,
            rest_backoff: Backoff::new(rules.min_query_interval, rules.max_query_interval),
            resumed: None,
            resume_deadline: None,
            replay_exhausted: false,
            pending: None,
            backoff: Backoff::new(rules.min_query_interval, rules.max_query_interval),
            last_query: None,
            repaired: false,
            last_activity: None,
            malformed: VecDeque::new(),
            last_malformed: None,
            quarantined_until: None,
            rate: Rate::default(),
            phantom: 0,
            missing: 0,
            counters: FeedCounters::default(),
        }
    }

    /// Changes the rules.
    pub fn set_rules(&mut self, rules: FeedRules) {
        self.rules = rules;
        for backoff in [&mut self.backoff, &mut self.rest_backoff] {
            backoff.set_limits(rules.min_query_interval, rules.max_query_interval);
        }
    }

    /// Adds a source.
    pub fn add_source(&mut self, capabilities: Capabilities) -> SourceId {
        let source = FeedSource { capabilities, connected: false, is_removed: false };
        if let Some(at) = self.sources.iter().position(|source| source.is_removed) {
            self.sources[at] = source;
            return SourceId(at);
        }
        self.sources.push(source);
        SourceId(self.sources.len() - 1)
    }

    /// Removes a source that is disconnected.
    pub fn remove_source(&mut self, from: SourceId) {
        if let Some(source) = self.sources.get_mut(from.0) {
            let capabilities = Capabilities::default();
            *source = FeedSource { capabilities, connected: false, is_removed: true };
        }
    }

    /// A source is disconnected.
    pub fn disconnected(&mut self, from: SourceId) -> Option<Rebuild> {
        if let Some(source) = self.sources.get_mut(from.0) {
            source.connected = false;
        }
        if self.pending.as_ref().is_some_and(|query| query.source == from) {
            self.pending = None;
        }
        if self.epoch.is_some() || !self.numbered {
            return None;
        }
        if !self.can_query() {
            return Some(self.start_epoch(None));
        }
        if self.next > 0 {
            self.verifying = true;
            return None;
        }
        self.clear_state();
        self.has_base = false;
        Some(Rebuild::FROM_START)
    }

    /// The start time of the engine's process was learnt from elsewhere.
    pub fn started(&mut self, epoch: Epoch, now: Moment) -> Option<Rebuild> {
        let relation = self.compare_epoch(Some(epoch), Delivery::Live, now);
        if relation == EpochRelation::Outdated {
            self.counters.outdated += 1;
            return None;
        }
        self.note_activity(now);
        self.epoch = self.epoch.or(Some(epoch));
        (relation == EpochRelation::New).then(|| self.start_epoch(Some(epoch)))
    }

    /// Clears the state, quarantine included, and fetches everything again.
    pub fn reset(&mut self) -> Rebuild {
        self.malformed.clear();
        self.last_malformed = None;
        self.quarantined_until = None;
        self.clear_state();
        self.has_base = false;
        Rebuild::FROM_START
    }

    /// The engine shuts down.
    pub fn bye(&mut self, now: Moment) -> Option<Rebuild> {
        self.note_activity(now);
        self.clear_state();
        Some(Rebuild::FROM_START)
    }

    /// Decides what to do with a batch.
    pub fn admit(
        &mut self,
        from: SourceId,
        id: BatchId,
        delivery: Delivery,
        now: Moment,
    ) -> BatchAdmission {
        if self.is_quarantined(now) {
            return BatchAdmission::Skip;
        }
        let relation = self.compare_epoch(id.epoch, delivery, now);
        if relation != EpochRelation::Outdated {
            self.note_batch(from, delivery, now);
        }
        if self.numbered && id.sequence.is_none() {
            self.counters.unnumbered += 1;
            return BatchAdmission::Skip;
        }
        match relation {
            EpochRelation::Outdated => {
                self.counters.outdated += 1;
                if delivery == Delivery::Replay {
                    self.note_reply_progress(from, now);
                }
                BatchAdmission::Skip
            }
            EpochRelation::New => {
                let rebuild = self.start_epoch(id.epoch);
                match self.admit_numbered(from, id, delivery, now) {
                    further @ BatchAdmission::RebuildAndApply(_) => further,
                    _ => BatchAdmission::RebuildAndApply(rebuild),
                }
            }
            EpochRelation::Same => {
                self.epoch = self.epoch.or(id.epoch);
                self.admit_numbered(from, id, delivery, now)
            }
        }
    }

    fn admit_numbered(
        &mut self,
        from: SourceId,
        id: BatchId,
        delivery: Delivery,
        now: Moment,
    ) -> BatchAdmission {
        let Some(sequence) = id.sequence else {
            if !self.has_base && self.can(|capabilities| capabilities.snapshot) {
                // What the engine held before is unknown.
                self.partial = true;
                self.wants_rest = true;
            }
            self.has_base = true;
            return BatchAdmission::Apply;
        };
        self.numbered = true;
        match delivery {
            Delivery::Live => self.admit_live(sequence, id),
            Delivery::Replay => self.admit_replayed(from, sequence, id, now),
        }
    }

    fn admit_live(&mut self, sequence: u64, id: BatchId) -> BatchAdmission {
        if self.holds() {
            return BatchAdmission::Hold;
        }
        if !self.has_base && !self.can_query() {
            self.has_base = true;
            self.partial = sequence > 0;
            self.next = sequence;
            return BatchAdmission::RebuildAndApply(Rebuild::NewEpoch { first: sequence });
        }
        if sequence >= self.next {
            return BatchAdmission::Apply;
        }
        match self.recent.compare(sequence, id.fingerprint) {
            Repetition::Same => self.repeated(),
            Repetition::Unknown if self.epoch.is_some() => self.repeated(),
            Repetition::Unknown if self.can_query() => {
                self.verifying = true;
                BatchAdmission::Hold
            }
            Repetition::Other | Repetition::Unknown => self.start_epoch_at(sequence),
        }
    }

    /// A batch shows that the engine has restarted.
    fn start_epoch_at(&mut self, sequence: u64) -> BatchAdmission {
        let rebuild = self.start_epoch(None);
        if self.has_base {
            return BatchAdmission::RebuildAndApply(rebuild);
        }
        self.has_base = true;
        self.partial = sequence > 0;
        self.next = sequence;
        BatchAdmission::RebuildAndApply(Rebuild::NewEpoch { first: sequence })
    }

    fn repeated(&mut self) -> BatchAdmission {
        self.counters.repeated += 1;
        BatchAdmission::Skip
    }

    /// Records the outcome of applying a batch of `blocks` blocks.
    pub fn applied(&mut self, id: BatchId, outcome: Applied, blocks: usize, now: Moment) {
        self.counters.blocks += blocks as u64;
        self.rate.note(blocks as u64, now);
        let Some(sequence) = id.sequence else {
            self.counters.batches += 1;
            return;
        };
        self.highest = self.highest.max(Some(sequence));
        match outcome {
            Applied::Now { caught_up } => {
                self.counters.batches += 1 + caught_up as u64;
                self.recent.note(sequence, id.fingerprint);
                self.advance(sequence.saturating_add(1).saturating_add(caught_up as u64));
            }
            Applied::Duplicate => self.counters.repeated += 1,
            Applied::Early { .. } if self.early.len() < self.rules.max_early => {
                self.early.insert(sequence, id.fingerprint);
            }
            Applied::Early { .. } | Applied::Dropped { .. } => self.counters.dropped += 1,
        }
        self.note_gap(now);
    }

    /// Records how many early batches were applied after a [`Rebuild::From`].
    pub fn caught_up(&mut self, batches: usize, now: Moment) {
        self.counters.batches += batches as u64;
        self.advance(self.next.saturating_add(batches as u64));
        self.note_gap(now);
    }

    /// Records a malformed batch, which is missing now unless it belongs to an earlier epoch. Too
    /// many of them put the pod into quarantine.
    pub fn malformed(
        &mut self,
        BatchId { epoch, sequence, .. }: BatchId,
        reason: String,
        now: Moment,
    ) -> Option<Rebuild> {
        if epoch.is_some_and(|epoch| self.epoch.is_some_and(|known| epoch < known)) {
            self.counters.outdated += 1;
            if let Some(query) = &mut self.pending {
                query.at = now;
            }
            return None;
        }
        if self.is_past_unreadable(sequence, now) {
            self.note_unreadable(now);
            return None;
        }
        self.counters.malformed += 1;
        self.last_malformed = Some(reason);
        if self.is_quarantined(now) {
            return None;
        }
        self.note_unreadable(now);
        if let Some(sequence) = sequence.filter(|sequence| *sequence >= self.next) {
            self.highest = self.highest.max(Some(sequence));
            self.note_gap(now);
        }
        let since = now.saturating_sub(self.rules.malformed_window);
        self.malformed.push_back(now);
        self.malformed.retain(|at| *at >= since);
        if self.malformed.len() <= self.rules.max_malformed {
            return None;
        }
        self.malformed.clear();
        self.quarantined_until = Some(now + self.rules.quarantine);
        self.clear_state();
        self.has_base = false;
        Some(Rebuild::FROM_START)
    }

    /// Counts a batch that exceeded the bounds of held batches.
    pub fn dropped(&mut self) {
        self.counters.dropped += 1;
    }

    /// Whether live batches are held.
    #[must_use]
    pub fn holds(&self) -> bool {
        self.verifying || self.pending.as_ref().is_some_and(PendingQuery::replaces_state)
    }

    /// Batches that are known to exist and not applied. The highest number may be `u64::MAX`.
    fn lag(&self) -> u64 {
        self.highest.map_or(0, |highest| highest.saturating_add(1).saturating_sub(self.next))
    }

    /// The status at `now`.
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
            age: self.last_activity.map(|last| now.since(last)),
            phantom: self.phantom,
            missing: self.missing,
            unnamed: self.unnamed,
            resumed: self.resumed,
            counters: self.counters,
            last_malformed: self.last_malformed.clone(),
        }
    }

    fn is_quarantined(&self, now: Moment) -> bool {
        self.quarantined_until.is_some_and(|until| now < until)
    }

    /// Whether a source, connected or not, has the capability.
    fn can(&self, capability: impl Fn(Capabilities) -> bool) -> bool {
        self.sources.iter().any(|source| capability(source.capabilities))
    }

    fn can_query(&self) -> bool {
        self.can(|capabilities| capabilities.replay || capabilities.snapshot)
    }

    /// Starts a new epoch.
    fn start_epoch(&mut self, epoch: Option<Epoch>) -> Rebuild {
        self.clear_state();
        self.epoch = epoch;
        self.counters.restarts += 1;
        // Its numbers begin at zero, so a missing start shows as a gap. Without queries the first
        // batch to arrive is the base.
        self.has_base = self.can_query();
        Rebuild::FROM_START
    }

    fn clear_state(&mut self) {
        self.drop_resumed();
        self.next = 0;
        self.highest = None;
        self.recent.clear();
        self.early.clear();
        self.gap = None;
        self.digest_differs = false;
        self.verifying = false;
        self.become_whole();
        self.replay_exhausted = false;
        self.pending = None;
    }

    /// Nothing of the engine's state is missing.
    fn become_whole(&mut self) {
        self.partial = false;
        self.unnamed = 0;
        self.wants_rest = false;
        self.rest_backoff.succeeded();
    }

    /// Moves on to `next`; early batches before it have been applied.
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
