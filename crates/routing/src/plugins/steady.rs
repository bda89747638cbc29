//! `steady`: outlier ejection, a circuit breaker on latency. Drops pods that stay far slower than
//! others of their kind.
//!
//! A pod that is slow for a moment is busy, and load scores move requests away from it. A pod that
//! stays slow whatever it is sent has a fault: a throttled GPU, a noisy neighbour. How slow it is
//! follows from its [answers](crate::fleet): the time that each took over the time that its engine's
//! published speed gives for all work that the pod may have done meanwhile. So neither a long prompt
//! nor load counts as slowness, and an engine that is slower than its profile says, as all its kind
//! are, is not slower than the median.
//!
//! Few answers prove a great slowness, a small one needs many: the logarithm counts as if some
//! earlier answers had been as fast as the median's. A pod that is ejected gets one request at a time
//! after each pause, and its answer shows whether it has recovered; the pause doubles while it has
//! not. At most half of a kind is ejected: if most pods are slow, slow is normal.
//!
//! Pods of different engines, models or memory are not compared. The limit: pods whose KV cache size
//! is unknown and whose engine is not named are all of one kind.

use std::time::Duration;

use wornpath_yaml::{Parameter, Takes};

use crate::fleet::Candidate;
use crate::plugin::{Assembly, AssemblyRefused, Make, Plugin};
use crate::stage::{Decision, Filter, WhenEmpty};

pub(crate) const PLUGIN: Plugin = Plugin {
    name: "steady",
    summary: "Ejects outliers: drops pods whose answers take far longer than the median of their kind, for the same work. \
              Drops at most half of the pods of a kind.",
    parameters: &[
        Parameter::with_default(
            "factor",
            Takes::Number(1.5, 1000.0),
            "3",
            "How many times the median makes a pod an outlier.",
        ),
        Parameter::with_default(
            "answers",
            Takes::Whole(1, 255),
            "1",
            "After how many responses a pod is ejected that is `factor` times `factor` as slow as the median. A slower one \
             is ejected sooner, a faster one later.",
        ),
        Parameter::with_default(
            "pause",
            Takes::Time,
            "10s",
            "How long an ejected pod gets no request before one is sent to try it: twice as long each time that it is as slow as \
             before, up to 16 times.",
        ),
    ],
    needs: &[],
    conflicts: &[],
    example: "steady: {factor: 4, pause: 10s}",
    make: Make::Filter(make),
};

/// The median is taken of the first so many measured candidates of a kind.
const MAX_SAMPLES: usize = 64;
/// Without so many measured pods there is no median.
const MIN_SAMPLES: usize = 2;

struct Steady {
    factor_log2: f64,
    /// As many answers as the median's are assumed of each pod.
    assumed: f64,
    pause: Duration,
}

fn make(assembly: &mut Assembly<'_>) -> Result<Box<dyn Filter>, AssemblyRefused> {
    Ok(Box::new(Steady {
        factor_log2: assembly.get::<f64>("factor").log2(),
        assumed: f64::from(assembly.get::<u32>("answers")),
        pause: assembly.get("pause"),
    }))
}

fn slowness(decision: &Decision<'_>, candidate: Candidate) -> Option<(f64, u32)> {
    decision.pod(candidate).state().slowness_log2()
}

/// The lower median of the slowness of a kind's pods.
fn median(decision: &Decision<'_>, candidates: &[Candidate], kind: usize) -> Option<f64> {
    let mut all = [0.0; MAX_SAMPLES];
    let mut known = 0;
    let of_kind = candidates.iter().filter(|at| decision.fleet().kind(**at) == kind);
    for (slowness, _) in of_kind.filter_map(|at| slowness(decision, *at)).take(MAX_SAMPLES) {
        all[known] = slowness;
        known += 1;
    }
    let all = &mut all[..known];
    all.sort_unstable_by(f64::total_cmp);
    (known >= MIN_SAMPLES).then(|| all[(known - 1) / 2])
}

impl Steady {
    /// Whether any pod is so much slower than another that there may be an outlier: one pass for the
    /// usual case.
    fn may_have_outliers(&self, decision: &Decision<'_>, candidates: &[Candidate]) -> bool {
        let mut least = f64::INFINITY;
        let mut most = f64::NEG_INFINITY;
        for (slowness, _) in candidates.iter().filter_map(|at| slowness(decision, *at)) {
            least = least.min(slowness);
            most = most.max(slowness);
        }
        most - least > self.factor_log2
    }

    /// Whether a pod is far slower than the median, as far as its answers prove it.
    fn is_outlier(&self, decision: &Decision<'_>, candidate: Candidate, median: f64) -> bool {
        let Some((slowness, answers)) = slowness(decision, candidate) else { return false };
        let answers = f64::from(answers);
        (slowness - median) * answers / (answers + self.assumed) > self.factor_log2
    }

    /// Whether an outlier may get a request that shows if it has recovered.
    fn may_try(&self, decision: &Decision<'_>, candidate: Candidate) -> bool {
        decision.pod(candidate).state().has_paused(self.pause, decision.now())
    }

    fn eject(
        &self,
        decision: &Decision<'_>,
        candidates: &[Candidate],
        kind: usize,
        keep: &mut [bool],
    ) {
        let Some(median) = median(decision, candidates, kind) else { return };
        let is_of_kind = |at: &Candidate| decision.fleet().kind(*at) == kind;
        let mut may_eject = candidates.iter().filter(|at| is_of_kind(at)).count() / 2;
        for (candidate, keep) in candidates.iter().zip(keep) {
            if may_eject > 0
                && is_of_kind(candidate)
                && self.is_outlier(decision, *candidate, median)
                && !self.may_try(decision, *candidate)
            {
                *keep = false;
                may_eject -= 1;
            }
        }
    }
}

impl Filter for Steady {
    fn keep(&self, decision: &Decision<'_>, candidates: &[Candidate], keep: &mut [bool]) {
        if !self.may_have_outliers(decision, candidates) {
            return;
        }
        for kind in 0..decision.fleet().kinds().len() {
            self.eject(decision, candidates, kind, keep);
        }
    }

    fn why(&self, decision: &Decision<'_>, candidate: Candidate) -> String {
        let times = |log2: f64| format!("{:.1}", log2.exp2());
        let fleet = decision.fleet();
        let all = fleet.with_role(decision.role());
        let own = slowness(decision, candidate).map_or(0.0, |(slowness, _)| slowness);
        let median = median(decision, all, fleet.kind(candidate)).unwrap_or(own);
        format!(
            "outlier: its answers take {} times as long as the median of its kind; more than {} is too slow",
            times(own - median),
            times(self.factor_log2)
        )
    }

    fn when_empty(&self) -> WhenEmpty {
        WhenEmpty::Skip
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use crate::fleet::{PodFacts, PodState, Reservation};
    use crate::plugins::harness::Harness;
    use crate::stage::Stage;
    use wornpath_index::Moment;

    const YAML: &str = "steady: {factor: 4, answers: 2, pause: 1s}";

    fn measure(pod_state: &PodState, times: f64, answers: usize, now: Moment) {
        (0..answers).for_each(|_| pod_state.add_sample(times, 1.0, now));
    }

    /// A fleet whose pods just gave so many answers, so many times slower than the published speed.
    fn measured(pods: &[(f64, usize)]) -> Harness {
        let harness = Harness::of(pods.len());
        for (at, (times, answers)) in pods.iter().enumerate() {
            measure(harness.pod_state(at), *times, *answers, harness.now);
        }
        harness
    }

    fn kept(pods: &[(f64, usize)]) -> Vec<usize> {
        measured(pods).run(&[], Stage::Filter, YAML).kept()
    }

    #[test]
    fn a_pod_that_stays_far_above_the_median_is_ejected() {
        let harness = measured(&[(1.0, 40), (1.2, 40), (9.0, 40), (0.9, 40)]);
        let run = harness.run(&[], Stage::Filter, YAML);
        assert_eq!(run.kept(), [0, 1, 3]);
        assert_eq!(
            run.why(2),
            "outlier: its answers take 9.0 times as long as the median of its kind; more than 4.0 is too slow"
        );
    }

    #[test]
    fn a_very_slow_pod_is_ejected_after_few_answers_and_a_somewhat_slow_one_after_many() {
        let with = |times: f64, answers: usize| {
            kept(&[(1.0, 40), (1.0, 40), (times, answers)]).contains(&2)
        };
        assert!(with(20.0, 1) && !with(20.0, 2));
        assert!(with(16.0, 2) && !with(16.0, 3));
        assert!(with(6.0, 6) && !with(6.0, 8));
        assert!(with(3.9, 255), "never");
        assert!(with(1.0 / 20.0, 40), "a faster one is no outlier");
    }

    #[test]
    fn an_ejected_pod_gets_one_request_at_a_time_after_the_pause_until_it_has_recovered() {
        let mut harness = measured(&[(1.0, 40), (1.0, 40), (20.0, 40)]);
        let kept = |harness: &Harness| harness.run(&[], Stage::Filter, YAML).kept().contains(&2);
        harness.now += Duration::from_millis(999);
        assert!(!kept(&harness));
        harness.now += Duration::from_millis(1);
        assert!(kept(&harness));
        let trial = Reservation::new(harness.pod_state(2), 10, 10);
        assert!(!kept(&harness), "one is enough");
        drop(trial);
        harness.now += Duration::from_secs(6);
        measure(harness.pod_state(2), 1.0, 1, harness.now);
        assert!(!kept(&harness), "one answer may be luck");
        harness.now += Duration::from_secs(6);
        measure(harness.pod_state(2), 1.0, 1, harness.now);
        assert!(kept(&harness));
    }

    #[test]
    fn few_pods_eject_no_pod_and_at_most_half_are_ejected() {
        assert_eq!(kept(&[(20.0, 40)]), [0]);
        assert_eq!(kept(&[(1.0, 40), (20.0, 40)]), [0]);
        assert_eq!(kept(&[(1.0, 0), (20.0, 40), (1.0, 0)]), [0, 1, 2], "no other was measured");
        let [fast, slow] = [(1.0, 40), (90.0, 40)];
        assert_eq!(kept(&[slow, fast, fast, slow, fast]), [1, 2, 4]);
        assert_eq!(kept(&[slow, fast, slow, slow, fast]), [0, 1, 2, 3, 4], "slow is normal");
    }

    #[test]
    fn pods_are_compared_with_those_of_their_kind() {
        let facts = |name: &str, engine: &str| PodFacts {
            engine: Some(engine.into()),
            ..PodFacts::serving(name, "m")
        };
        let pods = [("a", "8b-h200"), ("b", "8b-h200"), ("c", "70b-h100x4"), ("d", "70b-h100x4")];
        let harness = Harness::with(pods.map(|(name, engine)| facts(name, engine)).to_vec());
        for (at, times) in [1.0, 1.0, 9.0, 9.0].into_iter().enumerate() {
            measure(harness.pod_state(at), times, 40, harness.now);
        }
        let kept = || harness.run(&[], Stage::Filter, YAML).kept();
        assert_eq!(kept(), [0, 1, 2, 3]);
        measure(harness.pod_state(3), 90.0, 40, harness.now);
        assert_eq!(kept(), [0, 1, 2]);
    }
}
