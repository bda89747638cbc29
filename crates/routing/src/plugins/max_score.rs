//! `max_score`: the best total; among equals, one at random.

use crate::assembly::{Assembly, Refused};
use crate::plugin::{Make, Plugin};
use crate::rng::Rng;
use crate::stage::{Choice, Decision, Pick, Slate};

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

fn make(_: &mut Assembly<'_>) -> Result<Box<dyn Pick>, Refused> {
    Ok(Box::new(MaxScore))
}

impl Pick for MaxScore {
    fn pick(&self, _: &Decision<'_>, slate: Slate<'_>, rng: &mut Rng) -> Choice {
        let best = slate.totals.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let equals = slate.totals.iter().filter(|total| **total == best).count();
        let turn = if equals > 1 { rng.below(equals) } else { 0 };
        let mut winners = (0..slate.totals.len()).filter(|at| slate.totals[*at] == best);
        winners.nth(turn).unwrap_or(0).into()
    }
}
