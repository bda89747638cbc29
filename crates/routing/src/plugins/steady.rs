//! `steady`: outlier ejection. Drops pods whose time to first token stays far above the median.
//!
//! A pod that is slow for a moment is busy, and load scores move requests away from it. A pod that
//! stays slow whatever it is sent has a fault: a throttled GPU, a noisy neighbour. It is ejected
//! for a pause; then one response shows whether it has recovered. At most half of the candidates
//! are ejected, and none when fewer than three pods have been measured: if most pods are slow, slow
//! is normal.

use std::time::Duration;

use wornpath_yaml::{Parameter, Takes};

use crate::fleet::Candidate;
use crate::plugin::{Assembly, AssemblyRefused, Make, Plugin};
use crate::stage::{Decision, Filter, WhenEmpty};

pub(crate) const PLUGIN: Plugin = Plugin {
    name: "steady",
    summary: "Ejects outliers: drops pods whose time to first token per uncached token stays far above the median. Drops \
              at most half of the pods, and none while fewer than three have been measured.",
    parameters: &[
        Parameter::with_default(
            "factor",
            Takes::Number(1.5, 1000.0),
            "4",
            "How many times the median makes a pod an outlier.",
        ),
        Parameter::with_default(
            "answers",
            Takes::Whole(1, 255),
            "16",
            "How many responses of a pod must have been measured.",
        ),
        Parameter::with_default(
            "pause",
            Takes::Time,
            "10s",
            "How long an ejected pod gets no request before it is tried again.",
        ),
    ],
    needs: &[],
    conflicts: &[],
    example: "steady: {factor: 4, pause: 10s}",
    make: Make::Filter(make),
};

/// The median is taken of the first so many measured candidates.
const MAX_SAMPLES: usize = 64;
/// Without so many measured pods there is no median.
const MIN_SAMPLES: usize = 3;

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
    /// Milliseconds to the first token per uncached token, once enough responses were measured.
    fn pace(&self, decision: &Decision<'_>, candidate: Candidate) -> Option<f64> {
        let pod_state = decision.pod(candidate).state();
        pod_state
            .ms_per_token()
            .filter(|(_, answers)| *answers >= self.answers)
            .map(|(pace, _)| pace)
    }

    fn median(&self, decision: &Decision<'_>, candidates: &[Candidate]) -> Option<f64> {
        let mut paces = [0.0; MAX_SAMPLES];
        let mut known = 0;
        for pace in candidates.iter().filter_map(|candidate| self.pace(decision, *candidate)) {
            if known < MAX_SAMPLES {
                paces[known] = pace;
                known += 1;
            }
        }
        let paces = &mut paces[..known];
        paces.sort_unstable_by(f64::total_cmp);
        (known >= MIN_SAMPLES).then(|| paces[known / 2])
    }
}

impl Filter for Steady {
    fn keep(&self, decision: &Decision<'_>, candidates: &[Candidate], keep: &mut [bool]) {
        let Some(median) = self.median(decision, candidates) else { return };
        let mut may_eject = candidates.len() / 2;
        for (candidate, keep) in candidates.iter().zip(keep) {
            let is_outlier =
                self.pace(decision, *candidate).is_some_and(|pace| pace > median * self.factor);
            let is_paused =
                decision.pod(*candidate).state().since_last_sample(decision.now()) < self.pause;
            if is_outlier && is_paused && may_eject > 0 {
                *keep = false;
                may_eject -= 1;
            }
        }
    }

    fn why(&self, decision: &Decision<'_>, candidate: Candidate) -> String {
        let pace = self.pace(decision, candidate).unwrap_or_default();
        format!(
            "outlier: {pace:.3} ms to first token per uncached token, more than {} times the median",
            self.factor
        )
    }

    fn when_empty(&self) -> WhenEmpty {
        WhenEmpty::Skip
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use crate::fleet::PodState;
    use crate::plugins::harness::Harness;
    use crate::stage::Stage;
    use wornpath_index::Moment;

    const YAML: &str = "steady: {factor: 4, answers: 4, pause: 1s}";

    fn measure(pod_state: &PodState, each: f64, now: Moment) {
        (0..40).for_each(|_| pod_state.add_sample(each, now));
    }

    /// A fleet whose pods were just measured with these paces.
    fn paced(paces: &[f64]) -> Harness {
        let harness = Harness::of(paces.len());
        for (at, pace) in paces.iter().enumerate() {
            measure(harness.pod_state(at), *pace, harness.now);
        }
        harness
    }

    #[test]
    fn a_pod_that_stays_far_above_the_median_is_ejected() {
        let harness = paced(&[1.0, 1.2, 9.0, 0.9]);
        let run = harness.run(&[], Stage::Filter, YAML);
        assert_eq!(run.kept(), [0, 1, 3]);
        assert_eq!(
            run.why(2),
            "outlier: 9.000 ms to first token per uncached token, more than 4 times the median"
        );
    }

    #[test]
    fn an_ejected_pod_is_tried_again_after_the_pause() {
        let mut harness = paced(&[1.0, 1.0, 9.0]);
        harness.now += Duration::from_millis(999);
        assert_eq!(harness.run(&[], Stage::Filter, YAML).kept(), [0, 1]);
        harness.now += Duration::from_millis(1);
        assert_eq!(harness.run(&[], Stage::Filter, YAML).kept(), [0, 1, 2]);
    }

    #[test]
    fn few_responses_or_few_pods_eject_no_pod() {
        let harness = paced(&[1.0, 9.0]);
        assert_eq!(harness.run(&[], Stage::Filter, YAML).kept(), [0, 1]);
        let harness = Harness::of(4);
        (0..3).for_each(|at| measure(harness.pod_state(at), 1.0, harness.now));
        (0..3).for_each(|_| harness.pod_state(3).add_sample(90.0, harness.now));
        assert_eq!(harness.run(&[], Stage::Filter, YAML).kept(), [0, 1, 2, 3]);
    }

    #[test]
    fn at_most_half_are_ejected_and_none_if_most_are_slow() {
        let kept = |paces: &[f64]| paced(paces).run(&[], Stage::Filter, YAML).kept();
        assert_eq!(kept(&[90.0, 1.0, 1.0, 90.0, 1.0]), [1, 2, 4]);
        assert_eq!(kept(&[90.0, 1.0, 90.0, 90.0, 1.0]), [0, 1, 2, 3, 4]);
    }
}
