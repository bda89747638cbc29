//! A router's side of the exchange: its fleet in terms of updates.
//!
//! What others say is applied to the fleet and to the index as if this router had done it, so that no
//! decision has to know of it. Pods are known by their names.

use crate::outbox::Outbox;
use crate::peers::{Heard, Left, Peers, TenantChange};
use crate::report::{Origin, PodReport, RouterId, TenantReport};
use crate::sent_log::SentLog;
use crate::update::{SentBlocks, Update};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use wornpath_index::IndexWriter;
use wornpath_routing::{Candidate, Fleet, FleetPod, RoutingHistory, SentChain};
use wornpath_time::Moment;

/// A router's side of the exchange.
#[derive(Debug)]
pub struct Member {
    outbox: Outbox,
    peers: Peers,
    sent: Arc<SentLog>,
    by_name: HashMap<String, Candidate>,
}

/// Where the blocks go that a pod is expected to hold.
#[derive(Debug)]
pub struct Expected<'a> {
    /// The index.
    pub writer: &'a mut IndexWriter,
    /// The pods without events, if there are any.
    pub history: Option<&'a dyn RoutingHistory>,
    /// The time.
    pub now: Moment,
}

impl Member {
    /// A router that is called `origin` by the others. [`Member::follow`] gives it its fleet.
    #[must_use]
    pub fn new(origin: Origin) -> Self {
        Self {
            outbox: Outbox::new(origin),
            peers: Peers::new(origin.router),
            sent: Arc::default(),
            by_name: HashMap::new(),
        }
    }

    /// Who this router is.
    #[must_use]
    pub const fn origin(&self) -> Origin {
        self.outbox.origin()
    }

    /// The other routers that are known.
    pub fn routers(&self) -> impl ExactSizeIterator<Item = Origin> + '_ {
        self.peers.routers()
    }

    /// Where threads that decide note what they send.
    #[must_use]
    pub const fn sent_log(&self) -> &Arc<SentLog> {
        &self.sent
    }

    /// The fleet is another one from now on. The others may have load on its new pods.
    pub fn follow(&mut self, fleet: &Fleet) {
        let names = fleet.pods().iter().map(|pod| pod.facts().name.to_string());
        self.by_name = names.zip(fleet.candidates()).collect();
        for pod in fleet.pods() {
            pod.state().set_others_load(self.peers.load(pod.facts().name.as_str()));
        }
    }

    /// What has changed since the last call, if anything has. `tenants` are all with limits.
    pub fn changes<'a>(
        &mut self,
        fleet: &Fleet,
        tenants: impl Iterator<Item = (&'a str, TenantReport)>,
        now: Moment,
    ) -> Option<Update> {
        let report = |pod: &FleetPod| {
            let (computed_tokens, computed_pairs) = pod.state().own_computed();
            PodReport { load: pod.state().own_load(), computed_tokens, computed_pairs }
        };
        let sent = self.sent.take(fleet, now);
        let pods = fleet.pods().iter();
        let pods = pods.map(|pod| (pod.facts().name.as_str(), report(pod)));
        self.outbox.changes(pods, tenants, sent)
    }

    /// An update without changes.
    pub fn sign_of_life(&mut self) -> Update {
        self.outbox.sign_of_life()
    }

    /// All that it has said and that still holds.
    #[must_use]
    pub fn full(&self) -> Update {
        self.outbox.full()
    }

    /// Takes in what another router says. [`Member::apply`] makes it count.
    pub fn hear(&mut self, update: Update, now: Moment) -> Heard {
        self.peers.hear(update, now)
    }

    /// The last connection with a router has closed.
    pub fn disconnected(&mut self, router: RouterId, now: Moment) {
        self.peers.disconnected(router, now);
    }

    /// Forgets the routers that have been silent for long, and returns them. [`Member::apply`] makes
    /// it count.
    pub fn forget(&mut self, now: Moment) -> Vec<(Origin, Left)> {
        self.peers.forget(now)
    }

    /// Applies what was heard to the pods. What was heard of tenants is the caller's to apply.
    pub fn apply(&mut self, fleet: &Fleet, now: Moment) -> Vec<TenantChange> {
        for change in self.peers.take_pods() {
            let Some(pod) = self.by_name.get(&change.pod) else { continue };
            let pod_state = fleet[*pod].state();
            pod_state.set_others_load(change.load);
            if change.computed_tokens > 0 {
                pod_state.computed_for_others(change.computed_tokens, change.computed_pairs, now);
            }
        }
        self.peers.take_tenants()
    }

    /// A pod will hold the blocks of a prompt that another router has sent to it.
    pub fn expect(&self, fleet: &Fleet, sent: &SentBlocks, cache: Expected<'_>) {
        let Expected { writer, history, now } = cache;
        let Some(pod) = self.by_name.get(&sent.pod) else { return };
        let pod = fleet[*pod].id();
        let expires = now + Duration::from_millis(sent.lifetime_ms.into());
        let blocks = &sent.blocks;
        let block_tokens = sent.block_tokens as usize;
        let chain = SentChain { blocks, held: 0, block_tokens, expires };
        let is_whole = sent.parent.is_none();
        if is_whole && history.is_some_and(|history| history.sent(writer, pod, chain)) {
            return;
        }
        // It fails for a pod that was removed, or that does not hold the blocks before these.
        let _ = writer.insert_speculative_below(pod, sent.parent, blocks, expires);
    }
}
