//! Locks on new prefixes, so that concurrent requests with one new prefix go to one pod.
//!
//! Two threads that decide at the same moment both find a new prefix on no pod and would send it to
//! two; later requests would see it on both. So a plan's speculative insert is committed under a
//! lock on the first block that its pod has to compute. A thread that gets the lock but finds that
//! another pod was sent that block since decides again and follows; a thread that finds the lock
//! held drops its plan, waits, and decides again. Threads whose prompts differ before that block
//! never meet.

use std::array;
use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, TryAcquireError};
use wornpath_blocks::BlockHash;

/// So many that threads with different prompts rarely share a lock.
const LOCKS: usize = 256;

#[derive(Debug)]
pub(crate) struct PrefixLocks([Arc<Semaphore>; LOCKS]);

impl Default for PrefixLocks {
    fn default() -> Self {
        Self(array::from_fn(|_| Arc::new(Semaphore::new(1))))
    }
}

impl PrefixLocks {
    /// Locks a block, unless another thread has it. Without a block there is nothing to lock.
    pub(crate) fn try_lock(
        &self,
        block: Option<BlockHash>,
    ) -> Result<Option<OwnedSemaphorePermit>, TryAcquireError> {
        let Some(block) = block else { return Ok(None) };
        Arc::clone(self.lock_of(block)).try_acquire_owned().map(Some)
    }

    /// Waits until the lock on a block is free.
    pub(crate) async fn wait(&self, block: Option<BlockHash>) {
        if let Some(block) = block {
            let _permit = self.lock_of(block).acquire().await;
        }
    }

    fn lock_of(&self, block: BlockHash) -> &Arc<Semaphore> {
        &self.0[(block.0 % LOCKS as u64) as usize]
    }
}
