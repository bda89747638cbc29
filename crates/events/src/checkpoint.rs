//! Checkpoints: the state of all pods on disk, so that a router that starts need not fetch all of
//! it again.
//!
//! The engine may have gone on or restarted since a checkpoint was written. So restored state does
//! not count until the pod's own source has confirmed it, by a replay that begins with the very
//! batch that was last or by a digest that matches. Then only newer batches have to be fetched. If
//! the engine restarted meanwhile, the restored state is dropped.
//!
//! A new file is written beside the old one, synced, and renamed. If a file cannot be used, the
//! router starts without it.
//!
//! Limits: a pod is left out while some of its blocks wait for their prefix, while its state is
//! known to be wrong or partial, and if neither epochs nor fingerprints distinguish one run of its
//! engine from the next.

mod file;
mod format;

pub use file::{CheckpointSize, ReadError, read, write};
pub use format::{CheckpointError, decode, encode};

use crate::block_id::BlockIdentity;
use crate::feed::ResumePoint;
use wornpath_index::ExportedBlock;

/// The record of one pod.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PodCheckpoint {
    /// The pod's name.
    pub pod: String,
    /// How its blocks are identified. Under another identity the record is useless.
    pub identity: BlockIdentity,
    /// How far its events were applied.
    pub resume_point: ResumePoint,
    /// Cache groups that keep only a part of a prefix; later removals do not repeat that.
    pub partial_groups: Vec<u32>,
    /// All blocks that it held.
    pub blocks: Vec<ExportedBlock>,
}
