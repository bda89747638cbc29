//! What is known of all pods, on disk, so that a router that starts need not hear all of it again.
//!
//! A checkpoint is a memory, not knowledge: the engine may have gone on, or be another by now. So what is restored
//! counts for nothing until the pod's own source has confirmed it: a replay that begins with the very batch that was
//! last, or a digest that agrees. Then it counts, and only what was said since has to be fetched. An engine that
//! restarted meanwhile refutes it, and it is as if there had been none.
//!
//! A file is written beside the old one, synced, and put in its place. Whatever is wrong with a file, the router
//! starts without it.
//!
//! The limits: a pod is left out while blocks of it wait for their prefix, while it is known to be wrong or partial,
//! and if neither epochs nor fingerprints could tell its engine from the next.

mod file;
mod format;

pub use file::{CheckpointSize, ReadError, read, write};
pub use format::{CheckpointError, decode, encode};

use crate::feed::ResumePoint;
use crate::translate::BlockIdScheme;
use wornpath_blocks::BlockHash;
use wornpath_index::ExportedBlock;

/// What is written down of one pod.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PodCheckpoint {
    /// Its name.
    pub pod: String,
    /// What its blocks are called by.
    pub naming: BlockIdentity,
    /// Where its events stood.
    pub memo: ResumePoint,
    /// Cache groups that keep only a part of a prefix; removals do not say so again.
    pub partial_groups: Vec<u32>,
    /// Everything it held.
    pub items: Vec<ExportedBlock>,
}

/// What decides what a pod's blocks are called in the index. Under another naming a record means nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BlockIdentity {
    /// The root of the model's chains, in which the cell's key is.
    pub root: BlockHash,
    /// Tokens per block.
    pub block_size: u32,
    /// What blocks are called that come without tokens.
    pub names: BlockIdScheme,
}
