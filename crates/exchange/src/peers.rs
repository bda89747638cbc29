//! What other routers have said, merged, and what it adds up to.
//!
//! Each thing that a router says has the number of its update as a version, and the highest version
//! counts. A full update raises the lowest version that counts: what it does not name is gone. So it
//! does not matter in which order updates arrive, or how often.

use crate::report::{Origin, PodReport, RouterId, TenantReport};
use crate::update::{Scope, SentBlocks, Update};
use std::collections::{BTreeMap, HashMap};
use std::time::Duration;
use wornpath_routing::RouterLoad;
use wornpath_time::Moment;

/// A router that has said nothing for this long is forgotten.
pub const FORGOTTEN_AFTER: Duration = Duration::from_secs(2);
/// The same for one whose last connection has closed.
pub const LOST_AFTER: Duration = Duration::from_millis(500);
/// Names that one router may use; a pod or tenant beyond them is ignored.
const MAX_NAMES: usize = 16 << 10;
/// Routers that are listened to.
const MAX_ROUTERS: usize = 256;

/// What other routers have said.
#[derive(Debug)]
pub struct Peers {
    own: RouterId,
    routers: BTreeMap<RouterId, Peer>,
    changed_pods: HashMap<String, Computed>,
    changed_tenants: HashMap<String, TenantUse>,
}

/// What became of an update.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Heard {
    /// It came from this router itself.
    Own,
    /// It is of an earlier run of its router, or one router too many.
    Ignored,
    /// It is of a router that was unknown, or has restarted. These prompts are new.
    Joined(Vec<SentBlocks>),
    /// It is of a router that was known. These prompts are new.
    Known(Vec<SentBlocks>),
}

/// Why a router was forgotten.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Left {
    /// It said nothing for [`FORGOTTEN_AFTER`].
    Silent,
    /// Its last connection closed, and it did not come back within [`LOST_AFTER`].
    Disconnected,
}

/// The load that all other routers put on a pod.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PodChange {
    /// The pod's name.
    pub pod: String,
    /// The load of all other routers.
    pub load: RouterLoad,
    /// Prompt tokens that the pod has computed for them since the change before.
    pub computed_tokens: u64,
    /// Twice the pairs that these attended to.
    pub computed_pairs: u64,
}

/// What all other routers use of a tenant's limits.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TenantChange {
    /// The tenant's name.
    pub tenant: String,
    /// Requests in flight.
    pub in_flight: u32,
    /// Requests that they admitted since the change before.
    pub requests: u64,
    /// Tokens that they took since the change before; below zero if they gave back more.
    pub tokens: i64,
    /// No more requests are left this minute, if a router is heard of for the first time.
    pub requests_left: Option<i64>,
    /// The same for tokens.
    pub tokens_left: Option<i64>,
}

#[derive(Debug)]
struct Peer {
    origin: Origin,
    heard: Moment,
    /// When its last connection closed.
    lost: Option<Moment>,
    /// Updates of changes up to this one are in a full update that was heard.
    floor: u64,
    pods: HashMap<String, Versioned<PodReport>>,
    tenants: HashMap<String, Versioned<TenantReport>>,
}

#[derive(Clone, Copy, Debug)]
struct Versioned<T> {
    version: u64,
    value: T,
}

#[derive(Clone, Copy, Debug, Default)]
struct Computed {
    tokens: u64,
    pairs: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct TenantUse {
    requests: u64,
    tokens: i64,
    requests_left: Option<i64>,
    tokens_left: Option<i64>,
}

impl Peers {
    /// Of a router that has heard nothing.
    #[must_use]
    pub fn new(own: RouterId) -> Self {
        Self {
            own,
            routers: BTreeMap::new(),
            changed_pods: HashMap::new(),
            changed_tenants: HashMap::new(),
        }
    }

    /// The routers that are known.
    pub fn routers(&self) -> impl ExactSizeIterator<Item = Origin> + '_ {
        self.routers.values().map(|peer| peer.origin)
    }

    /// Takes in an update.
    pub fn hear(&mut self, update: Update, now: Moment) -> Heard {
        let origin = update.origin;
        if origin.router == self.own {
            return Heard::Own;
        }
        let known = self.routers.get(&origin.router).map(|peer| peer.origin.started);
        match known {
            Some(started) if started > origin.started => return Heard::Ignored,
            Some(started) if started < origin.started => self.forget_router(origin.router),
            None if self.routers.len() >= MAX_ROUTERS => return Heard::Ignored,
            _ => {}
        }
        let is_known = known == Some(origin.started);
        let peer = self.routers.entry(origin.router).or_insert_with(|| Peer::new(origin, now));
        peer.heard = peer.heard.max(now);
        peer.lost = None;
        let Update { sequence, scope, pods, tenants, sent, .. } = update;
        if sequence > peer.floor {
            let changed = &mut self.changed_pods;
            merge(&mut peer.pods, sequence, scope, pods, |name, before, report| {
                let computed = changed.entry(name.to_owned()).or_default();
                computed.add(before.copied().unwrap_or(*report), *report);
            });
            let changed = &mut self.changed_tenants;
            merge(&mut peer.tenants, sequence, scope, tenants, |name, before, report| {
                changed.entry(name.to_owned()).or_default().add(before, report);
            });
            if scope == Scope::Full {
                peer.floor = sequence;
            }
        }
        if is_known { Heard::Known(sent) } else { Heard::Joined(sent) }
    }

    /// The last connection with a router has closed.
    pub fn disconnected(&mut self, router: RouterId, now: Moment) {
        if let Some(peer) = self.routers.get_mut(&router) {
            peer.lost = Some(now);
        }
    }

    /// Forgets the routers that have been silent for long, and returns them.
    pub fn forget(&mut self, now: Moment) -> Vec<(Origin, Left)> {
        let is_lost = |lost: Moment| now.since(lost) >= LOST_AFTER;
        let mut left = Vec::new();
        for peer in self.routers.values() {
            if now.since(peer.heard) >= FORGOTTEN_AFTER {
                left.push((peer.origin, Left::Silent));
            } else if peer.lost.is_some_and(is_lost) {
                left.push((peer.origin, Left::Disconnected));
            }
        }
        for (origin, _) in &left {
            self.forget_router(origin.router);
        }
        left
    }

    /// When [`Peers::forget`] will forget a router, if none is heard from until then.
    #[must_use]
    pub fn next_forgotten(&self) -> Option<Moment> {
        let at = |peer: &Peer| {
            let silent = peer.heard + FORGOTTEN_AFTER;
            peer.lost.map_or(silent, |lost| silent.min(lost + LOST_AFTER))
        };
        self.routers.values().map(at).min()
    }

    fn forget_router(&mut self, router: RouterId) {
        let Some(peer) = self.routers.remove(&router) else { return };
        for name in peer.pods.into_keys() {
            self.changed_pods.entry(name).or_default();
        }
        for name in peer.tenants.into_keys() {
            self.changed_tenants.entry(name).or_default();
        }
    }

    /// The pods of which something else was heard since the last call.
    pub fn take_pods(&mut self) -> Vec<PodChange> {
        let changed = std::mem::take(&mut self.changed_pods);
        let change = |(pod, computed): (String, Computed)| {
            let load = self.load(&pod);
            let Computed { tokens, pairs } = computed;
            PodChange { pod, load, computed_tokens: tokens, computed_pairs: pairs }
        };
        changed.into_iter().map(change).collect()
    }

    /// The tenants of which something else was heard since the last call.
    pub fn take_tenants(&mut self) -> Vec<TenantChange> {
        let changed = std::mem::take(&mut self.changed_tenants);
        let change = |(tenant, used): (String, TenantUse)| {
            let TenantUse { requests, tokens, requests_left, tokens_left } = used;
            let in_flight = self.in_flight(&tenant);
            TenantChange { tenant, in_flight, requests, tokens, requests_left, tokens_left }
        };
        changed.into_iter().map(change).collect()
    }

    /// The load that all other routers put on a pod.
    #[must_use]
    pub fn load(&self, pod: &str) -> RouterLoad {
        let of = |peer: &Peer| peer.pods.get(pod).map(|report| report.value.load);
        self.routers.values().filter_map(of).fold(RouterLoad::default(), RouterLoad::saturating_add)
    }

    /// The requests that a tenant has in flight at all other routers.
    #[must_use]
    pub fn in_flight(&self, tenant: &str) -> u32 {
        let of = |peer: &Peer| peer.tenants.get(tenant).map(|report| report.value.in_flight);
        self.routers.values().filter_map(of).fold(0, u32::saturating_add)
    }
}

impl Peer {
    fn new(origin: Origin, now: Moment) -> Self {
        let pods = HashMap::new();
        Self { origin, heard: now, lost: None, floor: 0, pods, tenants: HashMap::new() }
    }
}

/// Merges what an update says, and calls `changed` with each name whose value is another one now.
fn merge<T: Copy + Default + PartialEq>(
    known: &mut HashMap<String, Versioned<T>>,
    version: u64,
    scope: Scope,
    said: Vec<(String, T)>,
    mut changed: impl FnMut(&str, Option<&T>, &T),
) {
    for (name, value) in said {
        if let Some(entry) = known.get_mut(&name) {
            if entry.version < version {
                changed(&name, Some(&entry.value), &value);
                *entry = Versioned { version, value };
            }
        } else if known.len() < MAX_NAMES {
            changed(&name, None, &value);
            known.insert(name, Versioned { version, value });
        }
    }
    if scope == Scope::Full {
        // What was named above has this version now.
        known.retain(|name, entry| {
            let is_gone = entry.version < version;
            if is_gone {
                changed(name, Some(&entry.value), &T::default());
            }
            !is_gone
        });
    }
}

impl Computed {
    /// A router's counts only grow, unless they begin again.
    fn add(&mut self, before: PodReport, now: PodReport) {
        let PodReport { computed_tokens, computed_pairs, .. } = now;
        let tokens = computed_tokens.saturating_sub(before.computed_tokens);
        let pairs = computed_pairs.saturating_sub(before.computed_pairs);
        self.tokens = self.tokens.saturating_add(tokens);
        self.pairs = self.pairs.saturating_add(pairs);
    }
}

impl TenantUse {
    fn add(&mut self, before: Option<&TenantReport>, now: &TenantReport) {
        let Some(before) = before else {
            let least = |one: Option<i64>, other: Option<i64>| one.into_iter().chain(other).min();
            self.requests_left = least(self.requests_left, now.requests_left);
            self.tokens_left = least(self.tokens_left, now.tokens_left);
            return;
        };
        if *now != TenantReport::default() {
            self.requests += now.requests.saturating_sub(before.requests);
            self.tokens = self.tokens.saturating_add(now.tokens.saturating_sub(before.tokens));
        }
    }
}

#[cfg(test)]
mod tests;
