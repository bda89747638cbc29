//! Peer routers: what other routers of the same pods say, applied to the fleet, and what this one
//! tells them.
//!
//! Every router puts load on the pods, and sends prompts whose blocks no engine has reported yet.
//! Decisions see both as if this router had done it: load is added to that of the pod
//! ([`wornpath_routing::PodState::set_others_load`]), and prompts enter the index as speculative
//! blocks. Pods are known by their names, so routers must give them the same ones, which they do by
//! default: the address.

use crate::fleet::routing_history::{ApproximateHistory, SharedHistory};
use crate::fleet::snapshot::FleetSnapshot;
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::broadcast;
use wornpath_exchange::{
    Expected, Heard, Left, Member, Origin, RouterId, SentLog, TenantChange, TenantReport, Update,
};
use wornpath_index::{Index, IndexWriter, Moment};
use wornpath_routing::{Name, RoutingHistory};

/// Time between two words of a router that has nothing to say.
const SIGN_OF_LIFE: Duration = Duration::from_millis(500);
/// Updates that a slow connection may be behind before it gets the whole state instead.
const MAX_BEHIND: usize = 64;

/// The other routers, and what this one has told them.
#[derive(Debug)]
pub(crate) struct PeerRouters {
    exchange: Mutex<Exchange>,
    updates: broadcast::Sender<Arc<[u8]>>,
    sent: Arc<SentLog>,
    known: AtomicUsize,
}

/// What a connection sends: the whole state, and then the updates.
pub(crate) struct Subscription {
    pub(crate) full: Vec<u8>,
    pub(crate) updates: broadcast::Receiver<Arc<[u8]>>,
}

/// Whether two routers compute the same hashes of the same blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum BlockHashes {
    /// What one sends, the other can look up.
    Same,
    /// Prompts of the other mean nothing.
    Different,
}

struct Exchange {
    member: Member,
    writer: IndexWriter,
    history: ApproximateHistory,
    /// Open connections by router.
    connections: HashMap<RouterId, usize>,
    /// When this router said something last.
    said: Moment,
    fleet: Arc<FleetSnapshot>,
}

impl std::fmt::Debug for Exchange {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Exchange").field("member", &self.member).finish_non_exhaustive()
    }
}

impl PeerRouters {
    /// Of a router that is called `origin` by the others.
    pub(crate) fn new(origin: Origin, index: &Index, history: ApproximateHistory) -> Self {
        let exchange = Exchange {
            member: Member::new(origin),
            writer: index.writer(),
            history,
            connections: HashMap::new(),
            said: Moment::ZERO,
            fleet: Arc::default(),
        };
        Self {
            sent: Arc::clone(exchange.member.sent_log()),
            exchange: Mutex::new(exchange),
            updates: broadcast::Sender::new(MAX_BEHIND),
            known: AtomicUsize::new(0),
        }
    }

    /// Who this router is.
    pub(crate) fn origin(&self) -> Origin {
        self.exchange().member.origin()
    }

    /// How many other routers are heard from.
    pub(crate) fn known(&self) -> usize {
        self.known.load(Relaxed)
    }

    /// The record of sent prompts for a worker.
    pub(crate) fn history(&self) -> SharedHistory {
        SharedHistory::new(self.exchange().history.clone(), Arc::clone(&self.sent))
    }

    /// Tells the others what has changed, and forgets those that are gone. To be called every few
    /// milliseconds.
    pub(crate) fn tick(
        &self,
        fleet: Arc<FleetSnapshot>,
        tenants: &[(Name, TenantReport)],
        now: Moment,
    ) -> Vec<TenantChange> {
        let mut exchange = self.exchange();
        exchange.follow(fleet);
        for (origin, left) in exchange.member.forget(now) {
            let reason = match left {
                Left::Silent => "silent",
                Left::Disconnected => "connection closed",
            };
            tracing::info!(router = %origin.router, reason, "router left");
        }
        self.known.store(exchange.member.routers().len(), Relaxed);
        if self.updates.receiver_count() > 0 {
            self.tell(&mut exchange, tenants, now);
        }
        let Exchange { member, fleet, .. } = &mut *exchange;
        member.apply(fleet.fleet(), now)
    }

    fn tell(&self, exchange: &mut Exchange, tenants: &[(Name, TenantReport)], now: Moment) {
        let update = exchange.changes(tenants, now).or_else(|| {
            let is_due = now.since(exchange.said) >= SIGN_OF_LIFE;
            is_due.then(|| exchange.member.sign_of_life())
        });
        if let Some(update) = update {
            exchange.said = now;
            // It fails once no receiver is left.
            let _ = self.updates.send(update.encode().into());
        }
    }

    /// The state now, and all updates after it.
    pub(crate) fn subscribe(
        &self,
        fleet: Arc<FleetSnapshot>,
        tenants: &[(Name, TenantReport)],
        now: Moment,
    ) -> Subscription {
        let mut exchange = self.exchange();
        exchange.follow(fleet);
        self.tell(&mut exchange, tenants, now);
        self.sent.begin();
        let updates = self.updates.subscribe();
        Subscription { full: exchange.member.full().encode(), updates }
    }

    /// A connection with a router is open.
    pub(crate) fn connected(&self, router: RouterId) {
        *self.exchange().connections.entry(router).or_default() += 1;
    }

    /// A connection with a router has closed.
    pub(crate) fn disconnected(&self, router: RouterId, now: Moment) {
        let mut exchange = self.exchange();
        let Some(open) = exchange.connections.get_mut(&router) else { return };
        *open -= 1;
        if *open == 0 {
            exchange.connections.remove(&router);
            exchange.member.disconnected(router, now);
        }
        if exchange.connections.is_empty() {
            self.sent.end();
        }
    }

    /// Applies what another router says.
    pub(crate) fn hear(
        &self,
        fleet: Arc<FleetSnapshot>,
        update: Update,
        hashes: BlockHashes,
        now: Moment,
    ) -> Vec<TenantChange> {
        let router = update.origin.router;
        let mut exchange = self.exchange();
        exchange.follow(fleet);
        let sent = match exchange.member.hear(update, now) {
            Heard::Own | Heard::Ignored => return Vec::new(),
            Heard::Known(sent) => sent,
            Heard::Joined(sent) => {
                let reason = match hashes {
                    BlockHashes::Same => "connected",
                    BlockHashes::Different => {
                        "connected; its block hashes differ: give all routers the same \
                         `isolation.secret_file`"
                    }
                };
                tracing::info!(%router, reason, "router joined");
                sent
            }
        };
        self.known.store(exchange.member.routers().len(), Relaxed);
        let Exchange { member, fleet, writer, history, .. } = &mut *exchange;
        for sent in sent.iter().filter(|_| hashes == BlockHashes::Same) {
            let history: Option<&dyn RoutingHistory> = Some(history);
            member.expect(fleet.fleet(), sent, Expected { writer, history, now });
        }
        member.apply(fleet.fleet(), now)
    }
}

impl PeerRouters {
    fn exchange(&self) -> MutexGuard<'_, Exchange> {
        self.exchange.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Exchange {
    /// Takes over another snapshot of the fleet.
    fn follow(&mut self, fleet: Arc<FleetSnapshot>) {
        if !Arc::ptr_eq(&fleet, &self.fleet) {
            self.member.follow(fleet.fleet());
            self.fleet = fleet;
        }
    }

    fn changes(&mut self, tenants: &[(Name, TenantReport)], now: Moment) -> Option<Update> {
        let tenants = tenants.iter().map(|(name, report)| (name.as_str(), *report));
        self.member.changes(self.fleet.fleet(), tenants, now)
    }
}
