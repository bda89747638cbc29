//! The values that the shipped plugins pass to each other.

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

/// The prompt's chain of block hashes, which is looked up in the index.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct BlockHashes {
    /// One hash for every full block.
    pub chain: Vec<BlockHash>,
    /// Tokens in a block.
    pub block_tokens: usize,
    /// Tokens in the whole prompt, exact or estimated.
    pub prompt_tokens: usize,
}

impl BlockHashes {
    /// The tokens that a pod must compute if it holds the first `depth` blocks.
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

/// The session of a request: a hash of the client's name for it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SessionKey(pub u64);

impl Slot for SessionKey {
    const NAME: &'static str = "SessionKey";
}

/// The key of consistent hashing, hashed once.
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

/// The pod that an offline plan assigned the request to.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PlanHint(pub Option<PodId>);

impl Slot for PlanHint {
    const NAME: &'static str = "PlanHint";
}

/// The pod of an earlier step of the same plan. The workflow writes it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Picked(pub Option<PodId>);

impl Slot for Picked {
    const NAME: &'static str = "Picked";
}
