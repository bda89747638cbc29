//! Decides which threads are stuck, from readings of their heartbeats. A state machine without threads or clocks.
//!
//! Time in which the watchdog itself did not run does not count: after a machine was suspended, or while it has no
//! processor left, a thread is not stuck only because the clock went on.

use std::collections::BTreeMap;
use std::time::Duration;
use wornpath_index::Moment;

use crate::watchdog::task::TaskName;

/// How long a thread may stand still.
pub(crate) const STUCK_AFTER: Duration = Duration::from_secs(5);
/// The most that one look adds to the time that a thread stands still: two looks.
const MOST_PER_LOOK: Duration = Duration::from_secs(1);

/// What a thread's heartbeat says.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HeartbeatReading<'a> {
    pub(crate) thread: &'a str,
    pub(crate) task: TaskName,
    /// None while it has nothing to do, or has ended.
    pub(crate) beats: Option<u64>,
    /// How long it may stand still.
    pub(crate) allowance: Duration,
}

/// A thread that does not move.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Stall {
    pub(crate) thread: String,
    pub(crate) task: TaskName,
    pub(crate) stuck_for: Duration,
}

/// What a look at all threads found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum StallChange {
    Stuck(Stall),
    /// It was stuck and is no longer.
    Moves(Stall),
}

/// Follows all heartbeats.
#[derive(Default)]
pub(crate) struct StallDetector {
    last: Option<Moment>,
    threads: BTreeMap<String, Followed>,
}

struct Followed {
    beats: Option<u64>,
    task: TaskName,
    still_for: Duration,
    is_stuck: bool,
}

impl StallDetector {
    /// Looks at all threads, of which those that have ended are missing.
    pub(crate) fn look(
        &mut self,
        now: Moment,
        readings: &[HeartbeatReading<'_>],
    ) -> Vec<StallChange> {
        let passed = self.last.map_or(Duration::ZERO, |last| now.saturating_sub(last));
        let passed = passed.min(MOST_PER_LOOK);
        self.last = Some(now);
        let mut changes = Vec::new();
        self.threads.retain(|thread, followed| {
            let is_there = readings.iter().any(|reading| reading.thread == thread);
            if !is_there && followed.is_stuck {
                changes.push(StallChange::Moves(followed.stall(thread)));
            }
            is_there
        });
        for reading in readings {
            let followed = self.threads.entry(reading.thread.to_owned()).or_insert(Followed {
                beats: None,
                task: TaskName::default(),
                still_for: Duration::ZERO,
                is_stuck: false,
            });
            changes.extend(followed.read(reading, passed));
        }
        changes
    }

    /// The threads that are stuck.
    pub(crate) fn stuck(&self) -> Vec<Stall> {
        self.threads
            .iter()
            .filter(|(_, followed)| followed.is_stuck)
            .map(|(thread, followed)| followed.stall(thread))
            .collect()
    }

    /// The threads that have stood still for `at_least`, stuck or not yet.
    pub(crate) fn still(&self, at_least: Duration) -> Vec<Stall> {
        self.threads
            .iter()
            .filter(|(_, followed)| followed.still_for >= at_least)
            .map(|(thread, followed)| followed.stall(thread))
            .collect()
    }
}

impl Followed {
    fn read(&mut self, reading: &HeartbeatReading<'_>, passed: Duration) -> Option<StallChange> {
        if reading.beats.is_none() || reading.beats != self.beats {
            let moves = self.is_stuck.then(|| StallChange::Moves(self.stall(reading.thread)));
            self.beats = reading.beats;
            self.still_for = Duration::ZERO;
            self.is_stuck = false;
            return moves;
        }
        self.task = reading.task;
        self.still_for += passed;
        if self.is_stuck || self.still_for < reading.allowance {
            return None;
        }
        self.is_stuck = true;
        Some(StallChange::Stuck(self.stall(reading.thread)))
    }

    fn stall(&self, thread: &str) -> Stall {
        Stall { thread: thread.to_owned(), task: self.task, stuck_for: self.still_for }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HALF: Duration = Duration::from_millis(500);
    const FIVE: Duration = STUCK_AFTER;

    fn reading(thread: &str, beats: Option<u64>) -> HeartbeatReading<'_> {
        HeartbeatReading { thread, task: TaskName::new("decide"), beats, allowance: FIVE }
    }

    fn stall(thread: &str, stuck_for: Duration) -> Stall {
        Stall { thread: thread.to_owned(), task: TaskName::new("decide"), stuck_for }
    }

    /// Looks every half second, from look `from` on, with what `parse` says of each look.
    fn looks<'a>(
        detector: &mut StallDetector,
        looks: std::ops::Range<u32>,
        read: impl Fn(u32) -> Vec<HeartbeatReading<'a>>,
    ) -> Vec<(u32, StallChange)> {
        let changes = looks.flat_map(|look| {
            let found = detector.look(HALF * look, &read(look));
            found.into_iter().map(move |change| (look, change))
        });
        changes.collect()
    }

    #[test]
    fn a_thread_that_stands_still_for_five_seconds_is_stuck_once_and_said_to_move_once() {
        let mut detector = StallDetector::default();
        let read = |look: u32| {
            let beats = if (4..30).contains(&look) { 4 } else { look };
            vec![reading("a", Some(look.into())), reading("b", Some(beats.into()))]
        };
        let changes = looks(&mut detector, 0..14, read);
        assert_eq!(changes, []);
        assert_eq!(detector.still(Duration::from_secs(1)), [stall("b", 9 * HALF)]);
        let changes = looks(&mut detector, 14..40, read);
        assert_eq!(
            changes,
            [
                (14, StallChange::Stuck(stall("b", FIVE))),
                (30, StallChange::Moves(stall("b", 25 * HALF))),
            ]
        );
        assert_eq!(detector.stuck(), []);
    }

    #[test]
    fn a_thread_without_work_is_never_stuck_and_one_that_begins_has_all_its_time() {
        let mut detector = StallDetector::default();
        let read = |look: u32| vec![reading("pool", (look >= 20).then_some(7))];
        let changes = looks(&mut detector, 0..40, read);
        assert_eq!(changes, [(30, StallChange::Stuck(stall("pool", FIVE)))]);
        assert_eq!(detector.stuck(), [stall("pool", 19 * HALF)]);
        let changes = looks(&mut detector, 40..41, |_| vec![reading("pool", None)]);
        assert_eq!(changes, [(40, StallChange::Moves(stall("pool", 19 * HALF)))]);
    }

    #[test]
    fn a_job_with_more_to_do_may_stand_still_for_longer() {
        let mut detector = StallDetector::default();
        let read = |_| vec![HeartbeatReading { allowance: 2 * FIVE, ..reading("pool", Some(1)) }];
        let changes = looks(&mut detector, 0..40, read);
        assert_eq!(changes, [(20, StallChange::Stuck(stall("pool", 2 * FIVE)))]);
    }

    #[test]
    fn a_stuck_thread_that_ends_is_stuck_no_longer() {
        let mut detector = StallDetector::default();
        looks(&mut detector, 0..12, |_| vec![reading("a", Some(1))]);
        assert_eq!(detector.stuck().len(), 1);
        let changes = looks(&mut detector, 12..13, |_| Vec::new());
        assert!(matches!(&changes[..], [(12, StallChange::Moves(_))]), "{changes:?}");
        assert_eq!(detector.stuck(), []);
    }

    #[test]
    fn time_in_which_the_watchdog_did_not_run_does_not_count() {
        let mut detector = StallDetector::default();
        let mut look = |now| detector.look(now, &[reading("a", Some(1))]);
        assert_eq!(look(Duration::ZERO), []);
        assert_eq!(look(Duration::from_secs(3600)), [], "the machine slept");
        assert_eq!(look(Duration::from_secs(3600) + 3 * HALF), []);
        assert_eq!(look(Duration::from_secs(3599)), [], "a clock that goes back adds nothing");
        assert_eq!(detector.still(Duration::from_secs(2)), [stall("a", Duration::from_secs(2))]);
    }
}
