//! `round_robin` as a scorer: whoever was chosen longest ago is best, for breaking ties in turn.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use crate::fleet::Candidate;
use crate::plugin::{Assembly, AssemblyRefused, Make, Plugin};
use crate::stage::{Decision, Scale, Score};

pub(crate) const PLUGIN: Plugin = Plugin {
    name: "round_robin",
    summary: "1 for the candidate whose turn it is, falling evenly to near 0 for the one chosen last.",
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

    fn score(&self, scene: &Decision<'_>, candidates: &[Candidate], scores: &mut [f64]) {
        let (next, all) = (self.next.load(Relaxed), scene.fleet().pods().len());
        for (candidate, score) in candidates.iter().zip(scores) {
            let position = candidate.position();
            // How many pods of the fleet have their turn before this one.
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
    fn the_best_score_goes_round() {
        let rehearsal = Harness::of(4);
        let played = rehearsal.play(&[], Stage::Score, "round_robin");
        assert_eq!(played.scores(), [1.0, 0.75, 0.5, 0.25]);
        played.chosen(1);
        assert_eq!(played.scores(), [0.5, 0.25, 1.0, 0.75]);
        played.chosen(3);
        assert_eq!(played.scores(), [1.0, 0.75, 0.5, 0.25]);
    }
}
