//! Urgency classes: who has to be done when.
//!
//! Sorting by deadline alone would tear shared prefixes apart; sorting by prefix alone would break deadlines.
//! So requests are put into as few classes as deadlines allow: going from the earliest deadline on, the
//! next deadline's requests join the class as long as all of it is then expected to end before the earliest
//! deadline in it. Inside a class the order is by prefix, and pods compute the classes one after the other.
//!
//! A class that is expected to be late even on its own is not hidden: its expected end says so. More than
//! [`MOST_DEADLINES`] different deadlines are rounded down to that many.

use crate::forest::Forest;
use crate::queue::Queue;
use std::time::Duration;

/// So many different deadlines are told apart.
pub const MOST_DEADLINES: usize = 64;

/// The deadlines of a forest's requests, few enough to be tried one by one.
pub(crate) struct Deadlines {
    /// Ascending; none is last.
    pub(crate) all: Vec<Option<Duration>>,
    /// For each place in the forest's order, which of them; empty if there is only one.
    of_place: Vec<u8>,
}

impl Deadlines {
    pub(crate) fn of(queue: &Queue, forest: &Forest) -> Self {
        if !queue.has_deadlines() {
            return Self { all: vec![None], of_place: Vec::new() };
        }
        let key = |deadline: Option<Duration>| (deadline.is_none(), deadline);
        let deadline_of = |job: &_| key(queue.deadline(*job));
        let mut different: Vec<_> = forest.order().iter().map(deadline_of).collect();
        different.sort_unstable();
        different.dedup();
        let step = different.len().div_ceil(MOST_DEADLINES).max(1);
        let mut kept: Vec<_> = different.iter().copied().step_by(step).collect();
        // What has no deadline must not be rounded down to one, nor be rounded together with one.
        if different.last() == Some(&key(None)) && kept.last() != Some(&key(None)) {
            kept.push(key(None));
        }
        let rank = |job: &_| (kept.partition_point(|kept| *kept <= deadline_of(job)) - 1) as u8;
        let of_place = forest.order().iter().map(rank).collect();
        Self { all: kept.into_iter().map(|(_, deadline)| deadline).collect(), of_place }
    }

    /// Places in the forest's order whose deadlines are in `range`, each with the blocks that it shares with
    /// the one before it in that selection.
    pub(crate) fn select<'a>(
        &'a self,
        forest: &'a Forest,
        range: std::ops::Range<usize>,
    ) -> impl Iterator<Item = (usize, u32)> + 'a {
        let mut least = 0;
        let mut first = true;
        forest.shared().iter().enumerate().filter_map(move |(place, shared)| {
            least = least.min(*shared);
            if !range.contains(&self.of_place.get(place).map_or(0, |rank| usize::from(*rank))) {
                return None;
            }
            let shared = if std::mem::take(&mut first) { 0 } else { least };
            least = u32::MAX;
            Some((place, shared))
        })
    }
}
