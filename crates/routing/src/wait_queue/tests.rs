//! The queue against a naive model, and what it promises.

use std::collections::BTreeMap;
use std::time::Duration;
use wornpath_index::Moment;

use proptest::prelude::*;

use super::fairness::LEAST_WORK;
use super::{Priority, QueueEntry, QueueOrder, QueueRules, Tenant, WaitQueue};

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn waiting(tenant: u64, priority: u8, cost: u64) -> QueueEntry {
    QueueEntry {
        tenant: Tenant(tenant),
        weight: 1,
        priority: Priority::new(priority).unwrap(),
        cost: ms(cost),
        deadline: Moment::MAX,
    }
}

/// The same rules over a plain list, every question answered by a scan, nothing ever forgotten.
struct Model {
    rules: QueueRules,
    entries: Vec<Entry>,
    levels: [(Duration, BTreeMap<Tenant, Duration>); 8],
    pushed: usize,
}

#[derive(Clone)]
struct Entry {
    id: usize,
    waiting: QueueEntry,
    level: usize,
    due: Moment,
    promotion: Moment,
}

impl Model {
    fn enter(&mut self, entry: Entry) {
        let (clock, served) = &mut self.levels[entry.level];
        let alone = !self
            .entries
            .iter()
            .any(|e| (e.level, e.waiting.tenant) == (entry.level, entry.waiting.tenant));
        let served = served.entry(entry.waiting.tenant).or_default();
        if alone {
            *served = (*served).max(*clock);
        }
        self.entries.push(entry);
    }

    fn leave(&mut self, id: usize) -> Entry {
        let at = self.entries.iter().position(|e| e.id == id).unwrap();
        let entry = self.entries.remove(at);
        if !self.entries.iter().any(|e| e.level == entry.level) {
            self.levels[entry.level] = Default::default();
        }
        entry
    }

    fn push(&mut self, now: Moment, waiting: QueueEntry) -> Option<usize> {
        let id = self.pushed;
        self.pushed += 1;
        let due = self.rules.order.due(now, &waiting);
        let level = usize::from(waiting.priority.level());
        self.enter(Entry { id, waiting, level, due, promotion: now + self.rules.promote_after });
        if self.entries.len() <= self.rules.capacity {
            return None;
        }
        let lowest = self.entries.iter().map(|e| e.level).min().unwrap();
        let low: Vec<_> = self.entries.iter().filter(|e| e.level == lowest).collect();
        let length = |t: Tenant| low.iter().filter(|e| e.waiting.tenant == t).count();
        let victim = low
            .iter()
            .max_by_key(|e| {
                let tenant = e.waiting.tenant;
                (length(tenant), tenant == waiting.tenant, tenant, e.due, e.id)
            })
            .unwrap()
            .id;
        Some(self.leave(victim).id)
    }

    fn promote(&mut self, now: Moment) {
        while let Some(entry) = self
            .entries
            .iter()
            .filter(|e| e.level < 7 && e.promotion <= now)
            .min_by_key(|e| (e.promotion, e.id))
        {
            let mut entry = self.leave(entry.id);
            entry.level += 1;
            entry.promotion += self.rules.promote_after;
            self.enter(entry);
        }
    }

    fn poll(&mut self, now: Moment, accept: impl Fn(usize) -> bool) -> Vec<usize> {
        self.promote(now);
        let overdue = now.since_zero().checked_sub(self.rules.fair_for).map(Moment::at);
        let mut left = self.rules.lookahead;
        let mut bound = vec![];
        let mut refused = vec![];
        for level in (0..8).rev() {
            while left > 0 {
                let times = |t: Tenant| {
                    refused.iter().filter(|(l, tenant, _)| (*l, *tenant) == (level, t)).count()
                };
                let offered = || {
                    self.entries.iter().filter(|e| {
                        e.level == level && !refused.iter().any(|(_, _, id)| *id == e.id)
                    })
                };
                let is_overdue = |e: &&Entry| overdue.is_some_and(|time| e.due <= time);
                let first = offered().filter(is_overdue).min_by_key(|e| (e.due, e.id));
                let next = first.or_else(|| {
                    offered().min_by_key(|e| {
                        let tenant = e.waiting.tenant;
                        (times(tenant), self.levels[level].1[&tenant], tenant, e.due, e.id)
                    })
                });
                let Some(entry) = next.cloned() else { break };
                if !accept(entry.id) {
                    refused.push((level, entry.waiting.tenant, entry.id));
                    left -= 1;
                    continue;
                }
                let (clock, served) = &mut self.levels[level];
                let served = served.get_mut(&entry.waiting.tenant).unwrap();
                *clock = (*clock).max(*served);
                *served += entry.waiting.cost.max(LEAST_WORK) / entry.waiting.weight.max(1);
                self.leave(entry.id);
                bound.push(entry.id);
            }
        }
        bound
    }

    fn expired(&mut self, now: Moment) -> Option<usize> {
        let first = self.entries.iter().min_by_key(|e| (e.waiting.deadline, e.id))?;
        (first.waiting.deadline <= now).then_some(first.id).map(|id| self.leave(id).id)
    }
}

#[derive(Clone, Debug)]
enum Step {
    Push { tenant: u64, weight: u32, priority: u8, cost: u64, patience: u64 },
    Cancel(usize),
    Poll { accept: u64 },
    Pass(u64),
}

/// Mostly one priority and few tenants, so that requests meet.
fn step() -> impl Strategy<Value = Step> {
    let priority = prop_oneof![5 => Just(4_u8), 1 => 0..8_u8];
    let push = (0..3_u64, 0..3_u32, priority, 0..50_u64, 1..2000_u64);
    prop_oneof![
        6 => push.prop_map(|(tenant, weight, priority, cost, patience)| {
            Step::Push { tenant, weight, priority, cost, patience }
        }),
        1 => (0..40_usize).prop_map(Step::Cancel),
        3 => (any::<u64>(), any::<u64>()).prop_map(|(a, b)| Step::Poll { accept: a & b }),
        1 => (0..60_u64).prop_map(Step::Pass),
    ]
}

fn order() -> impl Strategy<Value = QueueOrder> {
    prop_oneof![
        Just(QueueOrder::Arrival),
        Just(QueueOrder::Deadline),
        (0.0..20.0).prop_map(|patience| QueueOrder::ShortestFirst { patience }),
    ]
}

proptest! {
    #[test]
    fn the_queue_does_what_a_plain_list_would(
        order in order(),
        capacity in 1..20_usize,
        lookahead in 1..12_usize,
        fair_for in prop_oneof![Just(Duration::MAX), (0..200_u64).prop_map(ms)],
        promote_after in 20..500_u64,
        steps in prop::collection::vec(step(), 0..120),
    ) {
        let promote_after = ms(promote_after);
        let rules = QueueRules { capacity, order, fair_for, promote_after, lookahead };
        let mut queue = WaitQueue::new(rules).unwrap();
        let mut model =
            Model { rules, entries: vec![], levels: Default::default(), pushed: 0 };
        let mut tickets = vec![];
        let mut now = Moment::ZERO;
        for step in steps {
            match step {
                Step::Push { tenant, weight, priority, cost, patience } => {
                    let deadline = now + ms(patience);
                    let waiting = QueueEntry { weight, deadline, ..waiting(tenant, priority, cost) };
                    let id = model.pushed;
                    let gone = match queue.push(now, waiting, id) {
                        Ok(pushed) => {
                            tickets.push(pushed.ticket);
                            pushed.displaced
                        }
                        Err(full) => Some(full.item),
                    };
                    prop_assert_eq!(gone, model.push(now, waiting));
                }
                Step::Cancel(at) => {
                    if let Some(ticket) = tickets.get(at) {
                        let gone = queue.cancel(*ticket);
                        if let Some(id) = gone {
                            model.leave(id);
                        }
                    }
                }
                Step::Poll { accept } => {
                    while let Some(id) = queue.pop_expired(now) {
                        prop_assert_eq!(Some(id), model.expired(now));
                    }
                    prop_assert_eq!(None, model.expired(now));
                    let accept = |id: usize| accept.rotate_left(id as u32) & 1 == 1;
                    let mut bound = vec![];
                    queue.poll(now, &mut bound, |id| accept(*id).then_some(()));
                    let bound: Vec<_> = bound.into_iter().map(|(id, ())| id).collect();
                    prop_assert_eq!(bound, model.poll(now, accept));
                }
                Step::Pass(time) => now += ms(time),
            }
            prop_assert_eq!(queue.len(), model.entries.len());
            let below_top = model.entries.iter().filter(|e| e.level < 7).count();
            prop_assert_eq!(queue.promotions_ahead(), below_top);
            let wakeup = model.entries.iter().map(|e| e.waiting.deadline).min();
            prop_assert_eq!(queue.next_wakeup(), wakeup);
        }
    }

    /// Start-time fair queueing: as long as both wait, neither is ahead of its share by more than
    /// one request of each.
    #[test]
    fn backlogged_tenants_get_work_in_proportion_to_their_weights(
        costs in prop::collection::vec((1..100_u64, 1..100_u64), 60),
        weight in 1..5_u32,
    ) {
        let mut queue = WaitQueue::new(QueueRules::default()).unwrap();
        for (one, two) in costs {
            for (tenant, weight, cost) in [(1, 1, one), (2, weight, two)] {
                let waiting = QueueEntry { weight, ..waiting(tenant, 4, cost) };
                queue.push(Moment::ZERO, waiting, (tenant, cost)).unwrap();
            }
        }
        let mut given = [0.0, 0.0];
        for _ in 0..40 {
            let mut bound = vec![];
            let mut room = Some(());
            queue.poll(Moment::ZERO, &mut bound, |_| room.take());
            let ((tenant, cost), ()) = bound[0];
            let share = if tenant == 1 { 1.0 } else { f64::from(weight) };
            given[tenant as usize - 1] += cost as f64 / share;
            let ahead = (given[0] - given[1]).abs();
            prop_assert!(ahead <= 200.0, "{given:?}");
        }
    }
}

/// Serves one request a step while `flood` pushes two a step, and says when the first push went.
fn steps_until_served(
    rules: QueueRules,
    first: QueueEntry,
    flood: impl Fn(u64) -> QueueEntry,
) -> Option<u64> {
    let mut queue = WaitQueue::new(rules).unwrap();
    queue.push(Moment::ZERO, first, 0).unwrap();
    (1..2000).find(|step| {
        let now = Moment::from_millis(step * 10);
        for item in [step * 2, step * 2 + 1] {
            queue.push(now, flood(item), item).unwrap();
        }
        let mut bound = vec![];
        let mut room = Some(());
        queue.poll(now, &mut bound, |_| room.take());
        bound[0].0 == 0
    })
}

#[test]
fn offline_work_is_served_under_a_flood_of_urgent_requests_once_it_has_waited() {
    let rules = QueueRules { promote_after: ms(100), ..QueueRules::default() };
    // Risen to the top after 7 × 100 ms = 70 steps, it takes its turn among eight tenants.
    let step = steps_until_served(rules, waiting(99, 0, 1000), |item| waiting(item % 8, 7, 5));
    assert!(step.is_some_and(|step| (70..=80).contains(&step)), "{step:?}");
}

#[test]
fn a_long_prefill_is_overtaken_only_until_it_is_due() {
    let order = QueueOrder::ShortestFirst { patience: 2.0 };
    let rules = QueueRules { order, ..QueueRules::default() };
    // Due after 2 × 1000 ms = 200 steps; of the two a step that came before, half are still there.
    let step = steps_until_served(rules, waiting(1, 7, 1000), |_| waiting(1, 7, 1));
    assert!(step.is_some_and(|step| (200..=402).contains(&step)), "{step:?}");
}

#[test]
fn a_tenant_cannot_gain_turns_by_leaving_and_coming_back() {
    let mut queue = WaitQueue::new(QueueRules::default()).unwrap();
    for _ in 0..20 {
        queue.push(Moment::ZERO, waiting(1, 4, 10), 1).unwrap();
    }
    let mut served = [0, 0];
    let mut last = 0;
    for _ in 0..20 {
        if last == 0 {
            queue.push(Moment::ZERO, waiting(0, 4, 10), 0).unwrap();
        }
        let mut bound = vec![];
        let mut room = Some(());
        queue.poll(Moment::ZERO, &mut bound, |_| room.take());
        last = bound[0].0;
        served[last] += 1;
    }
    assert_eq!(served, [10, 10]);
}

#[test]
fn in_a_full_queue_offline_work_and_busy_tenants_give_way() {
    let rules = QueueRules { capacity: 3, ..QueueRules::default() };
    let mut queue = WaitQueue::new(rules).unwrap();
    for name in ["a1", "a2", "a3"] {
        queue.push(Moment::ZERO, waiting(1, 4, 10), name).unwrap();
    }
    let full = queue.push(Moment::ZERO, waiting(1, 4, 10), "a4").unwrap_err();
    assert_eq!(full.item, "a4");
    assert_eq!(
        full.to_string(),
        "wait queue full: 3 requests (limit: `capacity` of the queue); retry later"
    );
    let pushed = queue.push(Moment::ZERO, waiting(2, 4, 10), "b1").unwrap();
    assert_eq!(pushed.displaced, Some("a3"), "the longest line gives way");
    let pushed = queue.push(Moment::ZERO, waiting(3, 0, 10), "offline");
    assert_eq!(pushed.unwrap_err().item, "offline", "the lowest priority gives way");
    assert_eq!(queue.len(), 3);
}

#[test]
fn a_refused_tenant_does_not_use_up_the_poll_of_others() {
    let rules = QueueRules { lookahead: 2, ..QueueRules::default() };
    let mut queue = WaitQueue::new(rules).unwrap();
    for item in ["a1", "a2", "a3"] {
        queue.push(Moment::ZERO, waiting(1, 4, 1), item).unwrap();
    }
    queue.push(Moment::ZERO, waiting(2, 4, 100), "b").unwrap();
    let mut bound = vec![];
    queue.poll(Moment::ZERO, &mut bound, |item| (*item == "b").then_some(()));
    assert_eq!(bound, [("b", ())]);
}

#[test]
fn cancelled_requests_are_not_offered_and_expired_ones_come_back_once() {
    let mut queue = WaitQueue::new(QueueRules::default()).unwrap();
    let soon = QueueEntry { deadline: Moment::from_millis(5), ..waiting(1, 4, 1) };
    let gone = queue.push(Moment::ZERO, soon, "gone").unwrap().ticket;
    queue.push(Moment::ZERO, soon, "late").unwrap();
    assert_eq!(queue.cancel(gone), Some("gone"));
    assert_eq!(queue.cancel(gone), None);
    assert_eq!(queue.next_wakeup(), Some(Moment::from_millis(5)));
    assert_eq!(queue.pop_expired(Moment::from_millis(4)), None);
    assert_eq!(queue.pop_expired(Moment::from_millis(5)), Some("late"));
    assert_eq!(queue.pop_expired(Moment::from_millis(5)), None);
    assert!(queue.is_empty() && queue.next_wakeup().is_none());
}

#[test]
fn a_request_of_a_busy_tenant_is_passed_by_those_of_others_only_until_it_is_overdue() {
    let rules =
        QueueRules { order: QueueOrder::Arrival, fair_for: ms(1000), ..QueueRules::default() };
    let mut queue = WaitQueue::new(rules).unwrap();
    for at in [0, 100, 200] {
        queue.push(Moment::from_millis(at), waiting(1, 4, 50), ("busy", at)).unwrap();
    }
    let served = |queue: &mut WaitQueue<(&'static str, u64)>, at| {
        queue.push(Moment::from_millis(at), waiting(2, 4, 50), ("other", at)).unwrap();
        let mut bound = vec![];
        let mut has_room = true;
        queue.poll(Moment::from_millis(at), &mut bound, |_| {
            std::mem::take(&mut has_room).then_some(())
        });
        bound[0].0
    };
    assert_eq!(served(&mut queue, 300), ("busy", 0), "neither has been served");
    assert_eq!(served(&mut queue, 400), ("other", 300), "the busy tenant has been served");
    assert_eq!(served(&mut queue, 1100), ("busy", 100), "it is overdue");
}
