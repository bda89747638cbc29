//! Slots: who may upload at the same time.
//!
//! Each upload has a thread that writes it, so there are few, and a tenant has at most a part of
//! them. An upload that is slow gives its slot back too (`upload`).

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Maximum concurrent uploads of all tenants, and of one.
pub(crate) const UPLOADS: usize = 64;
pub(crate) const TENANT_UPLOADS: usize = 16;

/// Uploads in progress, by owner.
#[derive(Default)]
pub(crate) struct UploadSlots(Mutex<BTreeMap<String, usize>>);

/// The slot of one upload; given back when dropped.
pub(crate) struct UploadSlot<'a> {
    slots: &'a UploadSlots,
    owner: String,
}

impl UploadSlots {
    /// A slot, or the limit that is reached. Without tenants, all uploads have one owner.
    pub(crate) fn take(&self, owner: &str) -> Result<UploadSlot<'_>, usize> {
        let mut slots = self.lock();
        let most = if owner.is_empty() { UPLOADS } else { TENANT_UPLOADS };
        if slots.values().sum::<usize>() >= UPLOADS {
            return Err(UPLOADS);
        }
        let own = slots.entry(owner.to_owned()).or_default();
        if *own >= most {
            return Err(most);
        }
        *own += 1;
        Ok(UploadSlot { slots: self, owner: owner.to_owned() })
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for UploadSlot<'_> {
    fn drop(&mut self) {
        let mut slots = self.slots.lock();
        if let Some(own) = slots.get_mut(&self.owner) {
            *own -= 1;
            if *own == 0 {
                slots.remove(&self.owner);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenant_has_a_part_of_the_slots_and_another_one_finds_some() {
        let slots = UploadSlots::default();
        let own: Vec<_> = (0..TENANT_UPLOADS).map(|_| slots.take("a").ok().unwrap()).collect();
        assert_eq!(slots.take("a").err(), Some(TENANT_UPLOADS));
        assert!(slots.take("b").is_ok());
        drop(own);
        assert!(slots.lock().is_empty(), "a tenant without uploads is removed");
        let all: Vec<_> = (0..UPLOADS).map(|_| slots.take("").ok().unwrap()).collect();
        assert_eq!(slots.take("").err(), Some(UPLOADS));
        assert_eq!(slots.take("a").err(), Some(UPLOADS));
        drop(all);
        assert!(slots.take("a").is_ok());
    }
}
