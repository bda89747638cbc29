//! Classes of urgency: which requests run first, so that none is late.
//!
//! Order by deadline alone computes a shared prefix once for every deadline; order by prefix alone
//! misses deadlines. So pods compute the classes of a plan one after the other, the most urgent
//! first, and inside a class the order is by prefix. A class consists of the requests that are due
//! by its deadline and of patient ones that share a prefix with them: computed in a later class,
//! they would compute that prefix again. The patient requests that save the most for their time
//! join first, as long as nothing that is due becomes late. If everything fits before the first
//! deadline, there is one class.
//!
//! Costs are estimates, and answers may be longer than expected, so a fifth of the time until a
//! deadline is left free. A class that is expected to be late takes no patient requests; the plan
//! says that it is late. More than [`MOST_DEADLINES`] deadlines are rounded down to that many.

use crate::forest::Forest;
use crate::queue::Queue;
use crate::rates::{PlannerRates, Speeds};
use std::time::Duration;

/// Deadlines that are told apart.
const MOST_DEADLINES: usize = 16;

/// The share of the time until a deadline that is planned.
const PLANNED: f64 = 0.8;

/// Requests that run before those of the next class.
pub(crate) struct UrgencyClass {
    /// When those of its requests that are due must be finished.
    pub(crate) deadline: Option<Duration>,
    /// Their positions in the forest's order, ascending.
    pub(crate) positions: Vec<u32>,
}

/// The classes of a forest, the most urgent first.
pub(crate) fn classes(
    queue: &Queue,
    forest: &Forest,
    rates: &PlannerRates,
    speeds: &Speeds,
) -> Vec<UrgencyClass> {
    let count = forest.order().len();
    if !queue.has_deadlines() {
        let positions = (0..count as u32).collect();
        return vec![UrgencyClass { deadline: None, positions }];
    }
    let mut sorter = Sorter {
        queue,
        forest,
        rates,
        speed: speeds.all().iter().sum(),
        deadlines: forest.order().iter().map(|job| queue.deadline(*job)).collect(),
        is_left: vec![true; count],
        spent: 0.0,
    };
    sorter.round_down();
    let mut found = Vec::new();
    for deadline in sorter.distinct() {
        let class = sorter.class(deadline);
        if class.positions.is_empty() {
            continue;
        }
        sorter.spent += sorter.cost(&class.positions);
        for position in &class.positions {
            sorter.is_left[*position as usize] = false;
        }
        found.push(class);
    }
    found
}

/// Patient requests side by side that share equally much with the nearest ones that are due.
struct Companions {
    positions: Vec<u32>,
    cost: f64,
    /// Milliseconds that they save by running in the class.
    saved: f64,
}

struct Sorter<'a> {
    queue: &'a Queue,
    forest: &'a Forest,
    rates: &'a PlannerRates,
    speed: f64,
    /// By position.
    deadlines: Vec<Option<Duration>>,
    is_left: Vec<bool>,
    /// Milliseconds of the classes so far, at speed one.
    spent: f64,
}

impl Sorter<'_> {
    /// The deadlines, ascending; none is last.
    fn distinct(&self) -> Vec<Option<Duration>> {
        let mut all = self.deadlines.clone();
        all.sort_unstable_by_key(|deadline| (deadline.is_none(), *deadline));
        all.dedup();
        all
    }

    fn round_down(&mut self) {
        let all: Vec<_> = self.distinct().into_iter().flatten().collect();
        let step = all.len().div_ceil(MOST_DEADLINES).max(1);
        let kept: Vec<_> = all.into_iter().step_by(step).collect();
        for deadline in self.deadlines.iter_mut().flatten() {
            *deadline = kept[kept.partition_point(|kept| *kept <= *deadline) - 1];
        }
    }

    /// Positions that are left, and those of them that are due.
    fn left(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.is_left.len()).filter(|position| self.is_left[*position])
    }

    fn is_due(&self, position: usize, deadline: Option<Duration>) -> bool {
        deadline.is_none_or(|limit| self.deadlines[position].is_some_and(|own| own <= limit))
    }

    /// Milliseconds of requests in this order, at speed one.
    fn cost(&self, positions: &[u32]) -> f64 {
        let mut sum = 0.0;
        for (position, shared) in selected(self.forest, positions) {
            sum += self.rates.request(self.queue, self.forest.order()[position], shared as usize);
        }
        sum
    }

    /// Milliseconds that can be planned until a deadline, beside the classes so far.
    fn budget(&self, deadline: Duration) -> f64 {
        deadline.as_secs_f64() * 1e3 * PLANNED * self.speed - self.spent
    }

    fn class(&self, deadline: Option<Duration>) -> UrgencyClass {
        let left: Vec<u32> = self.left().map(|position| position as u32).collect();
        let due: Vec<u32> =
            left.iter().copied().filter(|it| self.is_due(*it as usize, deadline)).collect();
        let Some(limit) = deadline.filter(|_| !due.is_empty()) else {
            return UrgencyClass { deadline, positions: due };
        };
        if self.cost(&left) <= self.budget(limit) {
            return UrgencyClass { deadline, positions: left };
        }
        let mut room = self.room(limit, &left);
        let mut positions = due;
        let mut companions = self.companions(&left, limit);
        companions
            .sort_by(|one, other| (other.saved * one.cost).total_cmp(&(one.saved * other.cost)));
        for group in companions {
            if group.cost <= room {
                room -= group.cost;
                positions.extend(group.positions);
            }
        }
        positions.sort_unstable();
        UrgencyClass { deadline, positions }
    }

    /// Milliseconds of patient requests that make nothing late which is due by any deadline.
    fn room(&self, first: Duration, left: &[u32]) -> f64 {
        let mut room = f64::INFINITY;
        let later = self.distinct().into_iter().flatten().filter(|limit| *limit >= first);
        for limit in later {
            let due: Vec<u32> =
                left.iter().copied().filter(|it| self.is_due(*it as usize, Some(limit))).collect();
            room = room.min(self.budget(limit) - self.cost(&due));
        }
        room
    }

    /// The patient requests that share anything with one that is due.
    fn companions(&self, left: &[u32], deadline: Duration) -> Vec<Companions> {
        let due: Vec<bool> =
            left.iter().map(|it| self.is_due(*it as usize, Some(deadline))).collect();
        let between: Vec<u32> = selected(self.forest, left).map(|(_, shared)| shared).collect();
        // What each shares with the nearest one that is due, before it and behind it.
        let mut shared = vec![0_u32; left.len()];
        let mut run = 0;
        for at in 0..left.len() {
            run = run.min(between[at]);
            shared[at] = run;
            run = if due[at] { u32::MAX } else { run };
        }
        let mut run = 0;
        for at in (0..left.len()).rev() {
            shared[at] = shared[at].max(run);
            run = if due[at] { u32::MAX } else { run }.min(between[at]);
        }
        let mut found: Vec<Companions> = Vec::new();
        let mut last = None;
        for at in 0..left.len() {
            if due[at] || shared[at] == 0 {
                last = None;
                continue;
            }
            let job = self.forest.order()[left[at] as usize];
            let cost = self.rates.request(self.queue, job, between[at] as usize);
            if last == Some(shared[at])
                && let Some(group) = found.last_mut()
            {
                group.positions.push(left[at]);
                group.cost += cost;
                continue;
            }
            last = Some(shared[at]);
            let tokens = shared[at] as usize * self.queue.block_size().get();
            let saved = self.rates.prefill(0, tokens);
            found.push(Companions { positions: vec![left[at]], cost, saved });
        }
        found
    }
}

/// Some positions of a forest, each with the blocks that it shares with the one before it among
/// them.
pub(crate) fn selected<'a>(
    forest: &'a Forest,
    positions: &'a [u32],
) -> impl Iterator<Item = (usize, u32)> + 'a {
    let mut before: Option<usize> = None;
    positions.iter().map(move |position| {
        let position = *position as usize;
        let between = before.map(|before| &forest.shared()[before + 1..=position]);
        before = Some(position);
        (position, between.and_then(|it| it.iter().min().copied()).unwrap_or(0))
    })
}
