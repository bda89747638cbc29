//! Stall detection: decides from heartbeat readings which threads are stuck. A state machine
//! without threads or clocks.
//!
//! Time during which the watchdog itself did not run does not count: after a suspend, or when the
//! machine has no CPU left, a thread is not stuck only because the clock advanced.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;
use wornpath_index::Moment;

/// How long a heartbeat may not advance before its thread counts as stuck.
pub(crate) const STUCK_AFTER: Duration = Duration::from_secs(5);
/// Upper bound on the stall time that one check adds: two check intervals.
const MAX_PER_CHECK: Duration = Duration::from_secs(1);

/// A thread's heartbeat at one moment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HeartbeatReading<'a> {
    pub(crate) thread: &'a str,
    pub(crate) task: TaskName,
    /// The beat counter; none while the thread is idle or has ended.
    pub(crate) beats: Option<u64>,
    /// How long the counter may stay the same.
    pub(crate) allowance: Duration,
}

/// A thread whose heartbeat does not advance.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Stall {
    pub(crate) thread: String,
    pub(crate) task: TaskName,
    pub(crate) stuck_for: Duration,
}

/// A thread became stuck or recovered.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum StallChange {
    Stuck(Stall),
    Recovered(Stall),
}

/// Tracks the heartbeats of all threads.
#[derive(Default)]
pub(crate) struct StallDetector {
    last: Option<Moment>,
    threads: BTreeMap<String, TrackedThread>,
}

struct TrackedThread {
    beats: Option<u64>,
    task: TaskName,
    stalled_for: Duration,
    is_stuck: bool,
}

impl StallDetector {
    /// Compares the readings of all live threads with the previous ones. A thread that is missing
    /// has ended.
    pub(crate) fn check(
        &mut self,
        now: Moment,
        readings: &[HeartbeatReading<'_>],
    ) -> Vec<StallChange> {
        let passed = self.last.map_or(Duration::ZERO, |last| now.since(last));
        let passed = passed.min(MAX_PER_CHECK);
        self.last = Some(now);
        let mut changes = Vec::new();
        self.threads.retain(|thread, tracked| {
            let is_alive = readings.iter().any(|reading| reading.thread == thread);
            if !is_alive && tracked.is_stuck {
                changes.push(StallChange::Recovered(tracked.stall(thread)));
            }
            is_alive
        });
        for reading in readings {
            let tracked = self.threads.entry(reading.thread.to_owned()).or_insert(TrackedThread {
                beats: None,
                task: TaskName::default(),
                stalled_for: Duration::ZERO,
                is_stuck: false,
            });
            changes.extend(tracked.read(reading, passed));
        }
        changes
    }

    /// The threads that are stuck.
    pub(crate) fn stuck(&self) -> Vec<Stall> {
        self.threads
            .iter()
            .filter(|(_, tracked)| tracked.is_stuck)
            .map(|(thread, tracked)| tracked.stall(thread))
            .collect()
    }

    /// The threads without a beat for `at_least`, stuck or not yet.
    pub(crate) fn stalled(&self, at_least: Duration) -> Vec<Stall> {
        self.threads
            .iter()
            .filter(|(_, tracked)| tracked.stalled_for >= at_least)
            .map(|(thread, tracked)| tracked.stall(thread))
            .collect()
    }
}

impl TrackedThread {
    fn read(&mut self, reading: &HeartbeatReading<'_>, passed: Duration) -> Option<StallChange> {
        if reading.beats.is_none() || reading.beats != self.beats {
            let recovered =
                self.is_stuck.then(|| StallChange::Recovered(self.stall(reading.thread)));
            self.beats = reading.beats;
            self.stalled_for = Duration::ZERO;
            self.is_stuck = false;
            return recovered;
        }
        self.task = reading.task;
        self.stalled_for += passed;
        if self.is_stuck || self.stalled_for < reading.allowance {
            return None;
        }
        self.is_stuck = true;
        Some(StallChange::Stuck(self.stall(reading.thread)))
    }

    fn stall(&self, thread: &str) -> Stall {
        Stall { thread: thread.to_owned(), task: self.task, stuck_for: self.stalled_for }
    }
}

/// 64-bit words of a task name.
pub(crate) const NAME_WORDS: usize = 6;

/// The first 48 bytes of a task's name, in a form that a thread can publish without a lock.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct TaskName([u64; NAME_WORDS]);

impl TaskName {
    /// Truncates `name` to 48 bytes.
    pub const fn new(name: &str) -> Self {
        let bytes = name.as_bytes();
        let mut words = [0; NAME_WORDS];
        let mut at = 0;
        while at < bytes.len() && at < NAME_WORDS * 8 {
            words[at / 8] |= (bytes[at] as u64) << (at % 8 * 8);
            at += 1;
        }
        Self(words)
    }

    pub(crate) const fn from_words(words: [u64; NAME_WORDS]) -> Self {
        Self(words)
    }

    pub(crate) const fn words(&self) -> [u64; NAME_WORDS] {
        self.0
    }
}

impl From<&str> for TaskName {
    fn from(name: &str) -> Self {
        Self::new(name)
    }
}

impl fmt::Display for TaskName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Self::default() {
            return f.write_str("unnamed");
        }
        let bytes: Vec<u8> = self.0.iter().flat_map(|word| word.to_le_bytes()).collect();
        // Truncation may have split the last character.
        let name = String::from_utf8_lossy(&bytes);
        f.write_str(name.trim_end_matches(['\0', char::REPLACEMENT_CHARACTER]))
    }
}

impl fmt::Debug for TaskName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TaskName({self})")
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

    /// Checks every half second, with the readings that `read` gives for each check.
    fn run<'a>(
        detector: &mut StallDetector,
        checks: std::ops::Range<u32>,
        read: impl Fn(u32) -> Vec<HeartbeatReading<'a>>,
    ) -> Vec<(u32, StallChange)> {
        let changes = checks.flat_map(|check| {
            let found = detector.check(Moment::at(HALF * check), &read(check));
            found.into_iter().map(move |change| (check, change))
        });
        changes.collect()
    }

    #[test]
    fn a_thread_without_a_beat_for_five_seconds_is_reported_stuck_once_and_recovered_once() {
        let mut detector = StallDetector::default();
        let read = |check: u32| {
            let beats = if (4..30).contains(&check) { 4 } else { check };
            vec![reading("a", Some(check.into())), reading("b", Some(beats.into()))]
        };
        let changes = run(&mut detector, 0..14, read);
        assert_eq!(changes, []);
        assert_eq!(detector.stalled(Duration::from_secs(1)), [stall("b", 9 * HALF)]);
        let changes = run(&mut detector, 14..40, read);
        assert_eq!(
            changes,
            [
                (14, StallChange::Stuck(stall("b", FIVE))),
                (30, StallChange::Recovered(stall("b", 25 * HALF))),
            ]
        );
        assert_eq!(detector.stuck(), []);
    }

    #[test]
    fn an_idle_thread_is_never_stuck_and_a_new_job_has_its_full_allowance() {
        let mut detector = StallDetector::default();
        let read = |check: u32| vec![reading("pool", (check >= 20).then_some(7))];
        let changes = run(&mut detector, 0..40, read);
        assert_eq!(changes, [(30, StallChange::Stuck(stall("pool", FIVE)))]);
        assert_eq!(detector.stuck(), [stall("pool", 19 * HALF)]);
        let changes = run(&mut detector, 40..41, |_| vec![reading("pool", None)]);
        assert_eq!(changes, [(40, StallChange::Recovered(stall("pool", 19 * HALF)))]);
    }

    #[test]
    fn a_job_with_a_larger_allowance_is_stuck_later() {
        let mut detector = StallDetector::default();
        let read = |_| vec![HeartbeatReading { allowance: 2 * FIVE, ..reading("pool", Some(1)) }];
        let changes = run(&mut detector, 0..40, read);
        assert_eq!(changes, [(20, StallChange::Stuck(stall("pool", 2 * FIVE)))]);
    }

    #[test]
    fn a_stuck_thread_that_ends_is_reported_recovered() {
        let mut detector = StallDetector::default();
        run(&mut detector, 0..12, |_| vec![reading("a", Some(1))]);
        assert_eq!(detector.stuck().len(), 1);
        let changes = run(&mut detector, 12..13, |_| Vec::new());
        assert!(matches!(&changes[..], [(12, StallChange::Recovered(_))]), "{changes:?}");
        assert_eq!(detector.stuck(), []);
    }

    #[test]
    fn time_in_which_the_watchdog_did_not_run_does_not_count() {
        let mut detector = StallDetector::default();
        let mut check = |now| detector.check(now, &[reading("a", Some(1))]);
        assert_eq!(check(Moment::ZERO), []);
        assert_eq!(check(Moment::from_secs(3600)), [], "the machine was suspended");
        assert_eq!(check(Moment::from_secs(3600) + 3 * HALF), []);
        assert_eq!(check(Moment::from_secs(3599)), [], "a clock that goes back adds nothing");
        assert_eq!(detector.stalled(Duration::from_secs(2)), [stall("a", Duration::from_secs(2))]);
    }
}
