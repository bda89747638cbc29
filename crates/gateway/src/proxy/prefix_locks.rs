//! Who of several threads is the first to send a new prefix somewhere.
//!
//! Two threads that decide at the same moment both find a new prefix nowhere, and would send it to two pods;
//! whoever comes later would see it on both. So what a plan expects is told to the index under a claim on the
//! first block that has to be computed. Who finds, once it has the claim, that another pod was told to compute
//! that block since, decides again and follows; who finds the claim taken lets its plan go, waits, and decides
//! again. Threads whose prompts differ before that block never meet.

use std::array;
use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use wornpath_blocks::BlockHash;

/// So many that threads with different prompts hardly ever wait for each other.
const CLAIMS: usize = 256;

#[derive(Debug)]
pub(crate) struct PrefixLocks([Arc<Semaphore>; CLAIMS]);

/// The right to be the first with a prefix, for as long as it is kept.
pub(crate) type PrefixLock = OwnedSemaphorePermit;

impl Default for PrefixLocks {
    fn default() -> Self {
        Self(array::from_fn(|_| Arc::new(Semaphore::new(1))))
    }
}

/// Somebody else is about to send that prefix somewhere.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LockOutcome;

impl PrefixLocks {
    /// The claim on a block, unless somebody else has it. Nothing to claim is claimed by everybody.
    pub(crate) fn try_hold(
        &self,
        frontier: Option<BlockHash>,
    ) -> Result<Option<PrefixLock>, LockOutcome> {
        let Some(block) = frontier else { return Ok(None) };
        Arc::clone(self.of(block)).try_acquire_owned().map(Some).map_err(|_| LockOutcome)
    }

    /// Waits until nobody has the claim on a block.
    pub(crate) async fn wait(&self, frontier: Option<BlockHash>) {
        if let Some(block) = frontier {
            let _had = self.of(block).acquire().await;
        }
    }

    fn of(&self, block: BlockHash) -> &Arc<Semaphore> {
        &self.0[(block.0 % CLAIMS as u64) as usize]
    }
}
