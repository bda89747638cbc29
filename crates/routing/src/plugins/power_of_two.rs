//! `power_of_two`: power of two choices, the better of two random candidates.
//!
//! Routers that see the same stale figures do not all pick the same pod, and the worst candidate is
//! never picked.

use super::weighted_choice::two_distinct;
use crate::plugin::{Assembly, AssemblyRefused, Make, Plugin};
use crate::rng::Rng;
use crate::stage::{CandidateSet, Choice, Decision, Pick};

pub(crate) const PLUGIN: Plugin = Plugin {
    name: "power_of_two",
    summary: "Power of two choices: the better of two random candidates.",
    parameters: &[],
    needs: &[],
    conflicts: &[],
    example: "power_of_two",
    make: Make::Pick(make),
};

struct PowerOfTwo;

fn make(_: &mut Assembly<'_>) -> Result<Box<dyn Pick>, AssemblyRefused> {
    Ok(Box::new(PowerOfTwo))
}

impl Pick for PowerOfTwo {
    fn pick(&self, _: &Decision<'_>, set: CandidateSet<'_>, rng: &mut Rng) -> Choice {
        let (one, other) = two_distinct(set.candidates.len(), rng);
        (if set.totals[other] > set.totals[one] { other } else { one }).into()
    }
}

#[cfg(test)]
mod tests {
    use crate::plugins::harness::Harness;
    use crate::rng::Rng;
    use crate::stage::Stage;

    #[test]
    fn the_worst_is_never_picked_and_better_ones_more_often() {
        let harness = Harness::of(4);
        let run = harness.run(&[], Stage::Pick, "power_of_two");
        let mut rng = Rng::new(4);
        let mut picked = [0_u32; 4];
        for _ in 0..6000 {
            picked[run.pick(&[(0, 0.4), (1, 0.1), (2, 0.3), (3, 0.2)], &mut rng).0] += 1;
        }
        // Of six pairs, the best wins three, the second two, the third one.
        assert_eq!(picked[1], 0);
        for (pod, expected) in [(0, 3000), (2, 2000), (3, 1000)] {
            assert!(picked[pod].abs_diff(expected) < 150, "{picked:?}");
        }
        assert_eq!(run.pick(&[(2, 0.0)], &mut rng).0, 2);
    }
}
