//! Wait queue: holds requests until a pod has room.
//!
//! The queue itself is in `routing` and knows no threads. Here it is behind a lock, and every
//! queued request has a channel by which its thread learns how the wait ended. The queue is polled
//! when a request ends, when one is queued, and by the ticker. Profiles with equal queue rules
//! share a queue, and with it the fair shares of tenants.
//!
//! A poll decides all queued requests again, so with many of them and many that end, threads would
//! do nothing else. After a poll there is a pause of several times what it took; a thread that
//! would poll during the pause notifies instead, and the poller runs a millisecond later at most.

use std::cmp::Reverse;
use std::convert::Infallible;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU64, AtomicUsize};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;
use tokio::sync::{Notify, oneshot};
use wornpath_index::Moment;
use wornpath_routing::queue::{
    Dequeued, Enqueued, HeldRequest, HeldRequests, QueueRules, Redecision, Ticket,
};
use wornpath_routing::{DecisionEnv, Hold, Profile, Rejection, RoutingContext, RoutingPlan};

/// How a wait ended, with the context of the request.
type WaitResult = (RoutingContext, Dequeued);

type ResultSender = oneshot::Sender<WaitResult>;

/// The queues that are not empty. An empty one is dropped, because a reload may bring other rules;
/// tickets start again then, so a request is identified by the number of its queue and its ticket.
#[derive(Debug)]
struct QueueSet<T> {
    queues: Vec<NumberedQueue<T>>,
    last: u64,
}

#[derive(Debug)]
struct NumberedQueue<T> {
    number: u64,
    rules: QueueRules,
    requests: HeldRequests<T>,
}

impl<T> Default for QueueSet<T> {
    fn default() -> Self {
        Self { queues: Vec::new(), last: 0 }
    }
}

type QueueSetGuard<'a> = MutexGuard<'a, QueueSet<ResultSender>>;

/// How many times longer the pause is than the poll before it.
const PAUSE_FACTOR: u32 = 24;
/// The longest pause between a change and the poll that sees it.
const MAX_PAUSE: Duration = Duration::from_millis(1);

/// What decides waiting requests again: the clock, the limits and the fleet of a worker.
pub(crate) trait Decider {
    /// The time since the start.
    fn now(&self) -> Moment;

    /// Bytes of bodies that may wait.
    fn most_waiting_bytes(&self) -> usize;

    /// Calls `decide` with the fleet as it is, and tells the index what comes of it.
    fn decide_with(&self, now: Moment, decide: impl FnOnce(&mut DecisionEnv<'_>));
}

/// The queues, and when they are polled.
#[derive(Debug, Default)]
pub(crate) struct WaitQueues {
    queues: Mutex<QueueSet<ResultSender>>,
    /// Nanoseconds since the start until which polls pause.
    paused_until: AtomicU64,
    /// Notified by a thread that did not poll because of that.
    poll_needed: Notify,
    waiting: AtomicUsize,
    /// Bytes of the bodies of queued requests.
    bytes: AtomicUsize,
}

/// A request to be queued.
pub(crate) struct Waiter<'a> {
    pub(crate) profile: &'a Arc<Profile>,
    pub(crate) context: RoutingContext,
    pub(crate) again: Redecision,
    /// Bytes of its body.
    pub(crate) bytes: usize,
}

/// How a wait ended. The context is lost only if the gateway shuts down.
pub(crate) type Waited = (Option<RoutingContext>, Result<RoutingPlan, Rejection>);

/// The number of a queue, and a ticket of it.
type QueuePosition = (u64, Ticket);

/// Removes the request from its queue when its wait is over, or if its client disconnects.
struct DequeueOnDrop<'a> {
    queues: &'a WaitQueues,
    position: Option<QueuePosition>,
    bytes: usize,
}

impl Drop for DequeueOnDrop<'_> {
    fn drop(&mut self) {
        self.queues.bytes.fetch_sub(self.bytes, Relaxed);
        let Some(position) = self.position else { return };
        let mut queues = self.queues.lock();
        queues.remove(position);
        self.queues.count(&queues);
    }
}

impl WaitQueues {
    /// The number of queued requests.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.load(Relaxed)
    }

    /// Waits until a pod has room, or until the deadline of the request.
    pub(crate) async fn wait(
        &self,
        decider: &impl Decider,
        hold: Hold,
        waiter: Waiter<'_>,
    ) -> Waited {
        let Waiter { profile, context, again, bytes } = waiter;
        let busy = |why| Rejection::busy(why);
        let most = decider.most_waiting_bytes();
        let before = self.bytes.fetch_add(bytes, Relaxed);
        let mut guard = DequeueOnDrop { queues: self, position: None, bytes };
        if before + bytes > most {
            let why = "wait queue full: buffered bodies exceed `limits.waiting`; every pod is busy";
            return (Some(context), Err(busy(why)));
        }
        let (sender, news) = oneshot::channel();
        let held = HeldRequest { profile: Arc::clone(profile), context, again, item: sender };
        let full = || busy("wait queue full: too many requests wait; every pod is busy");
        let (place, displaced) = match self.push(decider, hold, held) {
            Ok(pushed) => pushed,
            Err(context) => return (Some(*context), Err(full())),
        };
        guard.position = Some(place);
        if let Some(displaced) = displaced {
            let _ = displaced.item.send((displaced.context, Dequeued::Reject(full())));
        }
        // A pod may have got room between the decision and now.
        self.poll(decider);
        match news.await {
            Ok((context, Dequeued::Plan(plan))) => (Some(context), Ok(plan)),
            Ok((context, Dequeued::Reject(rejection))) => (Some(context), Err(rejection)),
            Err(_) => (None, Err(Rejection::shutting_down())),
        }
    }

    /// Queues a request, which may displace one of lower priority. If the queue is full, the
    /// context comes back.
    fn push(
        &self,
        decider: &impl Decider,
        hold: Hold,
        held: HeldRequest<ResultSender>,
    ) -> Result<(QueuePosition, Option<HeldRequest<ResultSender>>), Box<RoutingContext>> {
        let mut queues = self.lock();
        let entered = queues.enter(decider.now(), hold, held);
        self.count(&queues);
        entered
    }

    /// Decides the queued requests again, now or soon. Costs one load if there are none.
    pub(crate) fn poll(&self, decider: &impl Decider) {
        if self.waiting() == 0 {
            return;
        }
        let now = decider.now();
        if nanos(now) < self.paused_until.load(Relaxed) {
            self.poll_needed.notify_one();
            return;
        }
        match self.queues.try_lock() {
            Ok(queues) => self.decide_all(decider, now, queues),
            Err(TryLockError::Poisoned(queues)) => {
                self.decide_all(decider, now, queues.into_inner());
            }
            // Another thread polls now, and may have missed the change.
            Err(TryLockError::WouldBlock) => self.poll_needed.notify_one(),
        }
    }

    /// Polls for the threads that notified, for as long as it is polled itself.
    pub(crate) async fn run_poller(&self, decider: &impl Decider) -> Infallible {
        loop {
            self.poll_needed.notified().await;
            tokio::time::sleep(MAX_PAUSE).await;
            self.decide_all(decider, decider.now(), self.lock());
        }
    }

    fn decide_all(&self, decider: &impl Decider, now: Moment, mut queues: QueueSetGuard<'_>) {
        let mut settled = Vec::new();
        queues.rotate();
        decider.decide_with(now, |world| {
            queues.queues.iter_mut().for_each(|it| it.requests.poll(world, &mut settled));
        });
        self.count(&queues);
        let ended = decider.now();
        let pause = ended.since(now) * PAUSE_FACTOR;
        self.paused_until.store(nanos(ended + pause.min(MAX_PAUSE)), Relaxed);
        drop(queues);
        for (held, how) in settled {
            // If the client disconnected, the message is dropped, and with it the load of the plan.
            let _ = held.item.send((held.context, how));
        }
    }

    fn count(&self, queues: &QueueSet<ResultSender>) {
        self.waiting.store(queues.queues.iter().map(|it| it.requests.len()).sum(), Relaxed);
    }

    fn lock(&self) -> QueueSetGuard<'_> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> QueueSet<T> {
    fn enter(
        &mut self,
        now: Moment,
        hold: Hold,
        held: HeldRequest<T>,
    ) -> Result<(QueuePosition, Option<HeldRequest<T>>), Box<RoutingContext>> {
        let rules = held.profile.queue_rules();
        let at = match self.queues.iter().position(|it| it.rules == rules) {
            Some(at) => at,
            None => {
                // A profile with invalid rules was refused.
                let Ok(requests) = HeldRequests::new(rules) else {
                    return Err(Box::new(held.context));
                };
                self.last += 1;
                self.queues.push(NumberedQueue { number: self.last, rules, requests });
                self.queues.len() - 1
            }
        };
        let NumberedQueue { number, requests, .. } = &mut self.queues[at];
        let Enqueued { ticket, displaced } =
            requests.hold(now, hold.class, held).map_err(|full| Box::new(full.item.context))?;
        Ok(((*number, ticket), displaced))
    }

    /// Orders the queues for a poll, because the first one gets the free room: by the highest
    /// priority in each, and round-robin among equals.
    fn rotate(&mut self) {
        if self.queues.len() > 1 {
            self.queues.rotate_left(1);
            self.queues.sort_by_key(|it| Reverse(it.requests.highest()));
        }
    }

    /// Removes a request, if it is still queued.
    fn remove(&mut self, (number, ticket): QueuePosition) {
        if let Some(it) = self.queues.iter_mut().find(|it| it.number == number) {
            it.requests.cancel(ticket);
        }
        self.queues.retain(|it| !it.requests.is_empty());
    }
}

fn nanos(moment: Moment) -> u64 {
    u64::try_from(moment.since_zero().as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use wornpath_routing::queue::{Priority, QueueEntry, Tenant};
    use wornpath_routing::{ProfileEnv, Request};

    fn enter(queues: &mut QueueSet<&'static str>, hold: &str, item: &'static str) -> QueuePosition {
        enter_at(queues, hold, item, Priority::NORMAL)
    }

    fn enter_at(
        queues: &mut QueueSet<&'static str>,
        hold: &str,
        item: &'static str,
        priority: Priority,
    ) -> QueuePosition {
        let text = format!("pick: max_score\n{hold}");
        let profile = Arc::new(Profile::check("p", &text, &ProfileEnv::default()).unwrap());
        let context = profile.context(Request::default());
        let held = HeldRequest { profile, context, again: Redecision::default(), item };
        let class = QueueEntry {
            tenant: Tenant(0),
            weight: 1,
            priority,
            cost: Duration::ZERO,
            deadline: Moment::from_secs(9),
        };
        queues.enter(Moment::ZERO, Hold { class, awaited: None }, held).unwrap().0
    }

    #[test]
    fn a_late_removal_does_not_remove_another_request() {
        let mut queues = QueueSet::default();
        let first = enter(&mut queues, "", "first");
        queues.remove(first);
        let second = enter(&mut queues, "", "second");
        assert_eq!(first.1, second.1, "tickets start again");
        queues.remove(first);
        assert_eq!(queues.queues[0].requests.len(), 1);
        queues.remove(second);
        assert!(queues.queues.is_empty());
    }

    #[test]
    fn queues_rotate_after_the_one_with_the_highest_priority() {
        let mut queues = QueueSet::default();
        let [one, other, third] = [8, 16, 32].map(|most| format!("hold: {{lookahead: {most}}}\n"));
        let offline = enter_at(&mut queues, &one, "offline", Priority::LOWEST).0;
        let first = enter(&mut queues, &other, "").0;
        let second = enter(&mut queues, &third, "").0;
        let turns: Vec<Vec<u64>> = (0..4)
            .map(|_| {
                queues.rotate();
                queues.queues.iter().map(|it| it.number).collect()
            })
            .collect();
        assert!(turns.iter().all(|turn| turn[2] == offline), "{turns:?}");
        let first_of = |number| turns.iter().filter(|turn| turn[0] == number).count();
        assert_eq!((first_of(first), first_of(second)), (2, 2), "{turns:?}");
        let urgent = enter_at(&mut queues, &one, "urgent", Priority::HIGHEST).0;
        queues.rotate();
        assert_eq!(queues.queues[0].number, urgent);
    }
}
