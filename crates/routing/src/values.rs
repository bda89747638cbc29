//! The values that the shipped plugins hand to each other.

use wornpath_blocks::BlockHash;
use wornpath_index::PodId;

use crate::name::Name;
use crate::slot::Slot;

/// The prompt's token ids.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Tokens(pub Vec<u32>);

impl Slot for Tokens {
    const NAME: &'static str = "Tokens";

    fn clear(&mut self) {
        self.0.clear();
    }
}

/// The prompt's chain of block hashes, which the index is asked for.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct BlockHashes {
    /// One hash for every full block.
    pub chain: Vec<BlockHash>,
    /// How many tokens a block stands for.
    pub block_tokens: usize,
    /// How many tokens the whole prompt has, exact or estimated.
    pub prompt_tokens: usize,
}

impl BlockHashes {
    /// What a pod must compute of the prompt if it holds the first `depth` blocks.
    #[inline]
    #[must_use]
    pub const fn uncached_tokens(&self, depth: u32) -> u64 {
        self.prompt_tokens.saturating_sub(depth as usize * self.block_tokens) as u64
    }
}

impl Slot for BlockHashes {
    const NAME: &'static str = "BlockHashes";

    fn clear(&mut self) {
        self.chain.clear();
        self.block_tokens = 0;
        self.prompt_tokens = 0;
    }
}

/// Which session a request belongs to: a hash of what the client calls it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SessionKey(pub u64);

impl Slot for SessionKey {
    const NAME: &'static str = "SessionKey";
}

/// What consistent hashing hashes, hashed once.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RingKey(pub u64);

impl Slot for RingKey {
    const NAME: &'static str = "RingKey";
}

/// Named values taken from headers and body fields.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Attributes(pub Vec<(Name, Name)>);

impl Attributes {
    /// The value of that name.
    #[must_use]
    pub fn get(&self, name: &Name) -> Option<&Name> {
        self.0.iter().find(|(known, _)| known == name).map(|(_, value)| value)
    }
}

impl Slot for Attributes {
    const NAME: &'static str = "Attributes";

    fn clear(&mut self) {
        self.0.clear();
    }
}

/// The pod that an offline plan put the request on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PlanHint(pub Option<PodId>);

impl Slot for PlanHint {
    const NAME: &'static str = "PlanHint";
}

/// The pod that an earlier step of the same plan was given. The workflow writes it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Picked(pub Option<PodId>);

impl Slot for Picked {
    const NAME: &'static str = "Picked";
}
