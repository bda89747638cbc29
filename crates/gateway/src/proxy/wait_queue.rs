//! Where held requests wait, and who calls them.
//!
//! The queue itself is `routing`'s and knows no threads. Here it stands behind a lock, and every request
//! that waits has a channel by which its thread learns how the wait ended. It is polled when a request
//! ends, when one begins to wait, and by the ticker. Profiles that say the same of waiting share a queue,
//! and with it the turns of tenants.
//!
//! A poll decides everybody who waits, so with many who wait and many who end, threads would do nothing
//! else. After a poll there is a rest of several times what it took; whoever comes meanwhile rings, and
//! somebody polls a millisecond later if nobody did before.

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

/// How a wait ended, with the context that waited.
type QueueSignal = (RoutingContext, Dequeued);

type RoomGate = oneshot::Sender<QueueSignal>;

/// The rooms where somebody waits. One that is empty is forgotten, as another configuration may have other rules;
/// so tickets begin anew, and only with the room's number say who is meant.
#[derive(Debug)]
struct ModelQueues<T> {
    open: Vec<NumberedWaiter<T>>,
    last: u64,
}

#[derive(Debug)]
struct NumberedWaiter<T> {
    number: u64,
    rules: QueueRules,
    room: HeldRequests<T>,
}

impl<T> Default for ModelQueues<T> {
    fn default() -> Self {
        Self { open: Vec::new(), last: 0 }
    }
}

type WaiterGuard<'a> = MutexGuard<'a, ModelQueues<RoomGate>>;

/// How many times longer the rest is than the poll before it.
const REST: u32 = 24;
/// How late a poll may be at most, rest or not.
const LATEST: Duration = Duration::from_millis(1);

/// What decides waiting requests again: the clock, the limits and the fleet of a worker.
pub(crate) trait Decider {
    /// The time since the start.
    fn now(&self) -> Moment;

    /// Bytes of bodies that may wait.
    fn most_waiting_bytes(&self) -> usize;

    /// Calls `decide` with the fleet as it is, and tells the index what comes of it.
    fn decide_with(&self, now: Moment, decide: impl FnOnce(&mut DecisionEnv<'_>));
}

/// The waiting rooms and their door.
#[derive(Debug, Default)]
pub(crate) struct WaitRooms {
    rooms: Mutex<ModelQueues<RoomGate>>,
    /// Nanoseconds since the start until which polls rest.
    rests_until: AtomicU64,
    /// Rung by whoever did not poll because of that.
    bell: Notify,
    waiting: AtomicUsize,
    /// Of the bodies that wait.
    bytes: AtomicUsize,
}

/// Who waits.
pub(crate) struct Waiter<'a> {
    pub(crate) profile: &'a Arc<Profile>,
    pub(crate) context: RoutingContext,
    pub(crate) again: Redecision,
    /// Of its body.
    pub(crate) bytes: usize,
}

/// How a wait ended. The context is lost only with the gateway itself.
pub(crate) type Waited = (Option<RoutingContext>, Result<RoutingPlan, Rejection>);

/// The number of a room, and a ticket there.
type WaiterPosition = (u64, Ticket);

/// Takes the request out when its wait is over, or if its client goes before.
struct WaitEnd<'a> {
    wait_queue: &'a WaitRooms,
    place: Option<WaiterPosition>,
    bytes: usize,
}

impl Drop for WaitEnd<'_> {
    fn drop(&mut self) {
        self.wait_queue.bytes.fetch_sub(self.bytes, Relaxed);
        let Some(place) = self.place else { return };
        let mut rooms = self.wait_queue.lock();
        rooms.leave(place);
        self.wait_queue.count(&rooms);
    }
}

impl WaitRooms {
    /// How many wait.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.load(Relaxed)
    }

    /// Waits until a pod has room, or until it is too late.
    pub(crate) async fn wait(
        &self,
        worker: &impl Decider,
        hold: Hold,
        waiter: Waiter<'_>,
    ) -> Waited {
        let Waiter { profile, context, again, bytes } = waiter;
        let busy = |why| Rejection::busy(why);
        let most = worker.most_waiting_bytes();
        let before = self.bytes.fetch_add(bytes, Relaxed);
        let mut leave = WaitEnd { wait_queue: self, place: None, bytes };
        if before + bytes > most {
            let why = "wait queue full: buffered bodies exceed `limits.waiting`; every pod is busy";
            return (Some(context), Err(busy(why)));
        }
        let (sender, news) = oneshot::channel();
        let held = HeldRequest { profile: Arc::clone(profile), context, again, item: sender };
        let full = || busy("wait queue full: too many requests wait; every pod is busy");
        let (place, displaced) = match self.push(worker, hold, held) {
            Ok(pushed) => pushed,
            Err(context) => return (Some(*context), Err(full())),
        };
        leave.place = Some(place);
        if let Some(displaced) = displaced {
            let _ = displaced.item.send((displaced.context, Dequeued::Reject(full())));
        }
        // Room may have come between the decision and now, and nobody would tell.
        self.poll(worker);
        match news.await {
            Ok((context, Dequeued::Plan(plan))) => (Some(context), Ok(plan)),
            Ok((context, Dequeued::Reject(rejection))) => (Some(context), Err(rejection)),
            Err(_) => (None, Err(Rejection::unavailable("the gateway is shutting down"))),
        }
    }

    /// Into the room of its profile's rules, where somebody else may have to go for it; gives the context back
    /// if that is full.
    fn push(
        &self,
        worker: &impl Decider,
        hold: Hold,
        held: HeldRequest<RoomGate>,
    ) -> Result<(WaiterPosition, Option<HeldRequest<RoomGate>>), Box<RoutingContext>> {
        let mut rooms = self.lock();
        let entered = rooms.enter(worker.now(), hold, held);
        self.count(&rooms);
        entered
    }

    /// Decides those who wait again, now or soon. Costs one load if nobody does.
    pub(crate) fn poll(&self, worker: &impl Decider) {
        if self.waiting() == 0 {
            return;
        }
        let now = worker.now();
        if nanos(now) < self.rests_until.load(Relaxed) {
            self.bell.notify_one();
            return;
        }
        match self.rooms.try_lock() {
            Ok(rooms) => self.decide_all(worker, now, rooms),
            Err(TryLockError::Poisoned(rooms)) => self.decide_all(worker, now, rooms.into_inner()),
            // Who polls now may have seen what has changed, or not.
            Err(TryLockError::WouldBlock) => self.bell.notify_one(),
        }
    }

    /// Polls for those who did not, for as long as it is polled.
    pub(crate) async fn answer_bell(&self, worker: &impl Decider) -> Infallible {
        loop {
            self.bell.notified().await;
            tokio::time::sleep(LATEST).await;
            self.decide_all(worker, worker.now(), self.lock());
        }
    }

    fn decide_all(&self, worker: &impl Decider, now: Moment, mut rooms: WaiterGuard<'_>) {
        let mut settled = Vec::new();
        rooms.spend_coop_budgets();
        worker.decide_with(now, |world| {
            rooms.open.iter_mut().for_each(|it| it.room.poll(world, &mut settled));
        });
        self.count(&rooms);
        let ended = worker.now();
        let rest = ended.saturating_sub(now) * REST;
        self.rests_until.store(nanos(ended + rest.min(LATEST)), Relaxed);
        drop(rooms);
        for (held, how) in settled {
            // If the client has gone, the plan comes back with the message and gives back its load.
            let _ = held.item.send((held.context, how));
        }
    }

    fn count(&self, rooms: &ModelQueues<RoomGate>) {
        self.waiting.store(rooms.open.iter().map(|it| it.room.len()).sum(), Relaxed);
    }

    fn lock(&self) -> WaiterGuard<'_> {
        self.rooms.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> ModelQueues<T> {
    fn enter(
        &mut self,
        now: Moment,
        hold: Hold,
        held: HeldRequest<T>,
    ) -> Result<(WaiterPosition, Option<HeldRequest<T>>), Box<RoutingContext>> {
        let rules = held.profile.queue_rules();
        let at = match self.open.iter().position(|it| it.rules == rules) {
            Some(at) => at,
            None => {
                // A profile whose rules make no sense was refused.
                let Ok(room) = HeldRequests::new(rules) else {
                    return Err(Box::new(held.context));
                };
                self.last += 1;
                self.open.push(NumberedWaiter { number: self.last, rules, room });
                self.open.len() - 1
            }
        };
        let NumberedWaiter { number, room, .. } = &mut self.open[at];
        let Enqueued { ticket, displaced } =
            room.hold(now, hold.class, held).map_err(|full| Box::new(full.item.context))?;
        Ok(((*number, ticket), displaced))
    }

    /// Whoever is decided first gets what has become free: the room where the highest priority waits, and of several
    /// each in its turn.
    fn spend_coop_budgets(&mut self) {
        if self.open.len() > 1 {
            self.open.rotate_left(1);
            self.open.sort_by_key(|it| Reverse(it.room.highest()));
        }
    }

    /// Takes a request out, if it still waits.
    fn leave(&mut self, (number, ticket): WaiterPosition) {
        if let Some(it) = self.open.iter_mut().find(|it| it.number == number) {
            it.room.cancel(ticket);
        }
        self.open.retain(|it| !it.room.is_empty());
    }
}

fn nanos(moment: Moment) -> u64 {
    u64::try_from(moment.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use wornpath_routing::queue::{Priority, QueueEntry, Tenant};
    use wornpath_routing::{ProfileEnv, Request};

    fn enter(
        rooms: &mut ModelQueues<&'static str>,
        hold: &str,
        item: &'static str,
    ) -> WaiterPosition {
        enter_at(rooms, hold, item, Priority::NORMAL)
    }

    fn enter_at(
        rooms: &mut ModelQueues<&'static str>,
        hold: &str,
        item: &'static str,
        priority: Priority,
    ) -> WaiterPosition {
        let text = format!("pick: max_score\n{hold}");
        let profile = Arc::new(Profile::check("p", &text, &ProfileEnv::default()).unwrap());
        let context = profile.context(Request::default());
        let held = HeldRequest { profile, context, again: Redecision::default(), item };
        let (weight, deadline) = (1, Duration::from_secs(9));
        let (tenant, cost) = (Tenant(0), Duration::ZERO);
        let class = QueueEntry { tenant, weight, priority, cost, deadline };
        rooms.enter(Duration::ZERO, Hold { class }, held).unwrap().0
    }

    #[test]
    fn who_leaves_late_takes_nobody_else_out() {
        let mut rooms = ModelQueues::default();
        let first = enter(&mut rooms, "", "first");
        rooms.leave(first);
        let second = enter(&mut rooms, "", "second");
        assert_eq!(first.1, second.1, "tickets begin anew");
        rooms.leave(first);
        assert_eq!(rooms.open[0].room.len(), 1);
        rooms.leave(second);
        assert!(rooms.open.is_empty());
    }

    #[test]
    fn rooms_spend_coop_budgets_after_the_one_where_the_highest_priority_waits() {
        let mut rooms = ModelQueues::default();
        let [one, other, third] = [8, 16, 32].map(|most| format!("hold: {{lookahead: {most}}}\n"));
        let offline = enter_at(&mut rooms, &one, "offline", Priority::LOWEST).0;
        let (first, second) = (enter(&mut rooms, &other, "").0, enter(&mut rooms, &third, "").0);
        let turns: Vec<Vec<u64>> = (0..4)
            .map(|_| {
                rooms.spend_coop_budgets();
                rooms.open.iter().map(|it| it.number).collect()
            })
            .collect();
        assert!(turns.iter().all(|turn| turn[2] == offline), "{turns:?}");
        let begun = |number| turns.iter().filter(|turn| turn[0] == number).count();
        assert_eq!((begun(first), begun(second)), (2, 2), "{turns:?}");
        let urgent = enter_at(&mut rooms, &one, "urgent", Priority::HIGHEST).0;
        rooms.spend_coop_budgets();
        assert_eq!(rooms.open[0].number, urgent);
    }
}
