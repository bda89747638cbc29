//! How much more an owner's files may take, with those that are still on their way.
//!
//! The store knows a file once it is whole. So while an owner has uploads under way, what they have taken so far is counted
//! here, from what the store said when the first of them began.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Owners with uploads under way, or with batches that are being retried.
#[derive(Default)]
pub(crate) struct StorageQuotas(Mutex<BTreeMap<String, TenantStorage>>);

#[derive(Default)]
struct TenantStorage {
    uploads: usize,
    /// Bytes that may still come; none until the store has been asked.
    left: Option<u64>,
}

impl StorageQuotas {
    /// An upload begins. Only then may the store be asked: no other can end unseen in between.
    pub(crate) fn enter(&self, owner: &str) -> StorageReservation<'_> {
        self.lock().entry(owner.to_owned()).or_default().uploads += 1;
        StorageReservation { rooms: self, owner: owner.to_owned(), bytes: 0 }
    }

    /// An owner has removed a file.
    pub(crate) fn freed(&self, owner: &str, bytes: u64) {
        if let Some(left) = self.lock().get_mut(owner).and_then(|room| room.left.as_mut()) {
            *left = left.saturating_add(bytes);
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, TenantStorage>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What one upload has taken; given back when it is dropped.
pub(crate) struct StorageReservation<'a> {
    rooms: &'a StorageQuotas,
    owner: String,
    bytes: u64,
}

impl StorageReservation<'_> {
    /// What the store leaves its owner. Counts if nobody has asked it before.
    pub(crate) fn measure(&self, left: u64) {
        if let Some(room) = self.rooms.lock().get_mut(&self.owner) {
            room.left.get_or_insert(left);
        }
    }

    /// Takes more; whether there was room for it.
    pub(crate) fn take(&mut self, bytes: u64) -> bool {
        let mut rooms = self.rooms.lock();
        let left = rooms.get_mut(&self.owner).and_then(|room| room.left.as_mut());
        let Some((left, rest)) =
            left.and_then(|left| left.checked_sub(bytes).map(|rest| (left, rest)))
        else {
            return false;
        };
        *left = rest;
        self.bytes += bytes;
        true
    }

    /// The file is in the store, with so many bytes: the rest was the form around it.
    pub(crate) fn keep(mut self, bytes: u64) {
        self.bytes = self.bytes.saturating_sub(bytes);
    }
}

impl Drop for StorageReservation<'_> {
    fn drop(&mut self) {
        self.rooms.freed(&self.owner, self.bytes);
        let mut rooms = self.rooms.lock();
        if let Some(room) = rooms.get_mut(&self.owner) {
            room.uploads -= 1;
            if room.uploads == 0 {
                rooms.remove(&self.owner);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uploads_at_once_share_what_is_left_and_give_back_what_they_do_not_keep() {
        let rooms = StorageQuotas::default();
        let mut first = rooms.enter("a");
        first.measure(100);
        let mut second = rooms.enter("a");
        // The store does not know of the first one yet.
        second.measure(100);
        assert!(first.take(60) && !second.take(50) && second.take(30));
        first.keep(50);
        assert!(!second.take(30) && second.take(20), "only the form around it was given back");
        rooms.freed("a", 5);
        assert!(!second.take(6) && second.take(5));
        let mut third = rooms.enter("a");
        drop(second);
        assert!(third.take(55) && !third.take(1));
        let mut other = rooms.enter("b");
        other.measure(7);
        assert!(other.take(7) && !other.take(1));
        drop((third, other));
        assert!(rooms.lock().is_empty(), "nobody is kept who uploads nothing");
    }
}
