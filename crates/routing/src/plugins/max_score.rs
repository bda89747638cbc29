//! `max_score`: picks the best total; ties are broken at random.
//!
//! Without the random choice, routers with equal figures would all send to the first pod of the
//! fleet.

use crate::plugin::{Assembly, AssemblyRefused, Make, Plugin};
use crate::rng::Rng;
use crate::stage::{CandidateSet, Choice, Decision, Pick};

pub(crate) const PLUGIN: Plugin = Plugin {
    name: "max_score",
    summary: "The candidate with the best total; ties are broken at random.",
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
    fn pick(&self, _: &Decision<'_>, set: CandidateSet<'_>, rng: &mut Rng) -> Choice {
        let mut best = f64::NEG_INFINITY;
        let mut first = 0;
        let mut ties = 0;
        for (at, total) in set.totals.iter().enumerate() {
            if *total > best {
                best = *total;
                first = at;
                ties = 1;
            } else if *total == best {
                ties += 1;
            }
        }
        if ties < 2 {
            return first.into();
        }
        let mut winners = (0..set.totals.len()).filter(|at| set.totals[*at] == best);
        winners.nth(rng.below(ties)).unwrap_or(first).into()
    }
}
