//! `power_of_two`: the better of two candidates drawn at random.
//!
//! Two choices avoid the herd: routers that see the same stale figures do not all pick the same pod.

use super::weighted_choice::two_of;
use crate::plugin::{Assembly, AssemblyRefused, Make, Plugin};
use crate::rng::Rng;
use crate::stage::{CandidateSet, Choice, Decision, Pick};

pub(crate) const PLUGIN: Plugin = Plugin {
    name: "power_of_two",
    summary: "The better of two candidates drawn at random.",
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
    fn pick(&self, _: &Decision<'_>, slate: CandidateSet<'_>, rng: &mut Rng) -> Choice {
        let (one, other) = two_of(slate.candidates.len(), rng);
        (if slate.totals[other] > slate.totals[one] { other } else { one }).into()
    }
}

#[cfg(test)]
mod tests {
    use crate::plugins::harness::Harness;
    use crate::rng::Rng;
    use crate::stage::Stage;

    #[test]
    fn the_worst_is_never_picked_and_the_others_are_by_rank() {
        let rehearsal = Harness::of(4);
        let played = rehearsal.play(&[], Stage::Pick, "power_of_two");
        let (mut rng, mut picked) = (Rng::new(4), [0_u32; 4]);
        for _ in 0..6000 {
            picked[played.pick(&[(0, 0.4), (1, 0.1), (2, 0.3), (3, 0.2)], &mut rng).0] += 1;
        }
        // Of six pairs, the best wins three, the second two, the third one.
        assert_eq!(picked[1], 0);
        for (pod, expected) in [(0, 3000), (2, 2000), (3, 1000)] {
            assert!(picked[pod].abs_diff(expected) < 150, "{picked:?}");
        }
        assert_eq!(played.pick(&[(2, 0.0)], &mut rng).0, 2);
    }
}
