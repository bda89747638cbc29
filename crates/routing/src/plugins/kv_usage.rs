//! `kv_usage`: prefers pods with more free KV cache, as engines report it.

use crate::fleet::Candidate;
use crate::plugin::{Assembly, AssemblyRefused, Make, Plugin};
use crate::stage::{Decision, Scale, Score};

pub(crate) const PLUGIN: Plugin = Plugin {
    name: "kv_usage",
    summary: "1 for a pod with an empty KV cache, falling to 0 for a full one, as engines report it.",
    parameters: &[],
    needs: &[],
    conflicts: &[],
    example: "kv_usage: {weight: 2}",
    make: Make::Score(make),
};

struct KvUsage;

fn make(_: &mut Assembly<'_>) -> Result<Box<dyn Score>, AssemblyRefused> {
    Ok(Box::new(KvUsage))
}

impl Score for KvUsage {
    fn scale(&self) -> Scale {
        Scale::Unit
    }

    fn score(&self, decision: &Decision<'_>, candidates: &[Candidate], scores: &mut [f64]) {
        for (candidate, score) in candidates.iter().zip(scores) {
            *score = 1.0 - decision.pod(*candidate).state().kv_usage();
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::plugins::harness::Harness;
    use crate::stage::Stage;

    #[test]
    fn an_empty_cache_scores_one_and_a_full_one_zero() {
        let harness = Harness::of(3);
        harness.pod_state(1).report(0, 0.25);
        harness.pod_state(2).report(0, 1.0);
        assert_eq!(harness.run(&[], Stage::Score, "kv_usage").scores(), [1.0, 0.75, 0.0]);
    }
}
