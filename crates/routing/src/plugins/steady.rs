//! `steady`: drops pods whose answers have for a while begun much later than those of the others.
//!
//! A pod that is slow is busy, and load scores move requests away from it. A pod that stays slow whatever it
//! is sent has something wrong with it: a throttled GPU, a noisy neighbour. It gets nothing for a pause, then
//! one answer shows whether it is still so. At most half of the candidates are dropped, and never on the word
//! of fewer than three pods: if most are slow, slow is normal.

use std::time::Duration;

use wornpath_yaml::{Parameter, Takes};

use crate::fleet::Candidate;
use crate::plugin::{Assembly, AssemblyRefused, Make, Plugin};
use crate::stage::{Decision, Filter, WhenEmpty};

pub(crate) const PLUGIN: Plugin = Plugin {
    name: "steady",
    summary: "Drops pods whose answers have for a while begun much later, for as many uncached tokens, than the \
              median pod's; never more than half of them, and never by fewer than three that are known.",
    parameters: &[
        Parameter::with_default(
            "factor",
            Takes::Number(1.5, 1000.0),
            "4",
            "How many times the median is too late.",
        ),
        Parameter::with_default(
            "answers",
            Takes::Whole(1, 255),
            "16",
            "How many answers of a pod are needed to judge it.",
        ),
        Parameter::with_default(
            "pause",
            Takes::Time,
            "10s",
            "How long it gets nothing before it may try again.",
        ),
    ],
    needs: &[],
    conflicts: &[],
    example: "steady: {factor: 4, pause: 10s}",
    make: Make::Filter(make),
};

/// Paces that a median is taken of; more candidates than that are judged by the first so many.
const MOST: usize = 64;
/// Pods that must be known.
const LEAST: usize = 3;

struct Steady {
    factor: f64,
    answers: u32,
    pause: Duration,
}

fn make(assembly: &mut Assembly<'_>) -> Result<Box<dyn Filter>, AssemblyRefused> {
    Ok(Box::new(Steady {
        factor: assembly.get("factor"),
        answers: assembly.get("answers"),
        pause: assembly.get("pause"),
    }))
}

impl Steady {
    fn pace(&self, scene: &Decision<'_>, candidate: Candidate) -> Option<f64> {
        let vitals = scene.pod(candidate).vitals();
        vitals.pace().filter(|(_, answers)| *answers >= self.answers).map(|(pace, _)| pace)
    }

    fn median(&self, scene: &Decision<'_>, candidates: &[Candidate]) -> Option<f64> {
        let (mut paces, mut known) = ([0.0; MOST], 0);
        for pace in candidates.iter().filter_map(|candidate| self.pace(scene, *candidate)) {
            if known < MOST {
                paces[known] = pace;
                known += 1;
            }
        }
        let paces = &mut paces[..known];
        paces.sort_unstable_by(f64::total_cmp);
        (known >= LEAST).then(|| paces[known / 2])
    }
}

impl Filter for Steady {
    fn keep(&self, scene: &Decision<'_>, candidates: &[Candidate], keep: &mut [bool]) {
        let Some(median) = self.median(scene, candidates) else { return };
        let mut may_go = candidates.len() / 2;
        for (candidate, keep) in candidates.iter().zip(keep) {
            let is_late =
                self.pace(scene, *candidate).is_some_and(|pace| pace > median * self.factor);
            let rests = scene.pod(*candidate).vitals().since_paced(scene.now()) < self.pause;
            if is_late && rests && may_go > 0 {
                *keep = false;
                may_go -= 1;
            }
        }
    }

    fn why(&self, scene: &Decision<'_>, candidate: Candidate) -> String {
        let pace = self.pace(scene, candidate).unwrap_or_default();
        format!("takes {pace:.3} ms for a token, more than {} times the median", self.factor)
    }

    fn when_empty(&self) -> WhenEmpty {
        WhenEmpty::Skip
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use crate::fleet::Vitals;
    use crate::plugins::harness::Harness;
    use crate::stage::Stage;

    const YAML: &str = "steady: {factor: 4, answers: 4, pause: 1s}";

    fn answers(vitals: &Vitals, each: f64, now: Duration) {
        (0..40).for_each(|_| vitals.paced(each, now));
    }

    /// Pods with these paces, which they had a moment ago.
    fn paced(paces: &[f64]) -> Harness {
        let rehearsal = Harness::of(paces.len());
        for (at, pace) in paces.iter().enumerate() {
            answers(rehearsal.vitals(at), *pace, rehearsal.now);
        }
        rehearsal
    }

    #[test]
    fn a_pod_that_stays_far_behind_the_others_is_left_alone_for_a_pause() {
        let rehearsal = paced(&[1.0, 1.2, 9.0, 0.9]);
        let played = rehearsal.play(&[], Stage::Filter, YAML);
        assert_eq!(played.kept(), [0, 1, 3]);
        assert_eq!(played.why(2), "takes 9.000 ms for a token, more than 4 times the median");
    }

    #[test]
    fn after_the_pause_it_may_try_again() {
        let mut rehearsal = paced(&[1.0, 1.0, 9.0]);
        rehearsal.now += Duration::from_millis(999);
        assert_eq!(rehearsal.play(&[], Stage::Filter, YAML).kept(), [0, 1]);
        rehearsal.now += Duration::from_millis(1);
        assert_eq!(rehearsal.play(&[], Stage::Filter, YAML).kept(), [0, 1, 2]);
    }

    #[test]
    fn neither_a_few_answers_nor_a_few_pods_condemn_anybody() {
        let rehearsal = paced(&[1.0, 9.0]);
        assert_eq!(rehearsal.play(&[], Stage::Filter, YAML).kept(), [0, 1]);
        let rehearsal = Harness::of(4);
        (0..3).for_each(|at| answers(rehearsal.vitals(at), 1.0, rehearsal.now));
        (0..3).for_each(|_| rehearsal.vitals(3).paced(90.0, rehearsal.now));
        assert_eq!(rehearsal.play(&[], Stage::Filter, YAML).kept(), [0, 1, 2, 3]);
    }

    #[test]
    fn if_most_are_slow_slow_is_normal_and_at_most_half_are_dropped() {
        let kept = |paces: &[f64]| paced(paces).play(&[], Stage::Filter, YAML).kept();
        assert_eq!(kept(&[90.0, 1.0, 1.0, 90.0, 1.0]), [1, 2, 4]);
        assert_eq!(kept(&[90.0, 1.0, 90.0, 90.0, 1.0]), [0, 1, 2, 3, 4]);
    }
}
