//! `kv_headroom`: keeps pods whose KV cache has room for the request.

use wornpath_yaml::{Parameter, Takes};

use crate::fleet::{Candidate, FleetPod};
use crate::plugin::{Assembly, AssemblyRefused, Make, Plugin};
use crate::slot::Reads;
use crate::stage::{Decision, Filter, Rejection, WhenEmpty};
use crate::values::BlockHashes;

pub(crate) const PLUGIN: Plugin = Plugin {
    name: "kv_headroom",
    summary: "Keeps pods whose KV cache is used to at most a share once the request is in it; an idle one always has room. \
              The request waits if there is none.",
    parameters: &[
        Parameter::with_default(
            "at_most",
            Takes::Number(0.0, 1.0),
            "0.95",
            "The share of the KV cache in use, the request included where the pod's size is known.",
        ),
        Parameter::with_default(
            "output_tokens",
            Takes::Whole(0, 4_294_967_295),
            "256",
            "How many tokens are expected to be generated, unless the request allows fewer.",
        ),
    ],
    needs: &[],
    conflicts: &[],
    example: "kv_headroom: {at_most: 0.9}",
    make: Make::Filter(make),
};

/// What an engine may say is in use while nobody asks it anything.
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
    fn tokens(&self, scene: &Decision<'_>) -> u64 {
        let request = scene.request();
        let prompt = self.blocks.as_ref().and_then(|handle| scene.read(handle));
        let prompt =
            prompt.map_or_else(|| request.estimated_tokens(), |prompt| prompt.prompt_tokens as u64);
        let most = request.output_tokens.unwrap_or(u32::MAX);
        prompt + u64::from(self.output_tokens.min(most))
    }
}

/// The share of the pod's KV cache that is in use with `tokens` more. What the router sent counts at
/// once, what the engine reports counts when it is more.
#[inline]
fn usage_with(pod: &FleetPod, tokens: u64) -> f64 {
    let vitals = pod.vitals();
    let Some(size) = pod.facts().kv_tokens.filter(|size| *size > 0) else {
        return vitals.kv_usage();
    };
    let sent = (vitals.decode_tokens() + vitals.prefill_tokens()) as f64 / size as f64;
    vitals.kv_usage().max(sent) + tokens as f64 / size as f64
}

/// Whoever waited for more room than all of it would wait for ever.
#[inline]
fn is_idle(pod: &FleetPod) -> bool {
    let vitals = pod.vitals();
    vitals.requests() == 0 && vitals.waiting() == 0 && vitals.kv_usage() < IDLE_USAGE
}

impl Filter for KvHeadroom {
    fn keep(&self, scene: &Decision<'_>, candidates: &[Candidate], keep: &mut [bool]) {
        let tokens = self.tokens(scene);
        for (candidate, keep) in candidates.iter().zip(keep) {
            let pod = scene.pod(*candidate);
            *keep = is_idle(pod) || usage_with(pod, tokens) <= self.at_most;
        }
    }

    fn why(&self, scene: &Decision<'_>, candidate: Candidate) -> String {
        let usage = usage_with(scene.pod(candidate), self.tokens(scene));
        format!("its KV cache would be {:.0}% full", usage * 100.0)
    }

    fn when_empty(&self) -> WhenEmpty {
        WhenEmpty::Hold
    }

    fn rejection(&self, _scene: &Decision<'_>) -> Rejection {
        Rejection::busy("no pod has room in its KV cache")
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
        let mut rehearsal = Harness::with(pods).prompt(&[7; 500]);
        rehearsal.request.output_tokens = Some(100);
        for pod in 0..3 {
            rehearsal.vitals(pod).report(0, 0.5);
        }
        let played = rehearsal.play(&["tokenize", "block_hash"], Stage::Filter, "kv_headroom");
        assert_eq!(played.kept(), [1, 2], "half full, 600 of 1,000 tokens do not fit");
        assert_eq!(played.why(0), "its KV cache would be 110% full");
        rehearsal.vitals(2).report(0, 0.96);
        assert_eq!(played.kept(), [1]);
        let _sent = Reservation::new(rehearsal.vitals(1), 9000, 9000);
        assert!(played.kept().is_empty(), "what was just sent counts before the engine reports it");
    }

    #[test]
    fn an_idle_pod_has_room_for_whatever_comes() {
        let sized = PodFacts { kv_tokens: Some(1000), ..PodFacts::serving("small", "m") };
        let rehearsal = Harness::with(vec![sized]).prompt(&[7; 990]);
        let played = rehearsal.play(&["tokenize", "block_hash"], Stage::Filter, "kv_headroom");
        assert_eq!(played.kept(), [0], "it would wait for ever");
        let _sent = Reservation::new(rehearsal.vitals(0), 10, 10);
        assert!(played.kept().is_empty());
    }
}
