//! Damage in the store: logged once for each file, however often it is read.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};
use wornpath_jobs::StoreError;

/// Whether a file is not as it was stored.
pub(crate) const fn is_damage(error: &StoreError) -> bool {
    matches!(
        error,
        StoreError::DamagedFile { .. } | StoreError::Damaged { .. } | StoreError::OtherInput { .. }
    )
}

/// Maximum number of names that are remembered.
const MOST: usize = 10_000;

/// What has been logged.
#[derive(Default)]
pub(crate) struct DamageLog(Mutex<BTreeSet<String>>);

impl DamageLog {
    /// Logs an error if it is damage that was not logged yet.
    pub(crate) fn note(&self, error: &StoreError) {
        let name = match error {
            StoreError::DamagedFile { name, .. } => name.clone(),
            StoreError::Damaged { path, .. } | StoreError::OtherInput { path, .. } => {
                path.display().to_string()
            }
            _ => return,
        };
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() < MOST && known.insert(name) {
            tracing::error!(%error, "damaged file in the batch store");
        }
    }
}
