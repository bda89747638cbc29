//! Where held requests wait, and who calls them.
//!
//! The queue itself is `routing`'s and knows no threads. Here it stands behind a lock, and every request
//! that waits has a channel by which its thread learns how the wait ended. It is polled when a request
//! ends, when one begins to wait, and by the ticker.

use crate::desk::Worker;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::oneshot;
use wornpath_routing::queue::{Held, QueueRules, QueueRulesError, Settled, Ticket, WaitingRoom};
use wornpath_routing::{Hold, Profile, Rejection, RoutingContext, RoutingPlan};

/// How a wait ended, with the context that waited.
type News = (RoutingContext, Settled);

/// The waiting room and its door.
#[derive(Debug)]
pub(crate) struct Lobby {
    room: Mutex<WaitingRoom<oneshot::Sender<News>>>,
    waiting: AtomicUsize,
}

/// Takes the request out if its client goes while it waits.
struct Leave<'a> {
    lobby: &'a Lobby,
    ticket: Ticket,
}

impl Drop for Leave<'_> {
    fn drop(&mut self) {
        let mut room = self.lobby.lock();
        room.cancel(self.ticket);
        self.lobby.waiting.store(room.len(), Relaxed);
    }
}

impl Lobby {
    pub(crate) fn new(rules: QueueRules) -> Result<Self, QueueRulesError> {
        Ok(Self { room: Mutex::new(WaitingRoom::new(rules)?), waiting: AtomicUsize::new(0) })
    }

    /// How many wait.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.load(Relaxed)
    }

    /// Waits until a pod has room, or until it is too late.
    pub(crate) async fn wait(
        &self,
        worker: &Worker,
        hold: Hold,
        profile: &Arc<Profile>,
        context: RoutingContext,
    ) -> Result<(RoutingContext, RoutingPlan), Rejection> {
        let (sender, news) = oneshot::channel();
        let held = Held { profile: Arc::clone(profile), context, item: sender };
        let pushed = {
            let mut room = self.lock();
            let pushed = room.hold(worker.gateway.now(), hold.class, held);
            self.waiting.store(room.len(), Relaxed);
            pushed
        };
        let busy = || Rejection::busy("as many requests wait as may; every pod is busy");
        let pushed = pushed.map_err(|_full| busy())?;
        if let Some(displaced) = pushed.displaced {
            let _ = displaced.item.send((displaced.context, Settled::Reject(busy())));
        }
        let _leave = Leave { lobby: self, ticket: pushed.ticket };
        // Room may have come between the decision and now, and nobody would tell.
        self.poll(worker);
        match news.await {
            Ok((context, Settled::Plan(plan))) => Ok((context, plan)),
            Ok((_, Settled::Reject(rejection))) => Err(rejection),
            Err(_) => Err(Rejection::unavailable("the waiting room was closed")),
        }
    }

    /// Decides those who wait again. Costs one load if nobody does.
    pub(crate) fn poll(&self, worker: &Worker) {
        if self.waiting() == 0 {
            return;
        }
        let mut settled = Vec::new();
        {
            let (mut room, roster) = (self.lock(), worker.gateway.roster());
            worker.with_world(&roster, worker.gateway.now(), |world| {
                room.poll(world, &mut settled);
            });
            self.waiting.store(room.len(), Relaxed);
        }
        for (held, how) in settled {
            // If the client has gone, the plan comes back with the message and gives back its load.
            let _ = held.item.send((held.context, how));
        }
    }

    fn lock(&self) -> MutexGuard<'_, WaitingRoom<oneshot::Sender<News>>> {
        self.room.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
