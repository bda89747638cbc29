//! `healthy`: keeps pods that answer, are not draining, and whose breaker lets a request through.

use std::time::Duration;

use crate::fleet::{BreakerState, Candidate, FleetPod, Health, Vitals};
use crate::plugin::{Assembly, AssemblyRefused, Make, Plugin};
use crate::stage::{Decision, Filter, Rejection};

pub(crate) const PLUGIN: Plugin = Plugin {
    name: "healthy",
    summary: "Keeps pods that are up, not draining, not cut off by their breaker, and not resting because they \
              said that they are busy. A half-open breaker lets one request at a time through.",
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
    fn keep(&self, scene: &Decision<'_>, candidates: &[Candidate], keep: &mut [bool]) {
        for (candidate, keep) in candidates.iter().zip(keep) {
            *keep = ailment(scene.pod(*candidate).vitals()).is_none();
        }
    }

    fn why(&self, scene: &Decision<'_>, candidate: Candidate) -> String {
        ailment(scene.pod(candidate).vitals()).unwrap_or("healthy").to_owned()
    }

    fn rejection(&self, scene: &Decision<'_>) -> Rejection {
        let wanted = &scene.request().model.base;
        let serves =
            |pod: &FleetPod| pod.facts().models.is_empty() || pod.facts().models.contains(wanted);
        resting(scene, serves).unwrap_or_else(|| Rejection::unavailable("no pod is healthy"))
    }
}

/// How a request is turned away if pods that could take it only rest: after the shortest rest one may.
pub(super) fn resting(
    scene: &Decision<'_>,
    could_take: impl Fn(&FleetPod) -> bool,
) -> Option<Rejection> {
    let of_role = scene.fleet().with_role(scene.role()).iter().map(|at| scene.pod(*at));
    let up = of_role.filter(|pod| pod.vitals().health() == Health::Up && could_take(pod));
    let rest = up.filter_map(|pod| pod.vitals().rest(scene.now())).min()?;
    let retry_after = Some(Duration::from_secs(rest.as_millis().div_ceil(1000) as u64));
    Some(Rejection {
        retry_after,
        ..Rejection::busy("all pods are busy and left alone for a while")
    })
}

#[inline]
fn ailment(vitals: &Vitals) -> Option<&'static str> {
    match (vitals.health(), vitals.breaker()) {
        (Health::Down, _) => Some("down"),
        (Health::Draining, _) => Some("draining"),
        (Health::Up, BreakerState::Open) => Some("breaker open"),
        (Health::Up, BreakerState::Resting) => Some("busy, and left alone for a while"),
        (Health::Up, BreakerState::HalfOpen) if vitals.requests() > 0 => {
            Some("breaker half open, and a request is trying")
        }
        (Health::Up, _) => None,
    }
}
