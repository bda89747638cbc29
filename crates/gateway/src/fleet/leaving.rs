//! Leaving pods: a reload may replace all pods of a model at once, and new pods get requests only
//! after they have answered.
//!
//! So a pod that is listed no longer serves on while a listed pod that has not answered is the only
//! one that may take its place. Then it gets no new requests, and is removed a moment later: what was
//! decided for it meanwhile still finds its address.
//!
//! Limits: one role of one model is enough to keep a pod, and adapters are not compared. If the new
//! pods never answer, the old ones serve until a reload lists others, or an operator removes them.

use crate::fleet::registry::{PodRegistry, lock};
use crate::fleet::snapshot::PodEntry;
use std::collections::HashMap;
use std::time::Duration;
use wornpath_config::PodConfig;
use wornpath_index::{Moment, NoSlot, PodId};
use wornpath_routing::{EventTrust, Health, Name, PodFacts};

/// Time between the last decision for a leaving pod and its removal, far longer than a request needs
/// from its decision to its connection.
const REMOVED_AFTER: Duration = Duration::from_secs(1);

/// Whether a pod that a reload removes may have to serve on: it does serve, and none of the pods
/// that are added has its address.
pub(crate) fn may_stay(removed: &PodEntry, added: &[PodConfig]) -> bool {
    removed.pod.state().health() == Health::Up
        && added.iter().all(|pod| pod.url() != removed.config.url())
}

/// Whether a model would have no pod in a role without this leaving one, but will have one.
pub(crate) fn is_needed(leaving: &PodEntry, entries: &[PodEntry]) -> bool {
    let facts = leaving.pod.facts();
    let listed = || entries.iter().filter(|entry| !entry.is_leaving);
    facts.roles.iter().any(|role| {
        let players = || listed().filter(|entry| entry.pod.facts().roles.contains(role));
        facts.models.iter().any(|model| {
            let serves = |entry: &PodEntry| entry.pod.facts().models.contains(model);
            let is_up = |entry: &PodEntry| entry.pod.state().health() == Health::Up;
            let may_serve = |entry: &PodEntry| serves(entry) || entry.pod.facts().models.is_empty();
            !players().any(|entry| is_up(entry) && serves(entry)) && players().any(may_serve)
        })
    })
}

impl PodRegistry {
    /// Leaves the name of a pod to another one. What the pod has cached is unknown from then on.
    pub(crate) fn give_up_name(&self, entry: &mut PodEntry) -> Result<(), NoSlot> {
        self.release(entry);
        self.sweep_leaving();
        let facts = entry.pod.facts();
        let name = Name::from(format!("{} ({})", facts.name, facts.endpoint));
        entry.config.facts.name.clone_from(&name);
        entry.config.events.clear();
        entry.config.asks_for_events = false;
        entry.source = None;
        entry.event_task = None;
        let id = self.index().add_pod()?;
        entry.pod = entry.pod.anew(id, PodFacts { name, ..facts.clone() });
        entry.pod.state().set_trust(EventTrust::Guessed);
        Ok(())
    }
}

/// Leaving pods that get no new requests, and since when.
#[derive(Debug, Default)]
pub(crate) struct LeavingPods {
    drained: HashMap<PodId, Moment>,
}

impl LeavingPods {
    /// Drains the leaving pods whose place is taken, and removes those that were drained before.
    pub(crate) fn update(&mut self, registry: &PodRegistry, now: Moment) {
        if !registry.snapshot().entries().iter().any(|entry| entry.is_leaving) {
            self.drained.clear();
            return;
        }
        let _changing = lock(&registry.changing);
        let snapshot = registry.snapshot();
        let entries = snapshot.entries();
        for entry in entries.iter().filter(|entry| entry.is_leaving) {
            if !is_needed(entry, entries) {
                entry.pod.state().set_health(Health::Draining);
                self.drained.entry(entry.pod.id()).or_insert(now);
            }
        }
        let is_over = |entry: &PodEntry| {
            let since = self.drained.get(&entry.pod.id()).filter(|_| entry.is_leaving);
            since.is_some_and(|since| now.since(*since) >= REMOVED_AFTER)
        };
        let (removed, entries): (Vec<_>, Vec<_>) = entries.iter().cloned().partition(is_over);
        if removed.is_empty() {
            return;
        }
        registry.publish(entries);
        for entry in removed {
            self.drained.remove(&entry.pod.id());
            tracing::info!(pod = %entry.pod.facts().name, "pod removed: those that take its place answer");
            registry.release(&entry);
        }
    }
}
