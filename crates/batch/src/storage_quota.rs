//! Storage quotas, including uploads in progress.
//!
//! The store counts a file only once it is complete. So while an owner has uploads in progress,
//! their bytes are counted here, starting from the store's count when the first of them began.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Owners with uploads in progress, or with batches that are being retried.
#[derive(Default)]
pub(crate) struct StorageQuotas(Mutex<BTreeMap<String, TenantStorage>>);

#[derive(Default)]
struct TenantStorage {
    uploads: usize,
    /// Bytes left; `None` until the store has been read.
    left: Option<u64>,
}

impl StorageQuotas {
    /// Registers an upload. The store must be read after that, so that no upload can finish unseen
    /// in between.
    pub(crate) fn begin(&self, owner: &str) -> StorageReservation<'_> {
        self.lock().entry(owner.to_owned()).or_default().uploads += 1;
        StorageReservation { quotas: self, owner: owner.to_owned(), bytes: 0 }
    }

    /// Adds the bytes of a deleted file to what its owner has left.
    pub(crate) fn freed(&self, owner: &str, bytes: u64) {
        if let Some(left) = self.lock().get_mut(owner).and_then(|storage| storage.left.as_mut()) {
            *left = left.saturating_add(bytes);
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, TenantStorage>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The bytes that one upload has reserved; released when it is dropped.
pub(crate) struct StorageReservation<'a> {
    quotas: &'a StorageQuotas,
    owner: String,
    bytes: u64,
}

impl StorageReservation<'_> {
    /// Sets the bytes that the owner has left, unless an earlier upload has done so.
    pub(crate) fn set_left(&self, left: u64) {
        if let Some(storage) = self.quotas.lock().get_mut(&self.owner) {
            storage.left.get_or_insert(left);
        }
    }

    /// Reserves more bytes; `false` if the quota is exceeded.
    pub(crate) fn reserve(&mut self, bytes: u64) -> bool {
        let mut quotas = self.quotas.lock();
        let left = quotas.get_mut(&self.owner).and_then(|storage| storage.left.as_mut());
        let Some((left, rest)) =
            left.and_then(|left| left.checked_sub(bytes).map(|rest| (left, rest)))
        else {
            return false;
        };
        *left = rest;
        self.bytes += bytes;
        true
    }

    /// The file is stored with `bytes`; the rest, which was the form around it, is released.
    pub(crate) fn commit(mut self, bytes: u64) {
        self.bytes = self.bytes.saturating_sub(bytes);
    }
}

impl Drop for StorageReservation<'_> {
    fn drop(&mut self) {
        self.quotas.freed(&self.owner, self.bytes);
        let mut quotas = self.quotas.lock();
        if let Some(storage) = quotas.get_mut(&self.owner) {
            storage.uploads -= 1;
            if storage.uploads == 0 {
                quotas.remove(&self.owner);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn concurrent_uploads_share_the_quota_and_release_what_they_do_not_store() {
        let storage_quotas = StorageQuotas::default();
        let mut first = storage_quotas.begin("a");
        first.set_left(100);
        let mut second = storage_quotas.begin("a");
        // The store does not know of the first one yet.
        second.set_left(100);
        assert!(first.reserve(60) && !second.reserve(50) && second.reserve(30));
        first.commit(50);
        assert!(!second.reserve(30) && second.reserve(20), "only the form around it was released");
        storage_quotas.freed("a", 5);
        assert!(!second.reserve(6) && second.reserve(5));
        let mut third = storage_quotas.begin("a");
        drop(second);
        assert!(third.reserve(55) && !third.reserve(1));
        let mut other = storage_quotas.begin("b");
        other.set_left(7);
        assert!(other.reserve(7) && !other.reserve(1));
        drop((third, other));
        assert!(storage_quotas.lock().is_empty(), "an owner without uploads is removed");
    }
}
