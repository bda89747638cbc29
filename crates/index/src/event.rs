//! Cache events of an engine, independent of their transport.
//!
//! Events borrow their lists from the decoder's buffers: applying a batch copies only what the
//! index keeps. A batch has one sequence number; its events are applied in order.

use wornpath_blocks::{BlockHash, ContentHash};

/// An engine's own hash of a block: an alias, learnt from its events and valid for one pod only.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
#[repr(transparent)]
pub struct EngineHash(pub u64);

impl EngineHash {
    /// From a digest of any length: its last eight bytes, big-endian, which is what vLLM sends if
    /// it is configured to send integers. So both forms of one hash resolve to one alias.
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

/// A level of a pod's memory hierarchy, fastest first.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Tier {
    /// Device memory: ready to use.
    Gpu,
    /// Host memory, pinned or not.
    Host,
    /// Local disk or storage reached through it.
    Disk,
    /// Any other storage that an engine reports.
    Other,
}

impl Tier {
    /// All tiers, fastest first.
    pub const ALL: [Tier; 4] = [Tier::Gpu, Tier::Host, Tier::Disk, Tier::Other];
}

/// The address of a copy within its tier, as the engine reports it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Location {
    /// Offset of the copy in bytes.
    pub offset: u64,
    /// Length of the copy in bytes.
    pub length: u64,
    /// The device's number within the tier.
    pub device: u32,
}

/// The parent of the first block of a [`StoredBlocks`] event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Parent {
    /// None: the block starts a prompt. The hash is the seed of its chain (model, LoRA, tenant).
    Root(BlockHash),
    /// The block with this engine hash.
    Block(EngineHash),
}

/// How the blocks of a [`StoredBlocks`] event map to our own hashes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Content<'a> {
    /// The contents of the blocks, chained after `parent`. Their number is a multiple of the number
    /// of blocks: an engine whose blocks are k times as long as the index's reports k contents per
    /// block.
    Chained {
        /// The parent of the first block.
        parent: Parent,
        /// The contents in order.
        contents: &'a [ContentHash],
    },
    /// Only engine hashes: other events make them known as aliases (offload tiers).
    KnownAliases,
    /// The engine hashes *are* the index's hashes; their parents are unknown.
    IndexHashes,
}

/// Copies of blocks that were stored on one tier of a pod.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StoredBlocks<'a> {
    /// The tier that holds them now.
    pub tier: Tier,
    /// The engine's hashes, each block the child of the one before it.
    pub blocks: &'a [EngineHash],
    /// How these hashes map to prefixes.
    pub content: Content<'a>,
    /// The location of each copy: one per block, or empty if the engine does not report it.
    pub locations: &'a [Location],
}

/// A change of a pod's cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CacheEvent<'a> {
    /// Copies were stored.
    Stored(StoredBlocks<'a>),
    /// One copy of each block was removed from a tier.
    Removed {
        /// The tier that held them.
        tier: Tier,
        /// The engine's hashes, usually leaf first.
        blocks: &'a [EngineHash],
    },
    /// All blocks were removed from every tier.
    Cleared,
}
