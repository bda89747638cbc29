//! `healthy`: keeps pods that answer, are not draining, and whose breaker lets a request through.

use crate::assembly::{Assembly, Refused};
use crate::fleet::{Breaker, Candidate, Health, Vitals};
use crate::plugin::{Make, Plugin};
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

fn make(_: &mut Assembly<'_>) -> Result<Box<dyn Filter>, Refused> {
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

    fn rejection(&self, _scene: &Decision<'_>) -> Rejection {
        Rejection::unavailable("no pod is healthy")
    }
}

#[inline]
fn ailment(vitals: &Vitals) -> Option<&'static str> {
    match (vitals.health(), vitals.breaker()) {
        (Health::Down, _) => Some("down"),
        (Health::Draining, _) => Some("draining"),
        (Health::Up, Breaker::Open) => Some("breaker open"),
        (Health::Up, Breaker::Resting) => Some("resting, as it asked"),
        (Health::Up, Breaker::HalfOpen) if vitals.requests() > 0 => {
            Some("breaker half open, and a request is trying")
        }
        (Health::Up, _) => None,
    }
}
