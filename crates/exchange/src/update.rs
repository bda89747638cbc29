//! An update: what a router says at one moment.

use crate::report::{Origin, PodReport, TenantReport};
use wornpath_blocks::BlockHash;

/// How much of a router's state an update has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Scope {
    /// All of it: what it does not name is zero.
    Full,
    /// What has changed since the update before; nothing, for a sign of life.
    Changes,
}

/// What a router says at one moment.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Update {
    /// Who says it.
    pub origin: Origin,
    /// Grows with each update of changes; a full update has the number of the changes that are in it.
    pub sequence: u64,
    /// How much of its state it is.
    pub scope: Scope,
    /// Its load by the name of the pod.
    pub pods: Vec<(String, PodReport)>,
    /// Its use of limits by the name of the tenant.
    pub tenants: Vec<(String, TenantReport)>,
    /// Prompts that it has sent since the update before.
    pub sent: Vec<SentBlocks>,
}

/// A prompt that was sent to a pod: the part that the pod probably has to compute.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SentBlocks {
    /// The pod's name.
    pub pod: String,
    /// The block before the first one; none at the beginning of a prompt.
    pub parent: Option<BlockHash>,
    /// Tokens per block.
    pub block_tokens: u32,
    /// For how long the pod is expected to hold the blocks, unless events confirm it.
    pub lifetime_ms: u32,
    /// The blocks.
    pub blocks: Vec<BlockHash>,
}
