//! `queue_depth`: the fewer requests wait inside the engine, the better.

use crate::fleet::Candidate;
use crate::plugin::{Assembly, AssemblyRefused, Make, Plugin};
use crate::stage::{Decision, Scale, Score};

pub(crate) const PLUGIN: Plugin = Plugin {
    name: "queue_depth",
    summary: "1 for the candidates with the fewest requests waiting in the engine, 0 for those with the most, \
              1 for all if there is no difference.",
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

    fn score(&self, scene: &Decision<'_>, candidates: &[Candidate], scores: &mut [f64]) {
        let (mut least, mut most) = (f64::INFINITY, 0.0_f64);
        for (candidate, score) in candidates.iter().zip(scores.iter_mut()) {
            *score = f64::from(scene.pod(*candidate).vitals().waiting());
            (least, most) = (least.min(*score), most.max(*score));
        }
        let range = most - least;
        for score in scores {
            *score = if range > 0.0 { (most - *score) / range } else { 1.0 };
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::plugins::harness::Harness;
    use crate::stage::Stage;

    #[test]
    fn the_shortest_queue_scores_one_and_the_longest_zero() {
        let rehearsal = Harness::of(3);
        let played = rehearsal.play(&[], Stage::Score, "queue_depth");
        assert_eq!(played.scores(), [1.0, 1.0, 1.0]);
        for (pod, waiting) in [4, 2, 6].into_iter().enumerate() {
            rehearsal.vitals(pod).report(waiting, 0.0);
        }
        assert_eq!(played.scores(), [0.5, 1.0, 0.0]);
    }
}
