//! The state of the batch service, shared by its calls and its tasks.

use crate::damage::DamageLog;
use crate::overview::Overview;
use crate::profile::PlannedProfile;
use crate::run_slots::RunSlots;
use crate::storage_quota::StorageQuotas;
use crate::temp_files::TempFiles;
use crate::upload_slots::UploadSlots;
use std::collections::BTreeMap;
use std::sync::atomic::AtomicU32;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use wornpath_config::BatchRules;
use wornpath_gateway::proxy::worker::Worker;
use wornpath_gateway::watchdog::heartbeat::Watched;
use wornpath_index::{Moment, PodId};
use wornpath_jobs::{AnswerBudget, RunControl, Store, StoreError};
use wornpath_planner::OnlinePriority;
use wornpath_routing::Name;

/// Polling interval.
pub(crate) const PAUSE: Duration = Duration::from_millis(200);
/// Maximum number of batches that run at the same time.
pub(crate) const MAX_RUNNING: usize = 4;
/// Maximum concurrent downloads: each has a chunk in memory.
pub(crate) const DOWNLOADS: usize = 256;
/// Maximum inputs that are read for plans and retries at the same time: each takes a blocking
/// thread that clients' long prompts need as well.
pub(crate) const READERS: usize = 2;

/// The batch service.
pub(crate) struct Batches {
    /// The store's thread, if it has one, as the watchdog sees it.
    pub(crate) _watched: Option<Watched>,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) rules: BatchRules,
    pub(crate) temp_files: TempFiles,
    pub(crate) profile: PlannedProfile,
    pub(crate) worker: Arc<Worker>,
    /// Batches that run or wait for a slot, with the channel that controls each.
    pub(crate) running: Mutex<BTreeMap<String, watch::Sender<RunControl>>>,
    pub(crate) run_slots: Arc<RunSlots>,
    /// Slots for batches that end before they run: only their records are written, but that
    /// requires reading the input.
    pub(crate) closing_slots: Arc<RunSlots>,
    pub(crate) readers: Arc<Semaphore>,
    /// Held while a batch is checked against the quotas and added.
    pub(crate) creating: tokio::sync::Mutex<()>,
    pub(crate) uploads: UploadSlots,
    pub(crate) downloads: Arc<Semaphore>,
    pub(crate) storage_quotas: StorageQuotas,
    /// The memory for responses, of all batches.
    pub(crate) answers: AnswerBudget,
    pub(crate) overview: Overview,
    pub(crate) damage: DamageLog,
    /// Batch requests in flight on each pod, over all batches.
    pub(crate) offline: Mutex<Vec<(PodId, Arc<AtomicU32>)>>,
    /// The limits of those, which follow the online load, per model.
    pub(crate) online_priorities: Mutex<Vec<(Option<Name>, OnlinePriority<PodId>)>>,
}

impl Batches {
    pub(crate) fn new_id(&self, prefix: &str) -> String {
        format!("{prefix}{:016x}{:08x}", self.worker.random(), self.worker.random() as u32)
    }

    pub(crate) fn running(&self) -> MutexGuard<'_, BTreeMap<String, watch::Sender<RunControl>>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Number of batches that hold a run slot.
    pub(crate) fn running_count(&self) -> usize {
        self.run_slots.held()
    }

    /// A permit to read an input for a plan or a retry. The reader holds it until it is done, even
    /// if the client has disconnected.
    pub(crate) async fn acquire_reader(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.readers).acquire_owned().await.ok()
    }

    /// The counter of batch requests in flight on a pod.
    pub(crate) fn offline_on(&self, pod: PodId) -> Arc<AtomicU32> {
        let mut counts = self.offline.lock().unwrap_or_else(PoisonError::into_inner);
        // The counter of a removed pod has no other holder.
        counts.retain(|(_, count)| Arc::strong_count(count) > 1);
        if let Some((_, count)) = counts.iter().find(|(known, _)| *known == pod) {
            return Arc::clone(count);
        }
        let count = Arc::<AtomicU32>::default();
        counts.push((pod, Arc::clone(&count)));
        count
    }

    /// The maximum of batch requests on a pod of a model that has `online` online requests now.
    pub(crate) fn ceiling(
        &self,
        model: Option<Name>,
        now: Moment,
        pod: PodId,
        online: usize,
    ) -> usize {
        let mut all = self.online_priorities.lock().unwrap_or_else(PoisonError::into_inner);
        let known = all.iter().position(|(known, _)| *known == model).unwrap_or_else(|| {
            all.push((model, OnlinePriority::new(self.rules.window.get())));
            all.len() - 1
        });
        let priority = &mut all[known].1;
        priority.observe(now, pod, online);
        priority.ceiling(pod)
    }

    /// Calls the store on a blocking thread, so that it delays no request.
    pub(crate) async fn with_store<T: Send + 'static>(
        &self,
        call: impl FnOnce(&dyn Store) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let store = Arc::clone(&self.store);
        let called =
            self.worker.gateway().pods().background().spawn_blocking(move || call(&*store));
        let called = called.await.map_err(|error| StoreError::Unreachable(error.to_string()))?;
        called.inspect_err(|error| self.damage.note(error))
    }
}
