//! `cache_affinity`: prefers pods that hold more of the prompt.
//!
//! With tier weights, a block in host memory counts less than one on the GPU. A tier lookup takes
//! the pod's lock, so only the deepest candidates are looked up, until no other could score higher.
//! The rest get the lowest tier weight, so that a pod gains nothing from not being looked up.

use wornpath_index::{BlockLocation, Tier};
use wornpath_yaml::{Parameter, Takes};

use crate::fleet::{Candidate, EventTrust};
use crate::plugin::{Assembly, AssemblyRefused, Make, Plugin};
use crate::stage::{Decision, HeldDepth, Scale, Score};

pub(crate) const PLUGIN: Plugin = Plugin {
    name: "cache_affinity",
    summary: "The share of the prompt's blocks that the pod holds, from 0 to 1.",
    parameters: &[
        Parameter::optional(
            "tiers",
            Takes::Numbers,
            "Weights of blocks on `gpu`, `host`, `disk` and `other`, from 0 to 1; 1 if not set.",
        ),
        Parameter::with_default(
            "best",
            Takes::Whole(1, 64),
            "8",
            "With `tiers`: minimum number of candidates, deepest first, whose tiers are looked up.",
        ),
        Parameter::with_default(
            "unsure",
            Takes::Number(0.0, 1.0),
            "0.5",
            "Factor of the score while the pod's event stream has a gap.",
        ),
    ],
    needs: &[],
    conflicts: &[],
    example: "cache_affinity: {weight: 2, tiers: {host: 0.5}}",
    make: Make::Score(make),
};

struct CacheAffinity {
    held: HeldDepth,
    tiers: Option<Tiers>,
    unsure: f64,
}

struct Tiers {
    weights: [f64; 4],
    best: usize,
}

fn make(assembly: &mut Assembly<'_>) -> Result<Box<dyn Score>, AssemblyRefused> {
    let tiers = match assembly.maybe::<Vec<(String, f64)>>("tiers") {
        None => None,
        Some(given) => {
            Some(Tiers { weights: weights(assembly, &given)?, best: assembly.get("best") })
        }
    };
    Ok(Box::new(CacheAffinity { held: assembly.held(), tiers, unsure: assembly.get("unsure") }))
}

fn weights(
    assembly: &mut Assembly<'_>,
    given: &[(String, f64)],
) -> Result<[f64; 4], AssemblyRefused> {
    let mut weights = [1.0; 4];
    for (tier, weight) in given {
        let Some(at) = ["gpu", "host", "disk", "other"].iter().position(|known| known == tier)
        else {
            let message = format!("unknown tier `{tier}`");
            return Err(assembly.refuse("tiers", &message, "use gpu, host, disk or other"));
        };
        if *weight > 1.0 {
            let message = format!("the weight of `{tier}` is {weight}, above 1");
            return Err(assembly.refuse("tiers", &message, "give a number from 0 to 1"));
        }
        weights[at] = *weight;
    }
    Ok(weights)
}

impl Score for CacheAffinity {
    fn scale(&self) -> Scale {
        Scale::Unit
    }

    fn score(&self, decision: &Decision<'_>, candidates: &[Candidate], scores: &mut [f64]) {
        let Some(held) = decision.held(&self.held) else { return };
        let unit = (held.prompt().chain.len().max(1) as f64).recip();
        for (candidate, score) in candidates.iter().zip(scores.iter_mut()) {
            *score = f64::from(held.depth(decision.pod(*candidate))) * unit;
        }
        if let Some(tiers) = &self.tiers {
            self.weigh_tiers(tiers, decision, candidates, scores);
        }
        for (candidate, score) in candidates.iter().zip(scores) {
            if decision.pod(*candidate).state().trust() == EventTrust::Unsure {
                *score *= self.unsure;
            }
        }
    }
}

impl CacheAffinity {
    fn weigh_tiers(
        &self,
        tiers: &Tiers,
        decision: &Decision<'_>,
        candidates: &[Candidate],
        scores: &mut [f64],
    ) {
        let Some(held) = decision.held(&self.held) else { return };
        let depth = |candidate: &Candidate| held.depth(decision.pod(*candidate));
        let weight = |holding: &BlockLocation| tiers.weights[tier_index(holding.tier)];
        let highest = tiers.weights.iter().copied().fold(0.0, f64::max);
        let lowest = tiers.weights.iter().copied().fold(1.0, f64::min);
        let blocks = held.prompt().chain.len().max(1) as f64;
        let mut holdings: Vec<BlockLocation> = Vec::new();
        let mut looked_up = 0;
        let mut best = 0.0_f64;
        let mut level = u32::MAX;
        // One depth after the other, so that of candidates with equal depth all or none are looked
        // up.
        while let Some(next) =
            candidates.iter().map(depth).filter(|depth| (1..level).contains(depth)).max()
        {
            if looked_up >= tiers.best && f64::from(next) * highest / blocks <= best {
                break;
            }
            level = next;
            for (candidate, score) in candidates.iter().zip(scores.iter_mut()) {
                if depth(candidate) == level {
                    decision.holdings(&self.held, decision.pod(*candidate), level, &mut holdings);
                    *score = holdings.iter().map(weight).sum::<f64>() / blocks;
                    best = best.max(*score);
                    looked_up += 1;
                }
            }
        }
        for (candidate, score) in candidates.iter().zip(scores) {
            if depth(candidate) < level {
                *score *= lowest;
            }
        }
    }
}

const fn tier_index(tier: Tier) -> usize {
    match tier {
        Tier::Gpu => 0,
        Tier::Host => 1,
        Tier::Disk => 2,
        Tier::Other => 3,
    }
}
