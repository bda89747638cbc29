//! Where held requests wait, and who calls them.
//!
//! The queue itself is `routing`'s and knows no threads. Here it stands behind a lock, and every request
//! that waits has a channel by which its thread learns how the wait ended. It is polled when a request
//! ends, when one begins to wait, and by the ticker. Profiles that say the same of waiting share a queue,
//! and with it the turns of tenants.

use crate::desk::Worker;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::oneshot;
use wornpath_routing::queue::{Again, Held, Pushed, QueueRules, Settled, Ticket, WaitingRoom};
use wornpath_routing::{Hold, Profile, Rejection, RoutingContext, RoutingPlan};

/// How a wait ended, with the context that waited.
type News = (RoutingContext, Settled);

type Room = WaitingRoom<oneshot::Sender<News>>;

/// The waiting rooms and their door.
#[derive(Debug, Default)]
pub(crate) struct Lobby {
    rooms: Mutex<Vec<(QueueRules, Room)>>,
    waiting: AtomicUsize,
    /// Of the bodies that wait.
    bytes: AtomicUsize,
}

/// Who waits.
pub(crate) struct Waiter<'a> {
    pub(crate) profile: &'a Arc<Profile>,
    pub(crate) context: RoutingContext,
    pub(crate) again: Again,
    /// Of its body.
    pub(crate) bytes: usize,
}

/// How a wait ended. The context is lost only with the gateway itself.
pub(crate) type Waited = (Option<RoutingContext>, Result<RoutingPlan, Rejection>);

/// Takes the request out when its wait is over, or if its client goes before.
struct Leave<'a> {
    lobby: &'a Lobby,
    place: Option<(QueueRules, Ticket)>,
    bytes: usize,
}

impl Drop for Leave<'_> {
    fn drop(&mut self) {
        self.lobby.bytes.fetch_sub(self.bytes, Relaxed);
        let Some((rules, ticket)) = self.place else { return };
        let mut rooms = self.lobby.lock();
        if let Some((_, room)) = rooms.iter_mut().find(|(known, _)| *known == rules) {
            room.cancel(ticket);
        }
        // Another configuration may have other rules: what nobody waits by is forgotten.
        rooms.retain(|(_, room)| !room.is_empty());
        self.lobby.count(&rooms);
    }
}

impl Lobby {
    /// How many wait.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.load(Relaxed)
    }

    /// Waits until a pod has room, or until it is too late.
    pub(crate) async fn wait(&self, worker: &Worker, hold: Hold, waiter: Waiter<'_>) -> Waited {
        let Waiter { profile, context, again, bytes } = waiter;
        let busy = |why| Rejection::busy(why);
        let most = worker.gateway.settings().limits.waiting_bytes;
        let before = self.bytes.fetch_add(bytes, Relaxed);
        let mut leave = Leave { lobby: self, place: None, bytes };
        if before + bytes > most {
            let why = "the requests that wait have as many bytes as they may; every pod is busy";
            return (Some(context), Err(busy(why)));
        }
        let (sender, news) = oneshot::channel();
        let held = Held { profile: Arc::clone(profile), context, again, item: sender };
        let full = || busy("as many requests wait as may; every pod is busy");
        let pushed = match self.push(worker, hold, held) {
            Ok(pushed) => pushed,
            Err(context) => return (Some(*context), Err(full())),
        };
        leave.place = Some((profile.queue_rules(), pushed.ticket));
        if let Some(displaced) = pushed.displaced {
            let _ = displaced.item.send((displaced.context, Settled::Reject(full())));
        }
        // Room may have come between the decision and now, and nobody would tell.
        self.poll(worker);
        match news.await {
            Ok((context, Settled::Plan(plan))) => (Some(context), Ok(plan)),
            Ok((context, Settled::Reject(rejection))) => (Some(context), Err(rejection)),
            Err(_) => (None, Err(Rejection::unavailable("the waiting room was closed"))),
        }
    }

    /// Into the room of its profile's rules; gives the context back if that is full.
    fn push(
        &self,
        worker: &Worker,
        hold: Hold,
        held: Held<oneshot::Sender<News>>,
    ) -> Result<Pushed<Held<oneshot::Sender<News>>>, Box<RoutingContext>> {
        let rules = held.profile.queue_rules();
        let mut rooms = self.lock();
        let at = match rooms.iter().position(|(known, _)| *known == rules) {
            Some(at) => at,
            None => {
                // A profile whose rules make no sense was refused.
                let Ok(room) = WaitingRoom::new(rules) else {
                    return Err(Box::new(held.context));
                };
                rooms.push((rules, room));
                rooms.len() - 1
            }
        };
        let pushed = rooms[at].1.hold(worker.gateway.now(), hold.class, held);
        self.count(&rooms);
        pushed.map_err(|full| Box::new(full.item.context))
    }

    /// Decides those who wait again. Costs one load if nobody does.
    pub(crate) fn poll(&self, worker: &Worker) {
        if self.waiting() == 0 {
            return;
        }
        let mut settled = Vec::new();
        {
            let (mut rooms, roster) = (self.lock(), worker.gateway.roster());
            worker.with_world(&roster, worker.gateway.now(), |world| {
                rooms.iter_mut().for_each(|(_, room)| room.poll(world, &mut settled));
            });
            self.count(&rooms);
        }
        for (held, how) in settled {
            // If the client has gone, the plan comes back with the message and gives back its load.
            let _ = held.item.send((held.context, how));
        }
    }

    fn count(&self, rooms: &[(QueueRules, Room)]) {
        self.waiting.store(rooms.iter().map(|(_, room)| room.len()).sum(), Relaxed);
    }

    fn lock(&self) -> MutexGuard<'_, Vec<(QueueRules, Room)>> {
        self.rooms.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
