//! `healthy`: keeps pods that are up, not draining, and whose circuit breaker admits a request.
//!
//! A half-open breaker admits one probe request at a time. A pod that is avoided, because it said
//! that it is busy and the request may be the reason, passes if no other pod that serves the model
//! does. If no pod passes and one that could
//! serve the request is in backoff, the rejection is 429 with the shortest remaining backoff as
//! `retry_after`, not 503.

use std::time::Duration;

use crate::fleet::{BreakerState, Candidate, FleetPod, Health, PodState};
use crate::plugin::{Assembly, AssemblyRefused, Make, Plugin};
use crate::stage::{Decision, Filter, Rejection};

pub(crate) const PLUGIN: Plugin = Plugin {
    name: "healthy",
    summary: "Keeps pods that are up, not draining, and whose circuit breaker is not open. Drops pods in backoff after \
              the engine reported that it is busy. A half-open breaker admits one probe request at a time.",
    parameters: &[],
    needs: &[],
    conflicts: &[],
    example: "healthy",
    make: Make::Filter(make),
};

struct Healthy;

fn make(_: &mut Assembly<'_>) -> Result<Box<dyn Filter>, AssemblyRefused> {
    Ok(Box::new(Healthy))
}

impl Filter for Healthy {
    fn keep(&self, decision: &Decision<'_>, candidates: &[Candidate], keep: &mut [bool]) {
        for (candidate, keep) in candidates.iter().zip(keep.iter_mut()) {
            *keep = unhealthy_reason(decision.pod(*candidate).state()).is_none();
        }
        keep_avoided(decision, candidates, keep);
    }

    fn why(&self, decision: &Decision<'_>, candidate: Candidate) -> String {
        unhealthy_reason(decision.pod(candidate).state()).unwrap_or("healthy").to_owned()
    }

    fn rejection(&self, decision: &Decision<'_>) -> Rejection {
        overload_rejection(decision, |pod| serves_model(decision, pod))
            .unwrap_or_else(|| Rejection::unavailable("no healthy pod; retry later"))
    }
}

fn serves_model(decision: &Decision<'_>, pod: &FleetPod) -> bool {
    let models = &pod.facts().models;
    models.is_empty() || models.contains(&decision.request().model.base)
}

/// Keeps the pods that are avoided if no pod that serves the model is kept.
fn keep_avoided(decision: &Decision<'_>, candidates: &[Candidate], keep: &mut [bool]) {
    let pod = |candidate: &Candidate| decision.pod(*candidate);
    let is_avoided = |candidate: &Candidate| {
        let state = pod(candidate).state();
        (state.health(), state.breaker()) == (Health::Up, BreakerState::Avoided)
    };
    if !candidates.iter().any(is_avoided) {
        return;
    }
    let mut kept = candidates.iter().zip(keep.iter()).filter(|(_, keep)| **keep);
    if kept.any(|(candidate, _)| serves_model(decision, pod(candidate))) {
        return;
    }
    for (candidate, keep) in candidates.iter().zip(keep) {
        *keep |= is_avoided(candidate);
    }
}

/// The rejection if a pod that could serve the request is in backoff: retry after the shortest
/// backoff.
pub(super) fn overload_rejection(
    decision: &Decision<'_>,
    could_serve: impl Fn(&FleetPod) -> bool,
) -> Option<Rejection> {
    let of_role = decision.fleet().with_role(decision.role()).iter().map(|at| decision.pod(*at));
    let up = of_role.filter(|pod| pod.state().health() == Health::Up && could_serve(pod));
    let backoff = up.filter_map(|pod| pod.state().rest(decision.now())).min()?;
    let retry_after = Some(Duration::from_secs(backoff.as_millis().div_ceil(1000) as u64));
    Some(Rejection {
        retry_after,
        ..Rejection::busy("all pods are busy and in backoff; retry later")
    })
}

/// Why the pod must not get a request, if it must not.
#[inline]
fn unhealthy_reason(pod_state: &PodState) -> Option<&'static str> {
    match (pod_state.health(), pod_state.breaker()) {
        (Health::Down, _) => Some("down"),
        (Health::Draining, _) => Some("draining"),
        (Health::Up, BreakerState::Open) => Some("breaker open"),
        (Health::Up, BreakerState::Resting) => {
            Some("backing off: the engine reported that it is busy")
        }
        (Health::Up, BreakerState::Avoided) => {
            Some("avoided: the engine reported that it is busy, and others can take the request")
        }
        (Health::Up, BreakerState::HalfOpen) if pod_state.requests() > 0 => {
            Some("breaker half open: probe in flight")
        }
        (Health::Up, _) => None,
    }
}
