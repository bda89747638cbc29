//! `queue_depth`: prefers pods with fewer requests queued inside the engine, as engines report it.

use crate::fleet::Candidate;
use crate::plugin::{Assembly, AssemblyRefused, Make, Plugin};
use crate::stage::{Decision, Scale, Score};

pub(crate) const PLUGIN: Plugin = Plugin {
    name: "queue_depth",
    summary: "1 for the candidates with the fewest requests queued in the engine, 0 for those with the most, 1 for all if \
              they are equal.",
    parameters: &[],
    needs: &[],
    conflicts: &[],
    example: "queue_depth: {weight: 2}",
    make: Make::Score(make),
};

struct QueueDepth;

fn make(_: &mut Assembly<'_>) -> Result<Box<dyn Score>, AssemblyRefused> {
    Ok(Box::new(QueueDepth))
}

impl Score for QueueDepth {
    fn scale(&self) -> Scale {
        Scale::Unit
    }

    fn score(&self, decision: &Decision<'_>, candidates: &[Candidate], scores: &mut [f64]) {
        let mut shortest = f64::INFINITY;
        let mut longest = 0.0_f64;
        for (candidate, score) in candidates.iter().zip(scores.iter_mut()) {
            *score = f64::from(decision.pod(*candidate).state().waiting());
            shortest = shortest.min(*score);
            longest = longest.max(*score);
        }
        let range = longest - shortest;
        for score in scores {
            *score = if range > 0.0 { (longest - *score) / range } else { 1.0 };
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::plugins::harness::Harness;
    use crate::stage::Stage;

    #[test]
    fn the_shortest_queue_scores_one_and_the_longest_zero() {
        let harness = Harness::of(3);
        let run = harness.run(&[], Stage::Score, "queue_depth");
        assert_eq!(run.scores(), [1.0, 1.0, 1.0]);
        for (pod, waiting) in [4, 2, 6].into_iter().enumerate() {
            harness.pod_state(pod).report(waiting, 0.0);
        }
        assert_eq!(run.scores(), [0.5, 1.0, 0.0]);
    }
}
