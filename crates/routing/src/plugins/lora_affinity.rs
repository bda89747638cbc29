//! `lora_affinity`: prefers pods that have the request's LoRA adapter loaded.
//!
//! An engine needs from tens of milliseconds to seconds to load an adapter, and keeps few of them
//! loaded. The router infers which ones from its own history: a pod that recently served the
//! adapter has it loaded. It does not see the requests of other routers.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use wornpath_index::{Moment, PodId};
use wornpath_yaml::{Parameter, Takes};

use crate::fleet::Candidate;
use crate::name::Name;
use crate::plugin::{Assembly, AssemblyRefused, Make, Plugin};
use crate::stage::{Decision, Scale, Score};

pub(crate) const PLUGIN: Plugin = Plugin {
    name: "lora_affinity",
    summary: "1 for pods that recently got a request for the same LoRA adapter, 0.5 for others that can serve it, 0 \
              for the rest; 1 for all if the request has no adapter.",
    parameters: &[Parameter::with_default(
        "ttl",
        Takes::Time,
        "5m",
        "How long an adapter is assumed to stay loaded after its last request.",
    )],
    needs: &[],
    conflicts: &[],
    example: "lora_affinity: {ttl: 2m}",
    make: Make::Score(make),
};

/// Beyond this number the history is cleared: the worst result is a few needless adapter loads.
const MAX_ADAPTERS: usize = 10_000;

struct LoraAffinity {
    ttl: Duration,
    /// By adapter, the pods that got a request for it, and when they last did.
    history: Mutex<HashMap<Name, Vec<(PodId, Moment)>>>,
}

fn make(assembly: &mut Assembly<'_>) -> Result<Box<dyn Score>, AssemblyRefused> {
    Ok(Box::new(LoraAffinity { ttl: assembly.get("ttl"), history: Mutex::default() }))
}

impl Score for LoraAffinity {
    fn scale(&self) -> Scale {
        Scale::Unit
    }

    fn score(&self, decision: &Decision<'_>, candidates: &[Candidate], scores: &mut [f64]) {
        let Some(lora) = &decision.request().model.lora else {
            scores.fill(1.0);
            return;
        };
        for (candidate, score) in candidates.iter().zip(scores.iter_mut()) {
            let serves = decision.pod(*candidate).facts().loras.contains(lora);
            *score = if serves { 0.5 } else { 0.0 };
        }
        let history = self.history.lock().unwrap_or_else(PoisonError::into_inner);
        for (pod, when) in history.get(lora).into_iter().flatten() {
            let loaded = decision.now() < when.saturating_add(self.ttl);
            let pod = decision.fleet().find(*pod).filter(|_| loaded);
            // Candidates are in the order of the fleet.
            if let Some(Ok(at)) = pod.map(|pod| candidates.binary_search(&pod))
                && scores[at] > 0.0
            {
                scores[at] = 1.0;
            }
        }
    }

    fn chosen(&self, decision: &Decision<'_>, pod: Candidate) {
        let Some(lora) = &decision.request().model.lora else { return };
        let pod = decision.pod(pod).id();
        let now = decision.now();
        let mut history = self.history.lock().unwrap_or_else(PoisonError::into_inner);
        if history.len() >= MAX_ADAPTERS && !history.contains_key(lora) {
            history.clear();
        }
        let pods = history.entry(lora.clone()).or_default();
        pods.retain(|(known, when)| *known != pod && now < when.saturating_add(self.ttl));
        pods.push((pod, now));
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use crate::fleet::PodFacts;
    use crate::plugins::harness::Harness;
    use crate::stage::Stage;

    fn harness() -> Harness {
        let able =
            |name: &str| PodFacts { loras: vec!["sql".into()], ..PodFacts::serving(name, "m") };
        Harness::with(vec![able("a"), able("b"), PodFacts::serving("c", "m")])
    }

    #[test]
    fn a_pod_that_recently_got_the_adapter_scores_best() {
        let mut harness = harness();
        harness.request.model.lora = Some("sql".into());
        let run = harness.run(&[], Stage::Score, "lora_affinity");
        assert_eq!(run.scores(), [0.5, 0.5, 0.0]);
        run.chosen(1);
        run.chosen(1);
        assert_eq!(run.scores(), [0.5, 1.0, 0.0]);
    }

    #[test]
    fn an_adapter_expires_after_its_time_to_live() {
        let mut harness = harness();
        harness.request.model.lora = Some("sql".into());
        let run = harness.run(&[], Stage::Score, "lora_affinity: {ttl: 5s}");
        run.chosen(0);
        let later = run.at(harness.now + Duration::from_secs(5));
        assert_eq!(later.scores(), [0.5, 0.5, 0.0]);
    }

    #[test]
    fn without_an_adapter_all_pods_score_equal() {
        let harness = harness();
        assert_eq!(harness.run(&[], Stage::Score, "lora_affinity").scores(), [1.0; 3]);
    }
}
