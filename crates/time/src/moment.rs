//! A point in time on the caller's clock.

use std::fmt;
use std::ops::{Add, AddAssign, Sub};
use std::time::Duration;

/// A point in time: the duration since a fixed instant that the caller chose. A simulator passes
/// virtual time, a server passes real time. Two moments differ by a [`Duration`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Moment(Duration);

impl Moment {
    /// The instant that the caller chose.
    pub const ZERO: Self = Self(Duration::ZERO);
    /// Later than any other: a time that never comes.
    pub const MAX: Self = Self(Duration::MAX);

    /// The moment at this distance from [`Self::ZERO`].
    #[must_use]
    pub const fn at(since_zero: Duration) -> Self {
        Self(since_zero)
    }

    /// So many seconds after [`Self::ZERO`].
    #[must_use]
    pub const fn from_secs(secs: u64) -> Self {
        Self(Duration::from_secs(secs))
    }

    /// So many milliseconds after [`Self::ZERO`].
    #[must_use]
    pub const fn from_millis(millis: u64) -> Self {
        Self(Duration::from_millis(millis))
    }

    /// So many microseconds after [`Self::ZERO`].
    #[must_use]
    pub const fn from_micros(micros: u64) -> Self {
        Self(Duration::from_micros(micros))
    }

    /// So many nanoseconds after [`Self::ZERO`].
    #[must_use]
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(Duration::from_nanos(nanos))
    }

    /// The time since [`Self::ZERO`].
    #[must_use]
    pub const fn since_zero(self) -> Duration {
        self.0
    }

    /// The time since `earlier`; zero if that is later.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }

    /// The time since `earlier`; none if that is later.
    #[must_use]
    pub const fn checked_since(self, earlier: Self) -> Option<Duration> {
        self.0.checked_sub(earlier.0)
    }

    /// The moment `later` after this one, at most [`Self::MAX`].
    #[must_use]
    pub const fn saturating_add(self, later: Duration) -> Self {
        Self(self.0.saturating_add(later))
    }

    /// The moment `earlier` before this one, at least [`Self::ZERO`].
    #[must_use]
    pub const fn saturating_sub(self, earlier: Duration) -> Self {
        Self(self.0.saturating_sub(earlier))
    }
}

/// # Panics
/// If the sum is beyond [`Moment::MAX`].
impl Add<Duration> for Moment {
    type Output = Self;

    fn add(self, later: Duration) -> Self {
        Self(self.0 + later)
    }
}

impl AddAssign<Duration> for Moment {
    fn add_assign(&mut self, later: Duration) {
        self.0 += later;
    }
}

/// # Panics
/// If the other moment is later.
impl Sub for Moment {
    type Output = Duration;

    fn sub(self, earlier: Self) -> Duration {
        self.0 - earlier.0
    }
}

/// # Panics
/// If the difference is before [`Moment::ZERO`].
impl Sub<Duration> for Moment {
    type Output = Self;

    fn sub(self, earlier: Duration) -> Self {
        Self(self.0 - earlier)
    }
}

impl fmt::Debug for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_difference_saturates_at_zero_and_a_sum_at_the_maximum() {
        let early = Moment::from_secs(1);
        let late = early + SECOND;
        assert_eq!(late.since(early), SECOND);
        assert_eq!(early.since(late), Duration::ZERO);
        assert_eq!(early.checked_since(late), None);
        assert_eq!(Moment::MAX.saturating_add(SECOND), Moment::MAX);
        assert_eq!(Moment::ZERO.saturating_sub(SECOND), Moment::ZERO);
    }
}
