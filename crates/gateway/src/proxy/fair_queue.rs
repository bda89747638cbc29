//! Fair queue: which sender's work starts next, when more work waits than threads are free.
//!
//! Start-time fair queueing by bytes: every sender has a virtual time that grows by the bytes it is
//! served, divided by its weight, and the sender with the least is next. A sender that comes back
//! continues at the queue's clock or at its own virtual time, whichever is later. Work that has
//! started is not preempted, so a sender with nothing under way may use one of as many extra
//! threads: the backlog of one sender then delays another by its share of the CPU alone. Only when
//! those are in use too does a sender wait until some work ends.
//!
//! The queue is bounded in bytes. What exceeds the bound is the newest work of the sender with the
//! most waiting bytes, which need not be the work that came last.
//!
//! Starting work looks at every sender. There are at most as many as client connections, and work
//! takes milliseconds.

use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;

/// Virtual time per byte at a weight of one, so that weights divide it without much rounding.
const SCALE: u64 = 1024;

/// Idle senders whose virtual time is ahead of the clock; more are forgotten.
const MOST_IDLE: usize = 1024;

/// Work in the order of its arrival.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Ticket(u64);

/// Who sends work, and how much.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Load<K> {
    /// The sender.
    pub(crate) sender: K,
    /// The sender's share relative to others; zero counts as one.
    pub(crate) weight: u32,
    /// The size of the work.
    pub(crate) bytes: usize,
}

/// Waiting work of several senders, and how much of each is under way.
#[derive(Debug)]
pub(crate) struct FairQueue<K, T> {
    /// Threads that all senders share; as many again are for senders with nothing under way.
    threads: usize,
    senders: HashMap<K, SenderQueue<T>>,
    clock: u64,
    last_ticket: u64,
    running: usize,
    bytes: usize,
}

#[derive(Debug)]
struct SenderQueue<T> {
    /// The virtual time.
    served: u64,
    waiting: BTreeMap<Ticket, WaitingWork<T>>,
    bytes: usize,
    running: usize,
}

#[derive(Debug)]
struct WaitingWork<T> {
    item: T,
    weight: u32,
    bytes: usize,
}

impl<T> SenderQueue<T> {
    fn is_idle(&self) -> bool {
        self.running == 0 && self.waiting.is_empty()
    }

    fn remove(&mut self, ticket: Ticket) -> Option<WaitingWork<T>> {
        let work = self.waiting.remove(&ticket)?;
        self.bytes -= work.bytes;
        Some(work)
    }
}

impl<K: Clone + Eq + Hash, T> FairQueue<K, T> {
    /// An empty queue for so many threads, and as many extra ones.
    pub(crate) fn new(threads: usize) -> Self {
        Self { threads, senders: HashMap::new(), clock: 0, last_ticket: 0, running: 0, bytes: 0 }
    }

    /// Adds work.
    pub(crate) fn push(&mut self, load: Load<K>, item: T) -> Ticket {
        let Load { sender, weight, bytes } = load;
        self.last_ticket += 1;
        let ticket = Ticket(self.last_ticket);
        let clock = self.clock;
        let queue = self.senders.entry(sender).or_insert_with(|| SenderQueue {
            served: clock,
            waiting: BTreeMap::new(),
            bytes: 0,
            running: 0,
        });
        if queue.is_idle() {
            queue.served = queue.served.max(clock);
        }
        queue.bytes += bytes;
        queue.waiting.insert(ticket, WaitingWork { item, weight, bytes });
        self.bytes += bytes;
        ticket
    }

    /// The next work, if there is a thread for it; it is under way until [`Self::end`].
    pub(crate) fn start(&mut self) -> Option<(K, T)> {
        let is_shared = self.running < self.threads;
        if self.running >= 2 * self.threads {
            return None;
        }
        let may_start = |queue: &&SenderQueue<T>| is_shared || queue.running == 0;
        let (sender, ticket) = self
            .senders
            .iter()
            .filter(|(_, queue)| may_start(queue))
            .filter_map(|(sender, queue)| {
                let (ticket, _) = queue.waiting.first_key_value()?;
                Some((queue.served, *ticket, sender))
            })
            .min_by_key(|(served, ticket, _)| (*served, *ticket))
            .map(|(_, ticket, sender)| (sender.clone(), ticket))?;
        let queue = self.senders.get_mut(&sender)?;
        let WaitingWork { item, weight, bytes } = queue.remove(ticket)?;
        self.clock = self.clock.max(queue.served);
        let cost = (bytes as u64).max(1).saturating_mul(SCALE) / u64::from(weight.max(1));
        queue.served = queue.served.saturating_add(cost);
        queue.running += 1;
        self.running += 1;
        self.bytes -= bytes;
        Some((sender, item))
    }

    /// Work of this sender has ended.
    pub(crate) fn end(&mut self, sender: &K) {
        let Some(queue) = self.senders.get_mut(sender) else { return };
        queue.running -= 1;
        self.running -= 1;
        self.forget(sender);
    }

    /// Removes work that has not started.
    pub(crate) fn cancel(&mut self, sender: &K, ticket: Ticket) -> Option<T> {
        let work = self.senders.get_mut(sender)?.remove(ticket)?;
        self.bytes -= work.bytes;
        self.forget(sender);
        Some(work.item)
    }

    /// Removes work that exceeds `most_bytes`, if any does.
    pub(crate) fn displace(&mut self, most_bytes: usize) -> Option<T> {
        if self.bytes <= most_bytes {
            return None;
        }
        let newest = |(sender, queue): (&K, &SenderQueue<T>)| {
            let (ticket, _) = queue.waiting.last_key_value()?;
            Some((queue.bytes, *ticket, sender.clone()))
        };
        let all = self.senders.iter().filter_map(newest);
        let (_, ticket, sender) = all.max_by_key(|(bytes, ticket, _)| (*bytes, *ticket))?;
        self.cancel(&sender, ticket)
    }

    /// Forgets a sender without work whose virtual time no longer matters.
    fn forget(&mut self, sender: &K) {
        if self.running == 0 && self.bytes == 0 && self.senders.values().all(SenderQueue::is_idle) {
            self.senders.clear();
            return;
        }
        let clock = self.clock;
        let is_crowded = self.senders.len() > MOST_IDLE;
        let is_forgotten =
            |queue: &SenderQueue<T>| queue.is_idle() && (is_crowded || queue.served <= clock);
        if is_crowded {
            self.senders.retain(|_, queue| !is_forgotten(queue));
        } else if self.senders.get(sender).is_some_and(is_forgotten) {
            self.senders.remove(sender);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashSet;

    fn load(sender: u8, bytes: usize) -> Load<u8> {
        Load { sender, weight: 1, bytes }
    }

    #[test]
    fn the_backlog_of_one_sender_does_not_delay_another() {
        let mut queue = FairQueue::new(2);
        for number in 0..50 {
            queue.push(load(0, 15 << 20), number);
        }
        assert_eq!([queue.start(), queue.start()], [Some((0, 0)), Some((0, 1))]);
        assert_eq!(queue.start(), None, "an extra thread is not for a sender that has one");
        queue.push(load(1, 108 << 10), 100);
        queue.push(load(1, 108 << 10), 101);
        assert_eq!(queue.start(), Some((1, 100)));
        assert_eq!(queue.start(), None);
        queue.end(&1);
        assert_eq!(queue.start(), Some((1, 101)));
        queue.end(&0);
        queue.end(&0);
        queue.push(load(1, 108 << 10), 102);
        assert_eq!(queue.start(), Some((1, 102)), "it has had far less");
        assert_eq!(queue.start(), Some((0, 2)), "the other has nothing under way now");
        assert_eq!(queue.start(), None);
    }

    #[test]
    fn with_all_threads_in_use_a_newcomer_is_next_but_for_senders_with_less() {
        let mut queue = FairQueue::new(1);
        for sender in 0..4 {
            for _ in 0..9 {
                queue.push(load(sender, 1000), sender);
            }
        }
        let running = [queue.start().unwrap().0, queue.start().unwrap().0];
        assert_eq!(running, [0, 1]);
        queue.push(load(9, 10), 9);
        let mut order = Vec::new();
        for ended in running.into_iter().chain([2, 3]) {
            queue.end(&ended);
            order.extend(queue.start().map(|(sender, _)| sender));
        }
        assert_eq!(order, [2, 3, 9, 0], "each sender that came before it has one turn");
    }

    #[test]
    fn senders_are_served_by_their_weight() {
        let mut queue = FairQueue::new(1);
        for _ in 0..400 {
            queue.push(Load { weight: 3, ..load(0, 100) }, ());
            queue.push(Load { weight: 1, ..load(1, 100) }, ());
        }
        let mut served = [0, 0];
        for _ in 0..200 {
            let (sender, ()) = queue.start().unwrap();
            served[usize::from(sender)] += 1;
            queue.end(&sender);
        }
        assert!((149..=151).contains(&served[0]), "{served:?}");
    }

    #[test]
    fn what_exceeds_the_bound_is_the_newest_work_of_the_sender_with_the_most() {
        let mut queue = FairQueue::new(1);
        queue.push(load(0, 400), "first");
        queue.push(load(0, 400), "second");
        queue.push(load(1, 300), "other");
        assert_eq!(queue.displace(1100), None);
        assert_eq!(queue.displace(1000), Some("second"));
        assert_eq!(queue.displace(1000), None);
        queue.push(load(1, 600), "its second");
        assert_eq!(queue.displace(1000), Some("its second"), "the newcomer itself");
    }

    #[test]
    fn senders_without_work_are_forgotten() {
        let mut queue = FairQueue::new(1);
        let last = queue.push(load(0, 5), ());
        for sender in 1..=255 {
            queue.push(load(sender, 5), ());
            let (sender, ()) = queue.start().unwrap();
            queue.end(&sender);
        }
        queue.cancel(&0, last);
        while let Some((sender, ())) = queue.start() {
            queue.end(&sender);
        }
        assert!(queue.senders.is_empty() && queue.bytes == 0 && queue.running == 0, "{queue:?}");
    }

    #[derive(Clone, Debug)]
    enum Step {
        Push { sender: u8, bytes: usize },
        Start,
        End { at: usize },
        Cancel { at: usize },
        Displace { most: usize },
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            4 => (0..5_u8, 1..5000_usize).prop_map(|(sender, bytes)| Step::Push { sender, bytes }),
            4 => Just(Step::Start),
            3 => any::<usize>().prop_map(|at| Step::End { at }),
            1 => any::<usize>().prop_map(|at| Step::Cancel { at }),
            1 => (0..20_000_usize).prop_map(|most| Step::Displace { most }),
        ]
    }

    proptest! {
        #[test]
        fn work_starts_once_in_the_order_of_its_sender_on_no_more_threads_than_there_are(
            threads in 1..4_usize,
            steps in proptest::collection::vec(step(), 1..300),
        ) {
            let mut queue = FairQueue::new(threads);
            let mut waiting: Vec<(u8, Ticket, usize)> = Vec::new();
            let mut running: Vec<u8> = Vec::new();
            let mut items = HashSet::new();
            for (number, step) in steps.into_iter().enumerate() {
                match step {
                    Step::Push { sender, bytes } => {
                        let ticket = queue.push(load(sender, bytes), number);
                        items.insert(number);
                        waiting.push((sender, ticket, number));
                    }
                    Step::Start => match queue.start() {
                        Some((sender, item)) => {
                            let first = waiting.iter().position(|(of, ..)| *of == sender).unwrap();
                            prop_assert_eq!(waiting.remove(first).2, item);
                            prop_assert!(items.remove(&item));
                            prop_assert!(running.len() < threads || !running.contains(&sender));
                            running.push(sender);
                        }
                        None => {
                            let is_idle = |(sender, ..): &(u8, Ticket, usize)| !running.contains(sender);
                            let is_full = running.len() >= 2 * threads;
                            let has_share = running.len() < threads && !waiting.is_empty();
                            prop_assert!(is_full || !(has_share || waiting.iter().any(is_idle)));
                        }
                    },
                    Step::End { at } if !running.is_empty() => {
                        queue.end(&running.swap_remove(at % running.len()));
                    }
                    Step::Cancel { at } if !waiting.is_empty() => {
                        let (sender, ticket, item) = waiting.remove(at % waiting.len());
                        prop_assert_eq!(queue.cancel(&sender, ticket), Some(item));
                        prop_assert_eq!(queue.cancel(&sender, ticket), None);
                        items.remove(&item);
                    }
                    Step::Displace { most } => {
                        while let Some(item) = queue.displace(most) {
                            prop_assert!(items.remove(&item));
                            waiting.retain(|(_, _, waiting)| *waiting != item);
                        }
                        prop_assert!(queue.bytes <= most);
                    }
                    Step::End { .. } | Step::Cancel { .. } => {}
                }
                prop_assert!(running.len() == queue.running && running.len() <= 2 * threads);
            }
        }

        #[test]
        fn senders_with_a_backlog_get_equal_bytes_up_to_one_piece_of_work(
            sizes in proptest::collection::vec((0..3_u8, 1..5000_usize), 30..200),
        ) {
            let mut queue = FairQueue::new(1);
            let mut left = [0_usize; 3];
            for (sender, bytes) in sizes {
                queue.push(load(sender, bytes), bytes);
                left[usize::from(sender)] += 1;
            }
            let mut served = [0_usize; 3];
            while left.iter().all(|left| *left > 0) {
                let (sender, bytes) = queue.start().unwrap();
                queue.end(&sender);
                served[usize::from(sender)] += bytes;
                left[usize::from(sender)] -= 1;
                let most = served.iter().max().unwrap();
                let least = served.iter().min().unwrap();
                prop_assert!(most - least <= 5000, "{:?}", served);
            }
        }
    }
}
