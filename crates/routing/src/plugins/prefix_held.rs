//! `prefix_held`: keeps the pods that hold enough of the prompt, unless they are too far behind.
//!
//! Stickiness as a filter: the scorers after it choose among the warm pods only. With `lead_tokens`
//! it lets go when the warm pods have that much more prefill pending than the others, so that a
//! popular prefix spreads instead of melting one pod.

use wornpath_yaml::{Parameter, Takes};

use crate::fleet::Candidate;
use crate::plugin::{Assembly, AssemblyRefused, Make, Plugin};
use crate::stage::{Decision, Filter, HeldDepth, WhenEmpty};

pub(crate) const PLUGIN: Plugin = Plugin {
    name: "prefix_held",
    summary: "Keeps pods that hold at least a share of the prompt. If there is none the filter does not \
              count, and the plan says so.",
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
            "Keep everybody when the least busy pod that holds it has this many more prompt tokens to \
             compute than the least busy one that does not.",
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
    fn keep(&self, scene: &Decision<'_>, candidates: &[Candidate], keep: &mut [bool]) {
        let Some(held) = scene.held(&self.held) else { return };
        let (mut warm, mut cold) = (u64::MAX, u64::MAX);
        for (candidate, keep) in candidates.iter().zip(keep.iter_mut()) {
            let pod = scene.pod(*candidate);
            *keep = held.depth(pod) > 0 && held.share(pod) >= self.share;
            let side = if *keep { &mut warm } else { &mut cold };
            *side = (*side).min(pod.vitals().prefill_tokens());
        }
        let saturated = self.lead_tokens.is_some_and(|lead| warm > cold.saturating_add(lead));
        if saturated && warm != u64::MAX {
            keep.fill(true);
        }
    }

    fn why(&self, scene: &Decision<'_>, candidate: Candidate) -> String {
        let held = scene.held(&self.held);
        let share = held.map_or(0.0, |held| held.share(scene.pod(candidate)));
        format!("holds {:.0}% of the prompt, {:.0}% is asked", share * 100.0, self.share * 100.0)
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

    fn rehearsal() -> Harness {
        let tokens: Vec<u32> = (0..20).collect();
        Harness::of(3).prompt(&tokens).holding(0, 8).holding(1, 7)
    }

    #[test]
    fn only_pods_that_hold_enough_are_kept() {
        let rehearsal = rehearsal();
        let played = rehearsal.play(&PREPARE, Stage::Filter, "prefix_held: {share: 0.8}");
        assert_eq!(played.kept(), [0]);
        assert_eq!(played.why(1), "holds 70% of the prompt, 80% is asked");
        let any = rehearsal.play(&PREPARE, Stage::Filter, "prefix_held: {share: 0}");
        assert_eq!(any.kept(), [0, 1], "nothing is not a share of the prompt");
    }

    #[test]
    fn the_warm_pods_are_let_go_once_they_are_too_far_behind() {
        let rehearsal = rehearsal();
        let yaml = "prefix_held: {share: 0.8, lead_tokens: 100}";
        let played = rehearsal.play(&PREPARE, Stage::Filter, yaml);
        let _some = Reservation::new(rehearsal.vitals(0), 100, 100);
        assert_eq!(played.kept(), [0]);
        let _more = Reservation::new(rehearsal.vitals(0), 1, 1);
        assert_eq!(played.kept(), [0, 1, 2]);
        let _elsewhere = [1, 2].map(|pod| Reservation::new(rehearsal.vitals(pod), 1, 1));
        assert_eq!(played.kept(), [0]);
    }

    #[test]
    fn when_nobody_holds_it_nobody_is_kept_and_the_profile_goes_on_without() {
        let rehearsal = Harness::of(2).prompt(&[1, 2, 3, 4]);
        let yaml = "prefix_held: {lead_tokens: 0}";
        let played = rehearsal.play(&PREPARE, Stage::Filter, yaml);
        assert!(played.kept().is_empty());
    }
}
