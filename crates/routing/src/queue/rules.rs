//! What a profile says about waiting: how many, how long, in which order.

use std::time::Duration;

use wornpath_index::Moment;

use crate::name::Name;

/// Whose request it is. Any number that differs between tenants, such as a hash of the name.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub struct Tenant(pub u64);

impl Tenant {
    /// The tenant of that name.
    #[must_use]
    pub fn named(name: &str) -> Self {
        Self(Name::from(name).key())
    }
}

/// How urgent a request is. Larger goes first; offline work has zero.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Priority(u8);

impl Priority {
    /// Offline work: whenever there is nothing else.
    pub const LOWEST: Self = Self(0);
    /// A request that says nothing about its urgency.
    pub const NORMAL: Self = Self(4);
    /// Where waiting ends up.
    pub const HIGHEST: Self = Self(7);
    pub(super) const LEVELS: usize = 8;

    /// A priority from 0 to 7, if `level` is one.
    #[must_use]
    pub const fn new(level: u8) -> Option<Self> {
        if level <= Self::HIGHEST.0 { Some(Self(level)) } else { None }
    }

    /// The number from 0 to 7.
    #[must_use]
    pub const fn level(self) -> u8 {
        self.0
    }

    pub(super) fn raised(self) -> Option<Self> {
        Self::new(self.0 + 1)
    }
}

impl Default for Priority {
    fn default() -> Self {
        Self::NORMAL
    }
}

/// What the queue knows of a waiting request.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct QueueEntry {
    /// Between whom service is fair.
    pub tenant: Tenant,
    /// The tenant's share: twice the weight, twice the work. Zero counts as one.
    pub weight: u32,
    /// Where the request starts; it rises while it waits.
    pub priority: Priority,
    /// The work it brings, usually the prefill time of its uncached tokens.
    pub cost: Duration,
    /// When it has waited long enough and is given back as expired.
    pub deadline: Moment,
}

/// Which of a tenant's requests of equal priority is due first.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub enum QueueOrder {
    /// First come, first served.
    #[default]
    Arrival,
    /// Short requests overtake long ones. A request is due `patience` times its cost after it came,
    /// so that those who come later than that cannot overtake it: aging without any clock work.
    ShortestFirst {
        /// How many times its own cost a request lets shorter ones pass.
        patience: f64,
    },
    /// Earliest deadline first.
    Deadline,
}

impl QueueOrder {
    pub(super) fn due(self, arrival: Moment, waiting: &QueueEntry) -> Moment {
        match self {
            Self::Arrival => arrival,
            Self::ShortestFirst { patience } => {
                let cost = waiting.cost.as_secs_f64() * patience;
                let late = Duration::try_from_secs_f64(cost).unwrap_or(Moment::MAX);
                arrival.saturating_add(late)
            }
            Self::Deadline => waiting.deadline,
        }
    }
}

/// How a queue behaves, checked by [`QueueRules::check`].
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct QueueRules {
    /// How many requests may wait.
    pub capacity: usize,
    /// Which of a tenant's requests goes first.
    pub order: QueueOrder,
    /// Waiting this long raises a request by one priority.
    pub promote_after: Duration,
    /// How many refused offers end a poll: what a poll may cost when there is no room.
    pub lookahead: usize,
}

impl Default for QueueRules {
    fn default() -> Self {
        Self {
            capacity: 4096,
            order: QueueOrder::ShortestFirst { patience: 10.0 },
            promote_after: Duration::from_secs(10),
            lookahead: 16,
        }
    }
}

/// Why rules are refused.
#[derive(Clone, Copy, PartialEq, Debug, thiserror::Error)]
pub enum QueueRulesError {
    /// Nobody could ever wait.
    #[error("capacity of the queue is 0; give at least 1, or leave the queue out")]
    NoCapacity,
    /// Nobody could ever leave.
    #[error("lookahead of the queue is 0; give at least 1, the requests that are offered per poll")]
    NoLookahead,
    /// Aging by no time at all would put everybody on top.
    #[error("promote_after of the queue is 0; give the time after which a request rises")]
    NoPromotion,
    /// Not a number one can multiply by.
    #[error("patience of the queue is {0}; give a number of zero or more")]
    Patience(f64),
}

impl QueueRules {
    /// The rules, if a queue can work by them.
    ///
    /// # Errors
    /// Names the value that makes no sense.
    pub fn check(self) -> Result<Self, QueueRulesError> {
        if self.capacity == 0 {
            return Err(QueueRulesError::NoCapacity);
        }
        if self.lookahead == 0 {
            return Err(QueueRulesError::NoLookahead);
        }
        if self.promote_after.is_zero() {
            return Err(QueueRulesError::NoPromotion);
        }
        match self.order {
            QueueOrder::ShortestFirst { patience }
                if !(patience.is_finite() && patience >= 0.0) =>
            {
                Err(QueueRulesError::Patience(patience))
            }
            _ => Ok(self),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_that_cannot_work_are_refused_by_name() {
        let good = QueueRules::default();
        assert_eq!(good.check(), Ok(good));
        let bad = [
            (QueueRules { capacity: 0, ..good }, "capacity"),
            (QueueRules { lookahead: 0, ..good }, "lookahead"),
            (QueueRules { promote_after: Duration::ZERO, ..good }, "promote_after"),
            (
                QueueRules { order: QueueOrder::ShortestFirst { patience: f64::NAN }, ..good },
                "patience",
            ),
        ];
        for (rules, name) in bad {
            let error = rules.check().unwrap_err().to_string();
            assert!(error.contains(name), "{error}");
        }
    }

    #[test]
    fn an_endless_cost_is_due_at_the_end_of_time() {
        let waiting = QueueEntry {
            tenant: Tenant(1),
            weight: 1,
            priority: Priority::NORMAL,
            cost: Duration::MAX,
            deadline: Duration::from_secs(1),
        };
        let order = QueueOrder::ShortestFirst { patience: 1e300 };
        assert_eq!(order.due(Duration::from_secs(5), &waiting), Moment::MAX);
    }
}
