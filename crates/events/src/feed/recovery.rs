//! What a feed needs next, and when it may ask for it.

use super::replies::ReplyFailure;
use super::{Feed, Rebuild, SourceId};
use crate::message::{Capabilities, SourceQuery};
use wornpath_index::Moment;

/// A question that waits for its answer.
#[derive(Debug)]
pub(super) struct PendingQuery {
    pub(super) source: SourceId,
    /// When it was asked, or something of the answer came.
    pub(super) at: Moment,
    pub(super) is_probe: bool,
    /// For a replay, what has come of it.
    pub(super) answer: Option<Reply>,
}

#[derive(Debug)]
pub(super) struct Reply {
    pub(super) from: u64,
    /// What was to be applied next when it was asked for.
    pub(super) next: u64,
    /// The highest number that came.
    pub(super) highest: Option<u64>,
    /// The highest number of what came and could not be understood.
    pub(super) unreadable: Option<u64>,
}

impl PendingQuery {
    pub(super) fn is_snapshot(&self) -> bool {
        self.answer.is_none()
    }

    /// The answer, of which something more has just come.
    pub(super) fn answer_mut(&mut self, now: Moment) -> Option<&mut Reply> {
        self.at = now;
        self.answer.as_mut()
    }
}

/// Something to do of the feed's own accord.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FeedStep {
    /// Ask a source.
    Ask(SourceId, SourceQuery),
    /// Begin anew.
    Rebuild(Rebuild),
}

/// How many times longer a source may take that answers for many pods.
const TURNS: u32 = 20;

/// Why something is to be asked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Recovery {
    /// There is nothing to go on from.
    Base,
    /// Batches are missing, or it is not known whose they are.
    Batches,
    /// The state is wrong.
    State,
    /// Nothing is known to be wrong; a silent source is asked whether there was more.
    Probe,
}

impl Feed {
    /// What is to be done at `now`, if anything. To be called again until it says nothing.
    pub fn tick(&mut self, now: Moment) -> Option<FeedStep> {
        if self.quarantined_until.is_some_and(|until| now >= until) {
            self.quarantined_until = None;
        }
        if let Some(rebuild) = self.give_up_recalled(now) {
            return Some(FeedStep::Rebuild(rebuild));
        }
        if self.answer_until().is_some_and(|until| now >= until)
            && let Some(asked) = self.asked.take()
        {
            self.fail(&asked, ReplyFailure::Silence);
        }
        let (need, way, due) = self.need()?;
        if now < due {
            return None;
        }
        Some(self.take(need, way, now))
    }

    /// When [`Feed::tick`] may have something to do, if nothing is said before.
    #[must_use]
    pub fn next_tick(&self) -> Option<Moment> {
        let silence = self.answer_until();
        let need = self.need().map(|(_, _, due)| due);
        let given_up =
            self.awaits_confirmation().then(|| self.recalled_until.unwrap_or(Moment::ZERO));
        [silence, need, self.quarantined_until, given_up].into_iter().flatten().min()
    }

    /// Until when there must be an answer, or more of it. A broker reads for one pod after the other.
    fn answer_until(&self) -> Option<Moment> {
        let asked = self.asked.as_ref()?;
        let source = self.sources.get(asked.source.0);
        let is_relayed = source.is_some_and(|source| source.abilities.relayed);
        let turns = if is_relayed { TURNS } else { 1 };
        Some(asked.at + self.rules.answer_within * turns)
    }

    /// The most pressing need for which something can be done, what, and when it is due.
    fn need(&self) -> Option<(Recovery, RecoveryMethod, Moment)> {
        let reachable = self.sources.iter().any(|source| source.connected);
        if self.asked.is_some() || self.quarantined_until.is_some() || !reachable {
            return None;
        }
        let ready = self.pace.ready_at(&self.rules);
        let (need, due) = if self.differs {
            (Recovery::State, ready)
        } else if !self.based {
            (Recovery::Base, ready)
        } else if self.verifying {
            (Recovery::Batches, ready)
        } else if let Some(since) = self.gap {
            (Recovery::Batches, ready.max(since + self.rules.grace))
        } else {
            (Recovery::Probe, ready.max(self.heard? + self.rules.probe_after))
        };
        self.way(need).map(|way| (need, way, due))
    }

    /// How a need can be met now.
    fn way(&self, need: Recovery) -> Option<RecoveryMethod> {
        let replay =
            self.able(|one| one.replay && !self.replay_useless).map(RecoveryMethod::Replay);
        let snapshot = self.able(|one| one.snapshot).map(RecoveryMethod::Snapshot);
        let later = self.can(|one| one.snapshot || (one.replay && !self.replay_useless));
        match need {
            Recovery::Base if !self.can_ask() => None,
            Recovery::Base => snapshot.or(replay).or((!later).then_some(RecoveryMethod::Onward)),
            Recovery::Batches => replay.or(snapshot).or((!later).then_some(RecoveryMethod::Onward)),
            Recovery::State if self.can(|one| one.snapshot) => snapshot,
            Recovery::State => Some(RecoveryMethod::Afresh),
            Recovery::Probe => replay,
        }
    }

    fn take(&mut self, need: Recovery, way: RecoveryMethod, now: Moment) -> FeedStep {
        self.pace.asked(now);
        let is_probe = need == Recovery::Probe;
        match way {
            RecoveryMethod::Replay(source) => {
                self.counters.replays += u64::from(!is_probe);
                // With the last batch that is known, to see that it is the same.
                let from = self.next.saturating_sub(1);
                let next = self.next;
                let answer = Some(Reply { from, next, highest: None, unreadable: None });
                self.asked = Some(PendingQuery { source, at: now, is_probe, answer });
                FeedStep::Ask(source, SourceQuery::Replay { from })
            }
            RecoveryMethod::Snapshot(source) => {
                self.counters.snapshots += 1;
                self.asked = Some(PendingQuery { source, at: now, is_probe, answer: None });
                FeedStep::Ask(source, SourceQuery::Snapshot)
            }
            RecoveryMethod::Afresh => {
                self.counters.rebuilds += 1;
                self.pace.failed();
                self.forget();
                self.based = false;
                FeedStep::Rebuild(Rebuild::ANEW)
            }
            RecoveryMethod::Onward => self.go_on(),
        }
    }

    /// What is missing cannot be had. Goes on from the last batches that came without a gap.
    fn go_on(&mut self) -> FeedStep {
        let mut from = self.highest.map_or(self.next, |highest| highest.saturating_add(1));
        for sequence in self.early.keys().rev() {
            if sequence.saturating_add(1) != from {
                break;
            }
            from = *sequence;
        }
        self.counters.rebuilds += 1;
        self.drop_recalled();
        self.pace.succeeded();
        self.early = self.early.split_off(&from);
        self.recent.clear();
        self.next = from;
        (self.based, self.verifying, self.replay_useless) = (true, false, false);
        (self.gap, self.partial) = (None, true);
        FeedStep::Rebuild(Rebuild::From(from))
    }

    /// A source that can be reached and asked.
    fn able(&self, ability: impl Fn(Capabilities) -> bool) -> Option<SourceId> {
        let able = |source: &super::FeedSource| source.connected && ability(source.abilities);
        self.sources.iter().position(able).map(SourceId)
    }
}

/// How a need is met.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum RecoveryMethod {
    Replay(SourceId),
    Snapshot(SourceId),
    /// Forget everything, and see what a replay from the start brings.
    Afresh,
    /// Forget everything, and go on without what is missing.
    Onward,
}
