//! Where a plan sends a request: the addresses of its pods, in the order of retries.

use crate::fleet::snapshot::{FleetSnapshot, PodEntry};
use hyper::header::HeaderMap;
use std::net::SocketAddr;
use wornpath_config::Destinations;
use wornpath_index::PodId;
use wornpath_routing::{Explanation, Mutation, PlanStep};

/// A pod that the data plane may try.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Destination {
    pub(super) pod: PodId,
    pub(super) address: SocketAddr,
}

/// The pods of a step by address, best first; empty if its pod was removed meanwhile.
///
/// One request is sent to all of them, so those that need another key or another rank than the
/// first are left out.
pub(super) fn destinations(
    step: &PlanStep,
    snapshot: &FleetSnapshot,
    wanted: Destinations,
) -> Vec<Destination> {
    let Some(first) = step.pod.and_then(|pod| snapshot.entry(pod)) else { return Vec::new() };
    let mut all: Vec<Destination> = Vec::with_capacity(1 + step.fallbacks.len());
    let fallbacks = step.fallbacks.iter().filter_map(|pod| snapshot.entry(*pod));
    let fallbacks = fallbacks.filter(|entry| takes_request_of(entry, first));
    for entry in std::iter::once(first).chain(fallbacks) {
        let Some(address) = entry.pod.facts().address else { continue };
        if all.iter().all(|known| known.address != address) {
            all.push(Destination { pod: entry.pod.id(), address });
        }
        if wanted == Destinations::One {
            break;
        }
    }
    all
}

/// Whether a pod takes the very request that another one would get.
fn takes_request_of(entry: &PodEntry, first: &PodEntry) -> bool {
    let key = |entry: &PodEntry| {
        let mut headers = HeaderMap::new();
        entry.endpoint.authorize(&mut headers);
        headers
    };
    entry.pod.facts().rank == first.pod.facts().rank && key(entry) == key(first)
}

/// The scores of the pods that could have been chosen for the last step, by address.
pub(super) fn scores(
    explanation: &Explanation,
    snapshot: &FleetSnapshot,
) -> Vec<(SocketAddr, f64)> {
    let candidates = explanation.steps.last().map(|step| &*step.candidates).unwrap_or_default();
    let scored = candidates.iter().filter_map(|candidate| {
        Some((snapshot.entry(candidate.pod)?.pod.facts().address?, candidate.total?))
    });
    scored.collect()
}

/// The list as header and metadata carry it.
pub(super) fn written(destinations: &[Destination]) -> String {
    let all: Vec<_> = destinations.iter().map(|one| one.address.to_string()).collect();
    all.join(",")
}

/// Whether a step computes the prompt for the next one.
pub(super) fn is_prefill(step: &PlanStep) -> bool {
    let mut mutations = step.mutations.iter();
    mutations.any(|it| matches!(it, Mutation::PrefillOnly | Mutation::OfferKv(_)))
}
