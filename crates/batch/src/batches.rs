//! The state of the batch service, shared by its calls and its tasks.

use crate::overview::Overview;
use crate::profile::PlannedProfile;
use crate::storage_quota::StorageQuotas;
use crate::temp_files::TempFiles;
use std::collections::BTreeMap;
use std::sync::atomic::AtomicU32;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use wornpath_config::BatchRules;
use wornpath_gateway::proxy::worker::Worker;
use wornpath_gateway::watchdog::heartbeat::Watched;
use wornpath_index::{Moment, PodId};
use wornpath_jobs::{RunControl, Store, StoreError};
use wornpath_planner::OnlinePriority;
use wornpath_routing::Name;

/// Batches that are run at once.
pub(crate) const AT_ONCE: usize = 4;
/// Uploads that are taken in at once: each has a thread that writes it.
pub(crate) const UPLOADS: usize = 64;
/// Downloads at once: of each, a piece is in memory.
pub(crate) const DOWNLOADS: usize = 256;
/// Inputs that are read for somebody who asks, at once: each takes a thread that clients' long prompts need too.
pub(crate) const READINGS: usize = 2;

/// Serves batches.
pub(crate) struct Batches {
    /// The thread of the store, if it has one.
    pub(crate) _watched: Option<Watched>,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) rules: BatchRules,
    pub(crate) scratch: TempFiles,
    pub(crate) profile: PlannedProfile,
    pub(crate) worker: Arc<Worker>,
    /// Who runs or waits for its turn, and how to tell it what is wished.
    pub(crate) running: Mutex<BTreeMap<String, watch::Sender<RunControl>>>,
    pub(crate) turns: Semaphore,
    /// For those that end before their turn: they only need records, but their inputs are read for that.
    pub(crate) leaving: Semaphore,
    pub(crate) readings: Arc<Semaphore>,
    pub(crate) uploads: Semaphore,
    pub(crate) downloads: Arc<Semaphore>,
    pub(crate) rooms: StorageQuotas,
    pub(crate) overview: Overview,
    /// Requests of all batches on each pod.
    pub(crate) offline: Mutex<Vec<(PodId, Arc<AtomicU32>)>>,
    /// How many those may be, for the pods of each model: its clients need others than those of the next.
    pub(crate) courtesies: Mutex<Vec<(Option<Name>, OnlinePriority<PodId>)>>,
}

impl Batches {
    pub(crate) fn new_id(&self, prefix: &str) -> String {
        format!("{prefix}{:016x}{:08x}", self.worker.random(), self.worker.random() as u32)
    }

    pub(crate) fn running(&self) -> MutexGuard<'_, BTreeMap<String, watch::Sender<RunControl>>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Batches whose turn it is; others wait for one, or end without.
    pub(crate) fn turns_taken(&self) -> usize {
        AT_ONCE - self.turns.available_permits()
    }

    /// The right to read an input for somebody who asks; who reads has it until that is over, also if nobody waits any more.
    pub(crate) async fn turn_to_read(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.readings).acquire_owned().await.ok()
    }

    /// The count of offline requests on a pod.
    pub(crate) fn offline_on(&self, pod: PodId) -> Arc<AtomicU32> {
        let mut counts = self.offline.lock().unwrap_or_else(PoisonError::into_inner);
        // Of pods that have gone, nobody holds the count any more.
        counts.retain(|(_, count)| Arc::strong_count(count) > 1);
        if let Some((_, count)) = counts.iter().find(|(known, _)| *known == pod) {
            return Arc::clone(count);
        }
        let count = Arc::<AtomicU32>::default();
        counts.push((pod, Arc::clone(&count)));
        count
    }

    /// How many offline requests a pod of a model may have that has so many of clients now.
    pub(crate) fn ceiling(
        &self,
        model: Option<Name>,
        (now, pod, clients): (Moment, PodId, usize),
    ) -> usize {
        let mut all = self.courtesies.lock().unwrap_or_else(PoisonError::into_inner);
        let known = all.iter().position(|(known, _)| *known == model).unwrap_or_else(|| {
            all.push((model, OnlinePriority::new(self.rules.window.get())));
            all.len() - 1
        });
        let courtesy = &mut all[known].1;
        courtesy.observe(now, pod, clients);
        courtesy.ceiling(pod)
    }

    /// Asks the store where that keeps no request waiting.
    pub(crate) async fn ask<T: Send + 'static>(
        &self,
        ask: impl FnOnce(&dyn Store) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let store = Arc::clone(&self.store);
        let asked = self.worker.gateway().pods().background().spawn_blocking(move || ask(&*store));
        asked.await.map_err(|error| StoreError::Unreachable(error.to_string()))?
    }
}
