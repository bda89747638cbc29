//! `lora_affinity`: pods that have the request's adapter loaded are better.
//!
//! Loading an adapter takes an engine from tens of milliseconds to seconds, and few stay loaded. Which
//! ones is known from the router's own history: a pod that was given the adapter lately has it.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use wornpath_index::{Moment, PodId};
use wornpath_yaml::{Parameter, Takes};

use crate::fleet::Candidate;
use crate::plugin::{Assembly, AssemblyRefused, Make, Plugin};
use crate::stage::{Decision, Scale, Score};

pub(crate) const PLUGIN: Plugin = Plugin {
    name: "lora_affinity",
    summary: "1 for pods that were given the request's LoRA adapter lately, 0.5 for others that can serve it, 0 \
              for the rest; 1 for all if the request has no adapter.",
    parameters: &[Parameter::with_default(
        "ttl",
        Takes::Time,
        "5m",
        "How long an adapter is taken to stay loaded after its last request.",
    )],
    needs: &[],
    conflicts: &[],
    example: "lora_affinity: {ttl: 2m}",
    make: Make::Score(make),
};

/// More adapters than this are forgotten all at once: the worst is a few needless loads.
const MOST_ADAPTERS: usize = 10_000;

struct LoraAffinity {
    ttl: Duration,
    /// By adapter, the pods that got it, and when.
    given: Mutex<HashMap<u64, Vec<(PodId, Moment)>>>,
}

fn make(assembly: &mut Assembly<'_>) -> Result<Box<dyn Score>, AssemblyRefused> {
    Ok(Box::new(LoraAffinity { ttl: assembly.get("ttl"), given: Mutex::default() }))
}

impl Score for LoraAffinity {
    fn scale(&self) -> Scale {
        Scale::Unit
    }

    fn score(&self, scene: &Decision<'_>, candidates: &[Candidate], scores: &mut [f64]) {
        let Some(lora) = &scene.request().model.lora else {
            scores.fill(1.0);
            return;
        };
        for (candidate, score) in candidates.iter().zip(scores.iter_mut()) {
            let serves = scene.pod(*candidate).facts().loras.contains(lora);
            *score = if serves { 0.5 } else { 0.0 };
        }
        let given = self.given.lock().unwrap_or_else(PoisonError::into_inner);
        for (pod, when) in given.get(&lora.key()).into_iter().flatten() {
            let loaded = scene.now() < when.saturating_add(self.ttl);
            let pod = scene.fleet().find(*pod).filter(|_| loaded);
            // Candidates are in the order of the fleet.
            if let Some(Ok(at)) = pod.map(|pod| candidates.binary_search(&pod))
                && scores[at] > 0.0
            {
                scores[at] = 1.0;
            }
        }
    }

    fn chosen(&self, scene: &Decision<'_>, pod: Candidate) {
        let Some(lora) = &scene.request().model.lora else { return };
        let (pod, now) = (scene.pod(pod).id(), scene.now());
        let mut given = self.given.lock().unwrap_or_else(PoisonError::into_inner);
        if given.len() >= MOST_ADAPTERS && !given.contains_key(&lora.key()) {
            given.clear();
        }
        let pods = given.entry(lora.key()).or_default();
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

    fn rehearsal() -> Harness {
        let able =
            |name: &str| PodFacts { loras: vec!["sql".into()], ..PodFacts::serving(name, "m") };
        Harness::with(vec![able("a"), able("b"), PodFacts::serving("c", "m")])
    }

    #[test]
    fn a_pod_that_got_the_adapter_lately_comes_first() {
        let mut rehearsal = rehearsal();
        rehearsal.request.model.lora = Some("sql".into());
        let played = rehearsal.play(&[], Stage::Score, "lora_affinity");
        assert_eq!(played.scores(), [0.5, 0.5, 0.0]);
        played.chosen(1);
        played.chosen(1);
        assert_eq!(played.scores(), [0.5, 1.0, 0.0]);
    }

    #[test]
    fn an_adapter_is_forgotten_after_its_time() {
        let mut rehearsal = rehearsal();
        rehearsal.request.model.lora = Some("sql".into());
        let played = rehearsal.play(&[], Stage::Score, "lora_affinity: {ttl: 5s}");
        played.chosen(0);
        let later = played.at(rehearsal.now + Duration::from_secs(5));
        assert_eq!(later.scores(), [0.5, 0.5, 0.0]);
    }

    #[test]
    fn without_an_adapter_all_pods_are_equal() {
        let rehearsal = rehearsal();
        assert_eq!(rehearsal.play(&[], Stage::Score, "lora_affinity").scores(), [1.0; 3]);
    }
}
