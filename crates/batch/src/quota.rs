//! Quotas of a tenant: unfinished batches, and the entries of its files and batches.
//!
//! The bytes of files are counted while they arrive ([`crate::storage_quota`]). Entries are small,
//! but a tenant can create many, and ended batches are kept: each takes memory and a part of the
//! journal, so their bytes have a quota of their own.

use crate::batches::Batches;
use crate::error::BatchError;
use hyper::StatusCode;
use std::sync::Arc;

/// Checks the quota of unfinished batches.
pub(crate) async fn check_batch_quota(
    batches: &Arc<Batches>,
    owner: &str,
) -> Result<(), BatchError> {
    let most = batches.rules.quota.batches;
    let open = batches.with_store(|store| store.unfinished()).await?;
    if open.iter().filter(|batch| batch.owner == owner).count() < most {
        return Ok(());
    }
    let message = format!(
        "batch quota exceeded: {most} unfinished batches (limit {most}); wait for one or cancel one"
    );
    Err(BatchError::new(StatusCode::TOO_MANY_REQUESTS, message))
}

/// Checks the quota of entries.
pub(crate) async fn check_entry_quota(
    batches: &Arc<Batches>,
    owner: &str,
) -> Result<(), BatchError> {
    let most = batches.rules.quota.entries;
    let tenant = owner.to_owned();
    let used = batches.with_store(move |store| store.entry_bytes(&tenant)).await?;
    if used < most {
        return Ok(());
    }
    let message = format!(
        "entry quota exceeded: files and batches, finished ones included, have entries of {used} bytes \
         (limit {most}); delete files with DELETE /v1/files/ID, or wait until finished batches are removed"
    );
    Err(BatchError::new(StatusCode::FORBIDDEN, message))
}
