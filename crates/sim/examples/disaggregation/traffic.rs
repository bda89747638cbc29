//! Generated traffic: prompts of one length, of which a share is a prefix that others share.

use std::num::NonZeroUsize;
use std::time::Duration;
use wornpath_routing::Rng;
use wornpath_sim::replay::{Trace, TraceStart, TraceTurn};
use wornpath_sim::{EngineProfile, StepLoad};

const BLOCK: NonZeroUsize = NonZeroUsize::new(64).expect("not zero");
/// Prefixes that requests share.
const PREFIXES: usize = 8;
/// The decoding requests of a step, for the estimate of an engine's capacity.
const BATCH: usize = 32;

/// A kind of traffic.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Traffic {
    pub(crate) prompt_tokens: usize,
    pub(crate) output_tokens: usize,
    /// The share of a prompt that is one of a few common prefixes.
    pub(crate) shared: f64,
    /// The share of the fleet's time that is needed if each pod does both.
    pub(crate) load: f64,
}

impl Traffic {
    fn shared_blocks(&self) -> usize {
        (self.shared * self.prompt_tokens as f64) as usize / BLOCK
    }

    /// Tokens of a prompt that no pod can have.
    pub(crate) fn uncached_tokens(&self) -> usize {
        self.prompt_tokens - self.shared_blocks() * BLOCK.get()
    }

    /// Seconds of one pod that a request needs: its own prefill, and its share of decoding steps.
    fn pod_seconds(&self, engine: &EngineProfile) -> f64 {
        let cost = engine.step_cost();
        let mut prefill = StepLoad::default();
        let cached = self.prompt_tokens - self.uncached_tokens();
        prefill.add_chunk(cached, self.uncached_tokens());
        let decode = StepLoad {
            sequences: BATCH,
            context_tokens: BATCH * (self.prompt_tokens + self.output_tokens / 2),
            longest_context: self.prompt_tokens + self.output_tokens,
            ..StepLoad::default()
        };
        let prefill = cost.milliseconds(&prefill) - cost.base;
        let decode = cost.milliseconds(&decode) * self.output_tokens as f64 / BATCH as f64;
        (prefill + decode) / 1e3
    }

    /// Requests at random times, at the rate that gives `pods` pods this load.
    pub(crate) fn requests(
        &self,
        engine: &EngineProfile,
        pods: usize,
        count: usize,
        seed: u64,
    ) -> Trace {
        let mut rng = Rng::new(seed);
        let mut turns = Vec::with_capacity(count);
        let mut next_block = 1 << 32;
        let gap = self.pod_seconds(engine) / (pods as f64 * self.load);
        let mut at = 0.0;
        for _ in 0..count {
            at += -gap * (1.0 - rng.unit()).ln();
            turns.push(self.request(at, &mut rng, &mut next_block));
        }
        Trace { block_size: BLOCK, turns }
    }

    fn request(&self, at: f64, rng: &mut Rng, next_block: &mut u64) -> TraceTurn {
        let prefix = (rng.below(PREFIXES) << 20) as u64;
        let shared = (0..self.shared_blocks() as u64).map(|block| prefix + block);
        let own = self.prompt_tokens.div_ceil(BLOCK.get()) - self.shared_blocks();
        let mine = *next_block..*next_block + own as u64;
        *next_block = mine.end;
        TraceTurn {
            start: TraceStart::At(Duration::from_secs_f64(at)),
            prompt_tokens: self.prompt_tokens,
            output_tokens: self.output_tokens,
            blocks: shared.chain(mine).collect(),
            session: None,
            tenant: None,
        }
    }
}

/// Traffic of several kinds at once, in proportion to their weights.
pub(crate) fn mixture(
    kinds: &[Traffic],
    engine: &EngineProfile,
    pods: usize,
    load: f64,
    count: usize,
) -> Trace {
    let mut rng = Rng::new(1);
    let mean = kinds.iter().map(|kind| kind.pod_seconds(engine)).sum::<f64>() / kinds.len() as f64;
    let gap = mean / (pods as f64 * load);
    let mut next_block = 1 << 32;
    let mut at = 0.0;
    let turns = (0..count).map(|_| {
        at += -gap * (1.0 - rng.unit()).ln();
        let kind = &kinds[rng.below(kinds.len())];
        kind.request(at, &mut rng, &mut next_block)
    });
    Trace { block_size: BLOCK, turns: turns.collect() }
}
