//! A seeded fleet's cached conversations, and prompts that resume them.
//!
//! Conversations share 8 system prompts with 16 branches each and live on one to three pods, about
//! a million (pod, block) pairs in all. Of the prompts, six in ten resume a conversation, three
//! start a new one on a known branch, and one matches nothing.

use wornpath_routing::Rng;

/// Tokens in a block.
pub(crate) const BLOCK: usize = 16;
/// Blocks in a prompt.
pub(crate) const BLOCKS: usize = 32;
/// How many prompts there are: few enough to stay in the second cache, as a prompt just tokenized
/// does.
pub(crate) const REQUESTS: usize = 512;

const CONVERSATIONS: usize = 16_000;
const SYSTEM_BLOCKS: usize = 8;
const BRANCH_BLOCKS: usize = 4;

/// The blocks that pods hold, and the prompts.
pub(crate) struct Workload {
    pub(crate) pods: usize,
    /// Token ids of a whole conversation, and the pods that hold it.
    pub(crate) conversations: Vec<(Vec<u32>, Vec<usize>)>,
    /// Token ids of each prompt.
    pub(crate) prompts: Vec<Vec<u32>>,
    /// Requests in flight on each pod when a decision is made.
    pub(crate) load: Vec<u32>,
}

impl Workload {
    pub(crate) fn generate(pods: usize) -> Self {
        let mut rng = Rng::new(0x5EED);
        let conversation = |rng: &mut Rng, number: usize| {
            let system = rng.below(8);
            let branch = rng.below(16);
            tokens(system, branch, number)
        };
        let conversations: Vec<_> = (0..CONVERSATIONS)
            .map(|number| {
                let copies = 1 + rng.below(3);
                let homes = (0..copies).map(|_| rng.below(pods)).collect();
                (conversation(&mut rng, number), homes)
            })
            .collect();
        let prompts = (0..REQUESTS)
            .map(|number| match rng.below(10) {
                0..6 => {
                    let mut prompt = conversations[rng.below(CONVERSATIONS)].0.clone();
                    let known = (BLOCKS / 2 + rng.below(BLOCKS / 2)) * BLOCK;
                    for (at, token) in prompt.iter_mut().enumerate().skip(known) {
                        *token = (1 << 30) + (number * 1_000 + at) as u32;
                    }
                    prompt
                }
                6..9 => conversation(&mut rng, CONVERSATIONS + number),
                _ => tokens(100 + number, number, CONVERSATIONS * 2 + number),
            })
            .collect();
        let load = (0..pods).map(|_| rng.below(8) as u32).collect();
        Self { pods, conversations, prompts, load }
    }
}

fn tokens(system: usize, branch: usize, number: usize) -> Vec<u32> {
    let token = |at: usize| {
        let part = match at / BLOCK {
            block if block < SYSTEM_BLOCKS => (1, system),
            block if block < SYSTEM_BLOCKS + BRANCH_BLOCKS => (2, system * 1_000 + branch),
            _ => (3, number),
        };
        Rng::new((part.0 << 60) ^ ((part.1 as u64) << 20) ^ at as u64).below(150_000) as u32
    };
    (0..BLOCK * BLOCKS).map(token).collect()
}
