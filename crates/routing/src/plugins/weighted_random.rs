//! `weighted_random`: samples a candidate by the softmax of the totals.
//!
//! Routers that see the same stale figures would all pick the same best pod; sampling spreads them,
//! at the price of sometimes picking a worse one.

use wornpath_yaml::{Parameter, Takes};

use super::weighted_choice::draw;
use crate::plugin::{Assembly, AssemblyRefused, Make, Plugin};
use crate::rng::Rng;
use crate::stage::{CandidateSet, Choice, Decision, Pick};

pub(crate) const PLUGIN: Plugin = Plugin {
    name: "weighted_random",
    summary: "Random, with probabilities proportional to exp(total / temperature).",
    parameters: &[Parameter::with_default(
        "temperature",
        Takes::Number(0.0, f64::INFINITY),
        "0.1",
        "In the unit of the total. 0 picks the best total; the higher, the more even.",
    )],
    needs: &[],
    conflicts: &[],
    example: "weighted_random: {temperature: 0.2}",
    make: Make::Pick(make),
};

struct WeightedRandom {
    temperature: f64,
}

fn make(assembly: &mut Assembly<'_>) -> Result<Box<dyn Pick>, AssemblyRefused> {
    Ok(Box::new(WeightedRandom { temperature: assembly.get("temperature") }))
}

impl Pick for WeightedRandom {
    fn pick(&self, _: &Decision<'_>, set: CandidateSet<'_>, rng: &mut Rng) -> Choice {
        draw(set.totals, self.temperature, rng).into()
    }
}

#[cfg(test)]
mod tests {
    use crate::plugins::harness::Harness;
    use crate::rng::Rng;
    use crate::stage::Stage;

    #[test]
    fn a_higher_temperature_makes_picks_more_even() {
        let harness = Harness::of(2);
        let share_of_best = |yaml: &str| {
            let run = harness.run(&[], Stage::Pick, yaml);
            let mut rng = Rng::new(3);
            let picks = (0..4000).filter(|_| run.pick(&[(0, 0.4), (1, 0.5)], &mut rng).0 == 1);
            picks.count() as f64 / 4000.0
        };
        assert_eq!(share_of_best("weighted_random: {temperature: 0}"), 1.0);
        // 1 / (1 + exp(-0.1 / 0.1)) = 0.731
        assert!((share_of_best("weighted_random") - 0.731).abs() < 0.02);
        assert!((share_of_best("weighted_random: {temperature: 1000}") - 0.5).abs() < 0.02);
    }
}
