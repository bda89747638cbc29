//! `kv_headroom`: keeps pods whose KV cache has room for the request.
//!
//! An engine whose KV cache is full preempts or swaps running requests. This filter holds a request
//! until its tokens fit. It needs the pod's `kv_tokens`; without it, only the engine's reported
//! usage counts.

use wornpath_yaml::{Parameter, Takes};

use crate::fleet::{Candidate, FleetPod};
use crate::plugin::{Assembly, AssemblyRefused, Make, Plugin};
use crate::slot::{BlockHashes, Reads};
use crate::stage::{Decision, Filter, Rejection, WhenEmpty};

pub(crate) const PLUGIN: Plugin = Plugin {
    name: "kv_headroom",
    summary: "Keeps pods whose KV cache usage stays at or below a share with the request added; an idle pod always \
              passes. Holds the request if no pod passes.",
    parameters: &[
        Parameter::with_default(
            "at_most",
            Takes::Number(0.0, 1.0),
            "0.95",
            "The largest share of the KV cache in use, with the request included where the pod's `kv_tokens` is known.",
        ),
        Parameter::with_default(
            "output_tokens",
            Takes::Whole(0, 4_294_967_295),
            "256",
            "Expected output tokens, unless the request allows fewer.",
        ),
    ],
    needs: &[],
    conflicts: &[],
    example: "kv_headroom: {at_most: 0.9}",
    make: Make::Filter(make),
};

/// An engine without requests may report up to this usage.
const IDLE_USAGE: f64 = 0.01;

struct KvHeadroom {
    at_most: f64,
    output_tokens: u32,
    blocks: Option<Reads<BlockHashes>>,
}

fn make(assembly: &mut Assembly<'_>) -> Result<Box<dyn Filter>, AssemblyRefused> {
    Ok(Box::new(KvHeadroom {
        at_most: assembly.get("at_most"),
        output_tokens: assembly.get("output_tokens"),
        blocks: assembly.reads_if_written(),
    }))
}

impl KvHeadroom {
    /// The tokens of KV cache that the request needs.
    fn tokens(&self, decision: &Decision<'_>) -> u64 {
        let request = decision.request();
        let prompt = self.blocks.as_ref().and_then(|handle| decision.read(handle));
        let prompt =
            prompt.map_or_else(|| request.estimated_tokens(), |prompt| prompt.prompt_tokens as u64);
        let allowed = request.output_tokens.unwrap_or(u32::MAX);
        prompt + u64::from(self.output_tokens.min(allowed))
    }
}

/// The share of the pod's KV cache in use with `tokens` more. What the router sent counts at once;
/// the engine's report counts when it is higher.
#[inline]
fn usage_with(pod: &FleetPod, tokens: u64) -> f64 {
    let pod_state = pod.state();
    let Some(size) = pod.facts().kv_tokens.filter(|size| *size > 0) else {
        return pod_state.kv_usage();
    };
    let sent = (pod_state.decode_tokens() + pod_state.prefill_tokens()) as f64 / size as f64;
    pod_state.kv_usage().max(sent) + tokens as f64 / size as f64
}

/// An idle pod always passes: a request that needs more than the whole KV cache would wait for
/// ever.
#[inline]
fn is_idle(pod: &FleetPod) -> bool {
    let pod_state = pod.state();
    pod_state.requests() == 0 && pod_state.waiting() == 0 && pod_state.kv_usage() < IDLE_USAGE
}

impl Filter for KvHeadroom {
    fn keep(&self, decision: &Decision<'_>, candidates: &[Candidate], keep: &mut [bool]) {
        let tokens = self.tokens(decision);
        for (candidate, keep) in candidates.iter().zip(keep) {
            let pod = decision.pod(*candidate);
            *keep = is_idle(pod) || usage_with(pod, tokens) <= self.at_most;
        }
    }

    fn why(&self, decision: &Decision<'_>, candidate: Candidate) -> String {
        let usage = usage_with(decision.pod(candidate), self.tokens(decision));
        format!("KV cache would be {:.0}% full (limit {:.0}%)", usage * 100.0, self.at_most * 100.0)
    }

    fn when_empty(&self) -> WhenEmpty {
        WhenEmpty::Hold
    }

    fn rejection(&self, _scene: &Decision<'_>) -> Rejection {
        Rejection::busy("no pod has enough free KV cache; retry later")
    }
}

#[cfg(test)]
mod tests {
    use crate::fleet::{PodFacts, Reservation};
    use crate::plugins::harness::Harness;
    use crate::stage::Stage;

    #[test]
    fn the_request_itself_must_fit() {
        let sized = |name: &str, kv_tokens| PodFacts { kv_tokens, ..PodFacts::serving(name, "m") };
        let pods = vec![sized("small", Some(1000)), sized("large", Some(10_000)), sized("?", None)];
        let mut harness = Harness::with(pods).prompt(&[7; 500]);
        harness.request.output_tokens = Some(100);
        for pod in 0..3 {
            harness.pod_state(pod).report(0, 0.5);
        }
        let run = harness.run(&["tokenize", "block_hash"], Stage::Filter, "kv_headroom");
        assert_eq!(run.kept(), [1, 2], "half full, 600 of 1,000 tokens do not fit");
        assert_eq!(run.why(0), "KV cache would be 110% full (limit 95%)");
        harness.pod_state(2).report(0, 0.96);
        assert_eq!(run.kept(), [1]);
        let _sent = Reservation::new(harness.pod_state(1), 9000, 9000);
        assert!(run.kept().is_empty(), "what was just sent counts before the engine reports it");
    }

    #[test]
    fn an_idle_pod_takes_a_request_of_any_size() {
        let sized = PodFacts { kv_tokens: Some(1000), ..PodFacts::serving("small", "m") };
        let harness = Harness::with(vec![sized]).prompt(&[7; 990]);
        let run = harness.run(&["tokenize", "block_hash"], Stage::Filter, "kv_headroom");
        assert_eq!(run.kept(), [0], "it would wait for ever otherwise");
        let _sent = Reservation::new(harness.pod_state(0), 10, 10);
        assert!(run.kept().is_empty());
    }
}
