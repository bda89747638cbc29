//! `max_score`: the best total; among equals, one at random.

use crate::plugin::{Assembly, AssemblyRefused, Make, Plugin};
use crate::rng::Rng;
use crate::stage::{CandidateSet, Choice, Decision, Pick};

pub(crate) const PLUGIN: Plugin = Plugin {
    name: "max_score",
    summary: "The candidate with the best total; among equals, one at random.",
    parameters: &[],
    needs: &[],
    conflicts: &[],
    example: "max_score",
    make: Make::Pick(make),
};

struct MaxScore;

fn make(_: &mut Assembly<'_>) -> Result<Box<dyn Pick>, AssemblyRefused> {
    Ok(Box::new(MaxScore))
}

impl Pick for MaxScore {
    fn pick(&self, _: &Decision<'_>, slate: CandidateSet<'_>, rng: &mut Rng) -> Choice {
        let (mut best, mut first, mut equals) = (f64::NEG_INFINITY, 0, 0);
        for (at, total) in slate.totals.iter().enumerate() {
            if *total > best {
                (best, first, equals) = (*total, at, 1);
            } else if *total == best {
                equals += 1;
            }
        }
        if equals < 2 {
            return first.into();
        }
        let mut winners = (0..slate.totals.len()).filter(|at| slate.totals[*at] == best);
        winners.nth(rng.below(equals)).unwrap_or(first).into()
    }
}
