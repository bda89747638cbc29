//! How a pod's blocks are identified in the index.
//!
//! Engines name blocks by hashes of their own. The index hashes tokens itself, from a root that
//! depends on the model and the cell's key, so two records of a pod can only be compared if they
//! were made under the same identity.

use wornpath_blocks::BlockHash;

/// Which hash identifies a block whose tokens the source does not send.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum BlockIdScheme {
    /// The engine's own hash, which other stores of the same block map to tokens.
    #[default]
    Engine,
    /// The index's hash, which the engine was given or can compute.
    Index,
}

/// Everything that the index's names of a pod's blocks depend on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BlockIdentity {
    /// The root of the model's hash chains, which the cell's key goes into.
    pub root: BlockHash,
    /// Tokens per block of the index.
    pub block_size: u32,
    /// How blocks without tokens are identified.
    pub scheme: BlockIdScheme,
}
