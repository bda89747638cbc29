//! What a feed needs next, and when it may ask for it.

use super::answers::Failure;
use super::{Feed, Rebuild, SourceId};
use crate::said::{Abilities, Ask};
use wornpath_index::Moment;

/// A question that waits for its answer.
#[derive(Debug)]
pub(super) struct Asked {
    pub(super) source: SourceId,
    /// When it was asked, or something of the answer came.
    pub(super) at: Moment,
    pub(super) is_probe: bool,
    /// For a replay, what has come of it.
    pub(super) answer: Option<Answer>,
}

#[derive(Debug)]
pub(super) struct Answer {
    pub(super) from: u64,
    /// What was to be applied next when it was asked for.
    pub(super) next: u64,
    /// The highest number that came.
    pub(super) highest: Option<u64>,
    /// The highest number of what came and could not be understood.
    pub(super) unreadable: Option<u64>,
}

impl Asked {
    pub(super) fn is_snapshot(&self) -> bool {
        self.answer.is_none()
    }

    /// The answer, of which something more has just come.
    pub(super) fn answer_mut(&mut self, now: Moment) -> Option<&mut Answer> {
        self.at = now;
        self.answer.as_mut()
    }
}

/// Something to do of the feed's own accord.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// Ask a source.
    Ask(SourceId, Ask),
    /// Begin anew.
    Rebuild(Rebuild),
}

/// How many times longer a source may take that answers for many pods.
const TURNS: u32 = 20;

/// Why something is to be asked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Need {
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
    pub fn tick(&mut self, now: Moment) -> Option<Step> {
        if self.quarantined_until.is_some_and(|until| now >= until) {
            self.quarantined_until = None;
        }
        if let Some(rebuild) = self.give_up_recalled(now) {
            return Some(Step::Rebuild(rebuild));
        }
        if self.answer_until().is_some_and(|until| now >= until)
            && let Some(asked) = self.asked.take()
        {
            self.fail(&asked, Failure::Silence);
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
    fn need(&self) -> Option<(Need, Way, Moment)> {
        let reachable = self.sources.iter().any(|source| source.connected);
        if self.asked.is_some() || self.quarantined_until.is_some() || !reachable {
            return None;
        }
        let ready = self.pace.ready_at(&self.rules);
        let (need, due) = if self.differs {
            (Need::State, ready)
        } else if !self.based {
            (Need::Base, ready)
        } else if self.verifying {
            (Need::Batches, ready)
        } else if let Some(since) = self.gap {
            (Need::Batches, ready.max(since + self.rules.grace))
        } else {
            (Need::Probe, ready.max(self.heard? + self.rules.probe_after))
        };
        self.way(need).map(|way| (need, way, due))
    }

    /// How a need can be met now.
    fn way(&self, need: Need) -> Option<Way> {
        let replay = self.able(|one| one.replay && !self.replay_useless).map(Way::Replay);
        let snapshot = self.able(|one| one.snapshot).map(Way::Snapshot);
        let later = self.can(|one| one.snapshot || (one.replay && !self.replay_useless));
        match need {
            Need::Base if !self.can_ask() => None,
            Need::Base => snapshot.or(replay).or((!later).then_some(Way::Onward)),
            Need::Batches => replay.or(snapshot).or((!later).then_some(Way::Onward)),
            Need::State if self.can(|one| one.snapshot) => snapshot,
            Need::State => Some(Way::Afresh),
            Need::Probe => replay,
        }
    }

    fn take(&mut self, need: Need, way: Way, now: Moment) -> Step {
        self.pace.asked(now);
        let is_probe = need == Need::Probe;
        match way {
            Way::Replay(source) => {
                self.counters.replays += u64::from(!is_probe);
                // With the last batch that is known, to see that it is the same.
                let from = self.next.saturating_sub(1);
                let next = self.next;
                let answer = Some(Answer { from, next, highest: None, unreadable: None });
                self.asked = Some(Asked { source, at: now, is_probe, answer });
                Step::Ask(source, Ask::Replay { from })
            }
            Way::Snapshot(source) => {
                self.counters.snapshots += 1;
                self.asked = Some(Asked { source, at: now, is_probe, answer: None });
                Step::Ask(source, Ask::Snapshot)
            }
            Way::Afresh => {
                self.counters.rebuilds += 1;
                self.pace.failed();
                self.forget();
                self.based = false;
                Step::Rebuild(Rebuild::ANEW)
            }
            Way::Onward => self.go_on(),
        }
    }

    /// What is missing cannot be had. Goes on from the last batches that came without a gap.
    fn go_on(&mut self) -> Step {
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
        Step::Rebuild(Rebuild::From(from))
    }

    /// A source that can be reached and asked.
    fn able(&self, ability: impl Fn(Abilities) -> bool) -> Option<SourceId> {
        let able = |source: &super::Source| source.connected && ability(source.abilities);
        self.sources.iter().position(able).map(SourceId)
    }
}

/// How a need is met.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Way {
    Replay(SourceId),
    Snapshot(SourceId),
    /// Forget everything, and see what a replay from the start brings.
    Afresh,
    /// Forget everything, and go on without what is missing.
    Onward,
}
