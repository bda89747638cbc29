//! `least_load`: prefers pods with less work.
//!
//! The score is relative to the busiest candidate, so it says nothing about how busy the fleet is
//! as a whole; `concurrency` and `backlog` set absolute limits.

use wornpath_yaml::{Parameter, Takes};

use crate::fleet::{Candidate, PodState};
use crate::plugin::{Assembly, AssemblyRefused, Make, Plugin};
use crate::stage::{Decision, Scale, Score};

pub(crate) const PLUGIN: Plugin = Plugin {
    name: "least_load",
    summary: "1 for an idle pod, falling to 0 for the busiest candidate.",
    parameters: &[Parameter::with_default(
        "of",
        Takes::OneOf(&["requests", "prefill_tokens", "decode_tokens"]),
        "requests",
        "What is counted: requests in flight, prompt tokens still to compute, or tokens in decoding contexts.",
    )],
    needs: &[],
    conflicts: &[],
    example: "least_load: {of: prefill_tokens}",
    make: Make::Score(make),
};

struct LeastLoad {
    load: fn(&PodState) -> f64,
}

fn make(assembly: &mut Assembly<'_>) -> Result<Box<dyn Score>, AssemblyRefused> {
    let load: fn(&PodState) -> f64 = match assembly.get("of") {
        "prefill_tokens" => |pod_state| pod_state.prefill_tokens() as f64,
        "decode_tokens" => |pod_state| pod_state.decode_tokens() as f64,
        _ => |pod_state| f64::from(pod_state.requests()),
    };
    Ok(Box::new(LeastLoad { load }))
}

impl Score for LeastLoad {
    fn scale(&self) -> Scale {
        Scale::Unit
    }

    fn score(&self, decision: &Decision<'_>, candidates: &[Candidate], scores: &mut [f64]) {
        let mut highest = 0.0_f64;
        for (candidate, score) in candidates.iter().zip(scores.iter_mut()) {
            *score = (self.load)(decision.pod(*candidate).state());
            highest = highest.max(*score);
        }
        let unit = if highest > 0.0 { highest.recip() } else { 0.0 };
        for score in scores {
            *score = 1.0 - *score * unit;
        }
    }
}
