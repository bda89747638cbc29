//! `cache_affinity`: the more of the prompt a pod holds, the better.
//!
//! With tier weights, a block in host memory counts less than one on the GPU. Tiers are asked of those
//! who hold most, until nobody else could score higher; the others count as on the lightest tier, so
//! that nobody gains by not being asked.

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
            "What a block counts on `gpu`, `host`, `disk` and `other`; 1 if not named. At most 1.",
        ),
        Parameter::with_default(
            "best",
            Takes::Whole(1, 64),
            "8",
            "With `tiers`: how many of the deepest candidates are asked for their tiers at least.",
        ),
        Parameter::with_default(
            "unsure",
            Takes::Number(0.0, 1.0),
            "0.5",
            "What the score counts while an event of the pod is missing.",
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
            let message = format!("there is no tier `{tier}`");
            return Err(assembly.refuse("tiers", &message, "use gpu, host, disk or other"));
        };
        if *weight > 1.0 {
            let message = format!("the weight of `{tier}` is {weight}");
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

    fn score(&self, scene: &Decision<'_>, candidates: &[Candidate], scores: &mut [f64]) {
        let Some(held) = scene.held(&self.held) else { return };
        let unit = (held.prompt().chain.len().max(1) as f64).recip();
        for (candidate, score) in candidates.iter().zip(scores.iter_mut()) {
            *score = f64::from(held.depth(scene.pod(*candidate))) * unit;
        }
        if let Some(tiers) = &self.tiers {
            self.weigh(tiers, scene, candidates, scores);
        }
        for (candidate, score) in candidates.iter().zip(scores) {
            if scene.pod(*candidate).vitals().trust() == EventTrust::Unsure {
                *score *= self.unsure;
            }
        }
    }
}

impl CacheAffinity {
    fn weigh(
        &self,
        tiers: &Tiers,
        scene: &Decision<'_>,
        candidates: &[Candidate],
        scores: &mut [f64],
    ) {
        let Some(held) = scene.held(&self.held) else { return };
        let depth = |candidate: &Candidate| held.depth(scene.pod(*candidate));
        let weight = |holding: &BlockLocation| tiers.weights[place(holding.tier)];
        let heaviest = tiers.weights.iter().copied().fold(0.0, f64::max);
        let lightest = tiers.weights.iter().copied().fold(1.0, f64::min);
        let blocks = held.prompt().chain.len().max(1) as f64;
        let mut holdings: Vec<BlockLocation> = Vec::new();
        let (mut asked, mut best, mut level) = (0, 0.0_f64, u32::MAX);
        // One depth after the other, so that equals are all asked or all not.
        while let Some(next) =
            candidates.iter().map(depth).filter(|depth| (1..level).contains(depth)).max()
        {
            if asked >= tiers.best && f64::from(next) * heaviest / blocks <= best {
                break;
            }
            level = next;
            for (candidate, score) in candidates.iter().zip(scores.iter_mut()) {
                if depth(candidate) == level {
                    scene.holdings(&self.held, scene.pod(*candidate), level, &mut holdings);
                    *score = holdings.iter().map(weight).sum::<f64>() / blocks;
                    best = best.max(*score);
                    asked += 1;
                }
            }
        }
        for (candidate, score) in candidates.iter().zip(scores) {
            if depth(candidate) < level {
                *score *= lightest;
            }
        }
    }
}

const fn place(tier: Tier) -> usize {
    match tier {
        Tier::Gpu => 0,
        Tier::Host => 1,
        Tier::Disk => 2,
        Tier::Other => 3,
    }
}
