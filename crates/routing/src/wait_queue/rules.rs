//! A waiting request as the queue sees it, and the rules of the queue: how many, how long, in which
//! order.

use std::time::Duration;

use wornpath_index::Moment;

use crate::name::Name;

/// A tenant, by a number that differs between tenants, such as a hash of the name.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub struct Tenant(pub u64);

impl Tenant {
    /// The tenant of that name.
    #[must_use]
    pub fn named(name: &str) -> Self {
        Self(Name::from(name).key())
    }
}

/// Names a waiting request. A queue never uses one twice; a later one is larger.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Ticket(pub(super) u64);

/// How urgent a request is. Larger goes first; offline work has zero.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Priority(u8);

impl Priority {
    /// Offline work: runs when nothing else waits.
    pub const LOWEST: Self = Self(0);
    /// The default of online requests.
    pub const NORMAL: Self = Self(4);
    /// The priority that waiting raises a request to in the end.
    pub const HIGHEST: Self = Self(7);
    pub(super) const LEVELS: usize = 8;

    /// The priority of a level from 0 to 7.
    #[must_use]
    pub const fn new(level: u8) -> Option<Self> {
        if level <= Self::HIGHEST.0 { Some(Self(level)) } else { None }
    }

    /// The level, from 0 to 7.
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
    /// The tenant that the work counts against.
    pub tenant: Tenant,
    /// The tenant's share: twice the weight, twice the work. Zero counts as one.
    pub weight: u32,
    /// The priority on arrival; waiting raises it.
    pub priority: Priority,
    /// The work it causes, usually the prefill time of its uncached tokens.
    pub cost: Duration,
    /// When it expires.
    pub deadline: Moment,
}

/// Which of a tenant's requests of equal priority is due first.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub enum QueueOrder {
    /// First come, first served.
    #[default]
    Arrival,
    /// Short requests overtake long ones. A request is due `patience` times its cost after its
    /// arrival, and requests that arrive later than that cannot overtake it: aging without a timer.
    ShortestFirst {
        /// How many times its own cost a request lets shorter ones pass.
        patience: f64,
    },
    /// Earliest deadline first.
    Deadline,
}

impl QueueOrder {
    pub(super) fn due(self, arrival: Moment, entry: &QueueEntry) -> Moment {
        match self {
            Self::Arrival => arrival,
            Self::ShortestFirst { patience } => {
                let cost = entry.cost.as_secs_f64() * patience;
                let late = Duration::try_from_secs_f64(cost).unwrap_or(Duration::MAX);
                arrival.saturating_add(late)
            }
            Self::Deadline => entry.deadline,
        }
    }
}

/// How a queue behaves, checked by [`QueueRules::check`].
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct QueueRules {
    /// How many requests may wait.
    pub capacity: usize,
    /// The order of a tenant's requests of equal priority.
    pub order: QueueOrder,
    /// How long after it is due a request can still be passed by those of other tenants. Then the
    /// requests of all tenants go in the order in which they are due.
    pub fair_for: Duration,
    /// Waiting this long raises a request by one priority.
    pub promote_after: Duration,
    /// How many refused offers end a poll: bounds the cost of a poll when no pod has room.
    pub lookahead: usize,
}

impl Default for QueueRules {
    fn default() -> Self {
        Self {
            capacity: 4096,
            order: QueueOrder::ShortestFirst { patience: 10.0 },
            fair_for: Duration::MAX,
            promote_after: Duration::from_secs(10),
            lookahead: 16,
        }
    }
}

/// A rule that no queue can work by.
#[derive(Clone, Copy, PartialEq, Debug, thiserror::Error)]
pub enum QueueRulesError {
    /// No request could ever wait.
    #[error("`capacity` of the queue is 0; give at least 1")]
    NoCapacity,
    /// No request could ever leave.
    #[error("`lookahead` of the queue is 0; give at least 1")]
    NoLookahead,
    /// Every request would be at the highest priority at once.
    #[error("`promote_after` of the queue is 0; give a time above zero")]
    NoPromotion,
    /// Negative, infinite or not a number.
    #[error("`patience` of the queue is {0}; give a number of zero or more")]
    Patience(f64),
}

impl QueueRules {
    /// The rules, if a queue can work by them.
    ///
    /// # Errors
    /// Names the rule and its value.
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
    fn an_error_names_the_rule_that_cannot_work() {
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
    fn an_unbounded_cost_is_due_at_the_last_moment() {
        let entry = QueueEntry {
            tenant: Tenant(1),
            weight: 1,
            priority: Priority::NORMAL,
            cost: Duration::MAX,
            deadline: Moment::from_secs(1),
        };
        let order = QueueOrder::ShortestFirst { patience: 1e300 };
        assert_eq!(order.due(Moment::from_secs(5), &entry), Moment::MAX);
    }
}
