//! `round_robin` as a scorer: breaks ties in turn.
//!
//! The score falls along the fleet from the pod after the one chosen last. With a small weight it
//! decides only between pods that other scorers rate equal.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use crate::fleet::Candidate;
use crate::plugin::{Assembly, AssemblyRefused, Make, Plugin};
use crate::stage::{Decision, Scale, Score};

pub(crate) const PLUGIN: Plugin = Plugin {
    name: "round_robin",
    summary: "1 for the pod after the one chosen last, falling evenly in fleet order to near 0 for the one chosen last.",
    parameters: &[],
    needs: &[],
    conflicts: &[],
    example: "round_robin: {weight: 0.01}",
    make: Make::Score(make),
};

struct RoundRobinScore {
    /// One more than the position in the fleet of the pod that was chosen last.
    next: AtomicUsize,
}

fn make(_: &mut Assembly<'_>) -> Result<Box<dyn Score>, AssemblyRefused> {
    Ok(Box::new(RoundRobinScore { next: AtomicUsize::new(0) }))
}

impl Score for RoundRobinScore {
    fn scale(&self) -> Scale {
        Scale::Unit
    }

    fn score(&self, decision: &Decision<'_>, candidates: &[Candidate], scores: &mut [f64]) {
        let next = self.next.load(Relaxed);
        let all = decision.fleet().pods().len();
        for (candidate, score) in candidates.iter().zip(scores) {
            let position = candidate.position();
            // The number of pods in the fleet whose turn comes before this one.
            let before =
                if position >= next { position - next } else { position + all - next.min(all) };
            *score = 1.0 - before as f64 / all as f64;
        }
    }

    fn chosen(&self, _: &Decision<'_>, pod: Candidate) {
        self.next.store(pod.position() + 1, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use crate::plugins::harness::Harness;
    use crate::stage::Stage;

    #[test]
    fn the_pod_after_the_chosen_one_scores_best() {
        let harness = Harness::of(4);
        let run = harness.run(&[], Stage::Score, "round_robin");
        assert_eq!(run.scores(), [1.0, 0.75, 0.5, 0.25]);
        run.chosen(1);
        assert_eq!(run.scores(), [0.5, 0.25, 1.0, 0.75]);
        run.chosen(3);
        assert_eq!(run.scores(), [1.0, 0.75, 0.5, 0.25]);
    }
}
