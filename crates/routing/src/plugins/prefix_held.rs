//! `prefix_held`: keeps pods that hold enough of the prompt, unless they are overloaded.
//!
//! Stickiness as a filter: the scorers choose among the warm pods only. With `lead_tokens` all pods
//! pass once the warm ones have that much more prefill pending than the others, so that a popular
//! prefix spreads to more pods instead of overloading one.

use wornpath_yaml::{Parameter, Takes};

use crate::fleet::Candidate;
use crate::plugin::{Assembly, AssemblyRefused, Make, Plugin};
use crate::stage::{Decision, Filter, HeldDepth, WhenEmpty};

pub(crate) const PLUGIN: Plugin = Plugin {
    name: "prefix_held",
    summary: "Keeps pods that hold at least a share of the prompt. Skips itself if no pod passes, and marks the plan.",
    parameters: &[
        Parameter::with_default(
            "share",
            Takes::Number(0.0, 1.0),
            "0.8",
            "The share of the prompt's blocks that a pod must hold.",
        ),
        Parameter::optional(
            "lead_tokens",
            Takes::Whole(0, u64::MAX),
            "Keep all pods when the least busy pod with that share has this many more prompt tokens pending than the \
             least busy pod without it.",
        ),
    ],
    needs: &[],
    conflicts: &[],
    example: "prefix_held: {share: 0.8, lead_tokens: 200000}",
    make: Make::Filter(make),
};

struct PrefixHeld {
    held: HeldDepth,
    share: f64,
    lead_tokens: Option<u64>,
}

fn make(assembly: &mut Assembly<'_>) -> Result<Box<dyn Filter>, AssemblyRefused> {
    Ok(Box::new(PrefixHeld {
        held: assembly.held(),
        share: assembly.get("share"),
        lead_tokens: assembly.maybe("lead_tokens"),
    }))
}

impl Filter for PrefixHeld {
    fn keep(&self, decision: &Decision<'_>, candidates: &[Candidate], keep: &mut [bool]) {
        let Some(held) = decision.held(&self.held) else { return };
        let mut warm = u64::MAX;
        let mut cold = u64::MAX;
        for (candidate, keep) in candidates.iter().zip(keep.iter_mut()) {
            let pod = decision.pod(*candidate);
            *keep = held.depth(pod) > 0 && held.share(pod) >= self.share;
            let least = if *keep { &mut warm } else { &mut cold };
            *least = (*least).min(pod.state().prefill_tokens());
        }
        let saturated = self.lead_tokens.is_some_and(|lead| warm > cold.saturating_add(lead));
        if saturated && warm != u64::MAX {
            keep.fill(true);
        }
    }

    fn why(&self, decision: &Decision<'_>, candidate: Candidate) -> String {
        let held = decision.held(&self.held);
        let share = held.map_or(0.0, |held| held.share(decision.pod(candidate)));
        format!("holds {:.0}% of the prompt, needs {:.0}%", share * 100.0, self.share * 100.0)
    }

    fn when_empty(&self) -> WhenEmpty {
        WhenEmpty::Skip
    }
}

#[cfg(test)]
mod tests {
    use crate::fleet::Reservation;
    use crate::plugins::harness::Harness;
    use crate::stage::Stage;

    const PREPARE: [&str; 2] = ["tokenize", "block_hash"];

    fn harness() -> Harness {
        let tokens: Vec<u32> = (0..20).collect();
        Harness::of(3).prompt(&tokens).holding(0, 8).holding(1, 7)
    }

    #[test]
    fn only_pods_that_hold_enough_are_kept() {
        let harness = harness();
        let run = harness.run(&PREPARE, Stage::Filter, "prefix_held: {share: 0.8}");
        assert_eq!(run.kept(), [0]);
        assert_eq!(run.why(1), "holds 70% of the prompt, needs 80%");
        let any = harness.run(&PREPARE, Stage::Filter, "prefix_held: {share: 0}");
        assert_eq!(any.kept(), [0, 1], "a pod that holds no block is never warm");
    }

    #[test]
    fn all_pods_are_kept_once_the_warm_ones_are_overloaded() {
        let harness = harness();
        let yaml = "prefix_held: {share: 0.8, lead_tokens: 100}";
        let run = harness.run(&PREPARE, Stage::Filter, yaml);
        let _some = Reservation::new(harness.pod_state(0), 100, 100);
        assert_eq!(run.kept(), [0]);
        let _more = Reservation::new(harness.pod_state(0), 1, 1);
        assert_eq!(run.kept(), [0, 1, 2]);
        let _elsewhere = [1, 2].map(|pod| Reservation::new(harness.pod_state(pod), 1, 1));
        assert_eq!(run.kept(), [0]);
    }

    #[test]
    fn without_a_warm_pod_no_pod_is_kept() {
        let harness = Harness::of(2).prompt(&[1, 2, 3, 4]);
        let yaml = "prefix_held: {lead_tokens: 0}";
        let run = harness.run(&PREPARE, Stage::Filter, yaml);
        assert!(run.kept().is_empty());
    }
}
