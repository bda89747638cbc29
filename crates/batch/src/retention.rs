//! Whether the wall clock can be believed when it says that files have expired.
//!
//! Expiry is a time of day, because it must survive restarts; and deleting is the one thing that
//! cannot be undone. A wall clock can jump: a wrong time server, a restored virtual machine, a dead
//! battery. So it is compared with a clock that cannot, the monotonic one, and at the start with
//! the newest time in the store. After an implausible step nothing is deleted for a day of
//! monotonic time; then the wall clock has said the same for a day, and is believed.
//!
//! Limits: a machine that was asleep or off for more than a day looks the same, and deletes a day
//! later than it could. A wrong clock that is not corrected within the day is believed.

use std::time::Duration;
use wornpath_index::Moment;
use wornpath_jobs::UnixTime;

/// The difference between two clocks that is plausible.
const PLAUSIBLE: Duration = Duration::from_secs(86_400);
/// How long nothing is deleted after an implausible step.
const HOLD: Duration = Duration::from_secs(86_400);

/// The two clocks at one instant.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ClockReading {
    pub(crate) monotonic: Moment,
    pub(crate) wall: UnixTime,
}

/// What may be deleted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Retention {
    /// What has expired by the wall clock.
    Sweep,
    /// Nothing: the wall clock has just differed from what was expected by so many seconds.
    Jumped(u64),
    /// Nothing: it has differed less than a day ago.
    Hold,
}

/// Compares the clocks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RetentionClock {
    /// The reading that later ones are compared with.
    since: ClockReading,
    held_until: Option<Moment>,
}

impl RetentionClock {
    /// Begins with the first reading.
    pub(crate) const fn new(first: ClockReading) -> Self {
        Self { since: first, held_until: None }
    }

    /// Compares the first reading with the newest time in the store, if it has any: a plausible
    /// clock is at most a day before or behind it.
    pub(crate) fn compare(&mut self, newest: Option<UnixTime>) -> Retention {
        match newest.map(|newest| newest.abs_diff(self.since.wall)) {
            Some(apart) if apart > PLAUSIBLE.as_secs() => self.hold(self.since, apart),
            _ => Retention::Sweep,
        }
    }

    /// Decides after another reading.
    pub(crate) fn decide(&mut self, now: ClockReading) -> Retention {
        let passed = now.monotonic.since(self.since.monotonic);
        let expected = self.since.wall.saturating_add(passed.as_secs());
        let apart = expected.abs_diff(now.wall);
        if apart > PLAUSIBLE.as_secs() {
            return self.hold(now, apart);
        }
        match self.held_until {
            Some(until) if now.monotonic < until => Retention::Hold,
            _ => {
                self.held_until = None;
                Retention::Sweep
            }
        }
    }

    /// From now on readings are compared with this one.
    fn hold(&mut self, now: ClockReading, apart: u64) -> Retention {
        *self = Self { since: now, held_until: Some(now.monotonic.saturating_add(HOLD)) };
        Retention::Jumped(apart)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const DAY: u64 = 86_400;
    const NOW: UnixTime = 1_800_000_000;

    fn at(monotonic: u64, wall: UnixTime) -> ClockReading {
        ClockReading { monotonic: Moment::from_secs(monotonic), wall }
    }

    #[test]
    fn after_a_jump_of_forty_days_nothing_is_deleted_for_a_day() {
        for jump in [40 * DAY as i64, -40 * DAY as i64] {
            let mut clock = RetentionClock::new(at(100, NOW));
            assert_eq!(clock.decide(at(160, NOW + 60)), Retention::Sweep);
            let wall = |passed: u64| (NOW + passed).saturating_add_signed(jump);
            assert_eq!(clock.decide(at(220, wall(120))), Retention::Jumped(40 * DAY));
            assert_eq!(clock.decide(at(280, wall(180))), Retention::Hold, "it is logged once");
            assert_eq!(clock.decide(at(220 + DAY - 1, wall(120 + DAY - 1))), Retention::Hold);
            assert_eq!(clock.decide(at(220 + DAY, wall(120 + DAY))), Retention::Sweep);
        }
    }

    #[test]
    fn a_clock_that_jumps_back_is_watched_for_another_day() {
        let mut clock = RetentionClock::new(at(0, NOW));
        assert_eq!(clock.decide(at(60, NOW + 60 + 2 * DAY)), Retention::Jumped(2 * DAY));
        assert_eq!(clock.decide(at(120, NOW + 120)), Retention::Jumped(2 * DAY));
        assert_eq!(clock.decide(at(60 + DAY, NOW + 60 + DAY)), Retention::Hold);
        assert_eq!(clock.decide(at(120 + DAY, NOW + 120 + DAY)), Retention::Sweep);
    }

    #[test]
    fn many_small_steps_are_one_large_step() {
        let mut clock = RetentionClock::new(at(0, NOW));
        let step = |count: u64| at(60 * count, NOW + 60 * count + 3_600 * count);
        assert!((1..=24).all(|count| clock.decide(step(count)) == Retention::Sweep));
        assert_eq!(clock.decide(step(25)), Retention::Jumped(25 * 3_600));
    }

    #[test]
    fn a_start_that_is_far_from_the_newest_time_in_the_store_deletes_nothing_for_a_day() {
        for newest in [NOW - 40 * DAY, NOW + 40 * DAY] {
            let mut clock = RetentionClock::new(at(5, NOW));
            assert_eq!(clock.compare(Some(newest)), Retention::Jumped(40 * DAY));
            assert_eq!(clock.decide(at(65, NOW + 60)), Retention::Hold);
            assert_eq!(clock.decide(at(5 + DAY, NOW + DAY)), Retention::Sweep);
        }
        for newest in [None, Some(NOW), Some(NOW - DAY), Some(NOW + DAY)] {
            assert_eq!(RetentionClock::new(at(5, NOW)).compare(newest), Retention::Sweep);
        }
    }

    proptest! {
        /// Whatever the wall clock does: where a sweep may delete, the clock has been within two
        /// days of one straight line for a day, or since the start.
        #[test]
        fn a_sweep_never_follows_a_jump_within_a_day(
            steps in prop::collection::vec((1_u64..20_000, -200_000_i64..200_000), 1..60),
        ) {
            let mut clock = RetentionClock::new(at(0, NOW));
            let mut readings = vec![at(0, NOW)];
            for (passed, extra) in steps {
                let last = readings[readings.len() - 1];
                let wall = (last.wall + passed).saturating_add_signed(extra);
                let now = ClockReading { monotonic: last.monotonic + Duration::from_secs(passed), wall };
                readings.push(now);
                let offset = |at: &ClockReading| at.wall as i64 - at.monotonic.since_zero().as_secs() as i64;
                if clock.decide(now) == Retention::Sweep {
                    let day = now.monotonic.saturating_sub(HOLD);
                    let recent = readings.iter().filter(|at| at.monotonic >= day);
                    for at in recent {
                        let apart = offset(at).abs_diff(offset(&now));
                        prop_assert!(apart <= 2 * DAY, "{apart} seconds apart");
                    }
                }
            }
        }
    }
}
