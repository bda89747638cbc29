//! What an engine says about its cache, typed, whatever carried it.
//!
//! Events borrow their lists from the decoder's buffers: applying a batch copies nothing but what the
//! index keeps. A batch has one sequence number; its events are applied in order.

use wornpath_blocks::{BlockHash, ContentHash};

/// An engine's own name for a block: an alias, learnt from its events and meaningful for one pod only.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
#[repr(transparent)]
pub struct EngineHash(pub u64);

impl EngineHash {
    /// From a digest of any length: its last eight bytes, big-endian, which is what vLLM itself sends
    /// when it is told to send integers. So both forms of one hash resolve to one alias.
    #[must_use]
    pub fn from_digest(digest: &[u8]) -> Self {
        let tail = digest.len().saturating_sub(8);
        Self(digest[tail..].iter().fold(0, |value, byte| value << 8 | u64::from(*byte)))
    }
}

impl From<u64> for EngineHash {
    fn from(value: u64) -> Self {
        Self(value)
    }
}

impl From<i64> for EngineHash {
    /// SGLang sends the same 64 bits signed.
    fn from(value: i64) -> Self {
        Self(value.cast_unsigned())
    }
}

/// Where in the memory hierarchy of a pod a copy lies, fastest first.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Tier {
    /// Device memory: ready to use.
    Gpu,
    /// Host memory, pinned or not.
    Host,
    /// Local disk or storage reached through it.
    Disk,
    /// Anything else an engine names.
    Other,
}

impl Tier {
    /// All tiers, fastest first.
    pub const ALL: [Tier; 4] = [Tier::Gpu, Tier::Host, Tier::Disk, Tier::Other];
}

/// Where exactly a copy lies, when the engine says so.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Location {
    /// Offset of the copy in bytes.
    pub offset: u64,
    /// Length of the copy in bytes.
    pub length: u64,
    /// The device's number within the tier.
    pub device: u32,
}

/// What comes directly before the first block of a [`StoredBlocks`] event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Parent {
    /// Nothing: the block starts a prompt. The hash is the seed of its chain (model, LoRA, tenant).
    Root(BlockHash),
    /// The block that the engine calls so.
    Block(EngineHash),
}

/// How the blocks of a [`StoredBlocks`] event map to our own hashes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Content<'a> {
    /// The blocks' contents, chained after `parent`. A whole multiple of the number of blocks: an
    /// engine whose blocks are k times as long as the index's gives k contents for each.
    Chained {
        /// What precedes the first block.
        parent: Parent,
        /// Contents in order.
        contents: &'a [ContentHash],
    },
    /// Nothing is said but the names: they are known as aliases already, or will be (offload tiers).
    Named,
    /// The engine's names *are* the index's hashes; what precedes them is not known.
    Native,
}

/// Copies of blocks have come to be on one tier of a pod.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StoredBlocks<'a> {
    /// The tier that now holds them.
    pub tier: Tier,
    /// The engine's names, each the child of the one before it.
    pub blocks: &'a [EngineHash],
    /// How the names map to prefixes.
    pub content: Content<'a>,
    /// Where each copy lies: one per block, or empty when the engine does not say.
    pub locations: &'a [Location],
}

/// One thing that happened to a pod's cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CacheEvent<'a> {
    /// Copies came.
    Stored(StoredBlocks<'a>),
    /// One copy of each block went from a tier.
    Removed {
        /// The tier they went from.
        tier: Tier,
        /// The engine's names, usually leaf first.
        blocks: &'a [EngineHash],
    },
    /// Everything went, from every tier.
    Cleared,
}
