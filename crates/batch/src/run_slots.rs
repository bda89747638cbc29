//! Slots of running batches, shared fairly by tenants.
//!
//! A free slot goes to the tenant that has the fewest, so no tenant waits behind the queue of
//! another. Batches run for hours, so that alone would let the first four keep all slots: a batch
//! that has had its slot for a turn gives it up if a tenant waits that has none. It sends nothing
//! more then, and queues again when its last responses have come. As many batches can be in that
//! state as there are slots; further ones keep theirs until then.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::oneshot;
use wornpath_index::Moment;

/// How long a batch keeps its slot while a tenant without one waits, at least: a batch that goes on
/// later reads its input again.
pub(crate) const TURN: Duration = Duration::from_secs(20);

/// A number of slots.
pub(crate) struct RunSlots {
    count: usize,
    state: Mutex<SlotState>,
}

#[derive(Default)]
struct SlotState {
    next: u64,
    running: Vec<SlotHolder>,
    /// Batches that gave their slots up and wait for their last responses.
    draining: Vec<u64>,
    /// First come first.
    waiting: Vec<SlotWaiter>,
}

struct SlotHolder {
    ticket: u64,
    owner: String,
    /// When it got the slot; none until its task has noticed.
    since: Option<Moment>,
}

struct SlotWaiter {
    ticket: u64,
    owner: String,
    granted: oneshot::Sender<()>,
}

/// A slot, or a place in the queue; given up when dropped.
pub(crate) struct RunSlot {
    slots: Arc<RunSlots>,
    ticket: u64,
}

impl SlotState {
    fn held_by(&self, owner: &str) -> usize {
        self.running.iter().filter(|holder| holder.owner == owner).count()
    }

    /// Gives free slots to the waiting tenants that have the fewest.
    fn grant(&mut self, count: usize) {
        while self.running.len() < count {
            let fewest = |at: &usize| self.held_by(&self.waiting[*at].owner);
            let Some(at) = (0..self.waiting.len()).min_by_key(fewest) else { return };
            let SlotWaiter { ticket, owner, granted } = self.waiting.remove(at);
            // A task that was dropped meanwhile gives its place up itself.
            if granted.send(()).is_ok() {
                self.running.push(SlotHolder { ticket, owner, since: None });
            }
        }
    }

    /// The holders that give their slots up at `now`: one for each waiting tenant without a slot,
    /// of the tenants with the most slots, the longest first.
    fn outgoing(&self, now: Moment) -> Vec<u64> {
        let mut without: Vec<&str> = self.waiting.iter().map(|waiter| &*waiter.owner).collect();
        without.sort_unstable();
        without.dedup();
        without.retain(|owner| self.held_by(owner) == 0);
        let is_due =
            |holder: &&SlotHolder| holder.since.is_some_and(|since| now.since(since) >= TURN);
        let mut due: Vec<_> = self.running.iter().filter(is_due).collect();
        due.sort_by_key(|holder| {
            (std::cmp::Reverse(self.held_by(&holder.owner)), holder.since, holder.ticket)
        });
        due.iter().take(without.len()).map(|holder| holder.ticket).collect()
    }
}

impl RunSlots {
    pub(crate) fn new(count: usize) -> Arc<Self> {
        Arc::new(Self { count, state: Mutex::default() })
    }

    /// Number of slots that are held.
    pub(crate) fn held(&self) -> usize {
        self.state().running.len()
    }

    /// Waits for a slot. `now` tells the time when it is granted.
    pub(crate) async fn acquire(
        self: &Arc<Self>,
        owner: &str,
        now: impl Fn() -> Moment,
    ) -> RunSlot {
        let (granted, grant) = oneshot::channel();
        let slot = {
            let mut state = self.state();
            let ticket = state.next;
            state.next += 1;
            state.waiting.push(SlotWaiter { ticket, owner: owner.to_owned(), granted });
            state.grant(self.count);
            RunSlot { slots: Arc::clone(self), ticket }
        };
        // The sender is dropped only with the slots, which the slot keeps.
        let _ = grant.await;
        let mut state = self.state();
        if let Some(holder) = state.running.iter_mut().find(|it| it.ticket == slot.ticket) {
            holder.since = Some(now());
        }
        drop(state);
        slot
    }

    fn state(&self) -> MutexGuard<'_, SlotState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl RunSlot {
    /// Whether another tenant needs the slot, or has it already.
    pub(crate) fn is_wanted(&self, now: Moment) -> bool {
        let state = self.slots.state();
        state.draining.contains(&self.ticket) || state.outgoing(now).contains(&self.ticket)
    }

    /// Gives the slot up while the last responses of its batch are awaited.
    pub(crate) fn drain(&self) {
        let mut state = self.slots.state();
        if state.draining.len() < self.slots.count {
            state.running.retain(|holder| holder.ticket != self.ticket);
            state.draining.push(self.ticket);
            state.grant(self.slots.count);
        }
    }
}

impl Drop for RunSlot {
    fn drop(&mut self) {
        let mut state = self.slots.state();
        state.draining.retain(|ticket| *ticket != self.ticket);
        state.running.retain(|holder| holder.ticket != self.ticket);
        state.waiting.retain(|waiter| waiter.ticket != self.ticket);
        state.grant(self.slots.count);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;
    use tokio::task::JoinHandle;

    const NOW: Moment = Moment::from_secs(1_000);

    fn queued(slots: &Arc<RunSlots>, owner: &'static str) -> JoinHandle<RunSlot> {
        let slots = Arc::clone(slots);
        tokio::spawn(async move { slots.acquire(owner, || NOW).await })
    }

    fn held(slots: &RunSlots) -> BTreeMap<String, usize> {
        let mut held = BTreeMap::new();
        for holder in &slots.state().running {
            *held.entry(holder.owner.clone()).or_default() += 1;
        }
        held
    }

    async fn settled() {
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn a_free_slot_goes_to_the_tenant_that_has_the_fewest() {
        let slots = RunSlots::new(2);
        let first = slots.acquire("a", || NOW).await;
        let _second = slots.acquire("a", || NOW).await;
        let mut waiting = Vec::new();
        for owner in ["a", "a", "b", "a"] {
            waiting.push(queued(&slots, owner));
            settled().await;
        }
        drop(first);
        settled().await;
        assert_eq!(held(&slots), BTreeMap::from([("a".into(), 1), ("b".into(), 1)]));
    }

    #[tokio::test]
    async fn a_batch_gives_its_slot_up_after_a_turn_if_a_tenant_without_one_waits() {
        let slots = RunSlots::new(3);
        let own: Vec<_> =
            [slots.acquire("a", || NOW).await, slots.acquire("a", || NOW).await].into();
        let other = slots.acquire("b", || NOW).await;
        let wanted = |now| own.iter().filter(|slot| slot.is_wanted(now)).count();
        let _more = queued(&slots, "a");
        settled().await;
        assert_eq!(wanted(NOW + 2 * TURN), 0, "its own tenant waits");
        let waiting = queued(&slots, "c");
        settled().await;
        assert_eq!(wanted(NOW + TURN - Duration::from_secs(1)), 0, "its turn is not over");
        assert_eq!(wanted(NOW + TURN), 1);
        assert!(!other.is_wanted(NOW + TURN), "`a` has more");
        let at = own.iter().position(|slot| slot.is_wanted(NOW + TURN)).unwrap();
        own[at].drain();
        settled().await;
        assert!(held(&slots).contains_key("c"), "{:?}", held(&slots));
        assert!(waiting.is_finished());
        assert!(own[at].is_wanted(NOW), "its batch must queue again");
        assert_eq!(slots.held(), 3);
        drop(own);
        settled().await;
        assert!(slots.state().draining.is_empty());
    }

    #[tokio::test]
    async fn a_task_that_stops_waiting_takes_no_slot_with_it() {
        let slots = RunSlots::new(1);
        let first = slots.acquire("a", || NOW).await;
        let gone = queued(&slots, "b");
        settled().await;
        gone.abort();
        settled().await;
        drop(first);
        assert_eq!(slots.held(), 0);
        let _next = slots.acquire("c", || NOW).await;
        assert_eq!(slots.held(), 1);
    }
}
