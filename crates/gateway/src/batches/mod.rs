//! OpenAI's Files and Batches interface, on the gateway's own pipeline.
//!
//! What clients upload and create is kept in a [`Store`] before they are answered. Every batch that has not ended
//! is run by one task ([`task`]): read, planned over the pods that are there, and sent through the same
//! decisions and the same queue as everybody's requests, at the lowest priority and with its planned pod
//! as a hint. How many are under way at once shrinks as clients want more.

mod eligible_pods;
mod engines;
mod error;
mod explained;
mod file_reader;
mod finalize;
mod forest;
mod lists;
mod model;
mod overview;
mod prefix_match;
mod profile;
mod retry;
mod routes;
mod storage_quota;
mod task;
mod temp_files;
mod upload;

pub(crate) use routes::respond;

use crate::state::Gateway;
use crate::supervise::tend;
use crate::watchdog::Watched;
use crate::worker::Worker;
use overview::Overview;
use profile::PlannedProfile;
use std::collections::BTreeMap;
use std::sync::atomic::AtomicU32;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use storage_quota::StorageQuotas;
use temp_files::TempFiles;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use wornpath_config::{BatchRules, BatchStoreSettings};
use wornpath_index::{Moment, PodId};
use wornpath_jobs::{FsStore, RealDisk, RunControl, Store, StoreError, UnixTime};
use wornpath_planner::OnlinePriority;
use wornpath_routing::{Name, Problems};

/// Batches that are run at once.
const AT_ONCE: usize = 4;
/// Uploads that are taken in at once: each has a thread that writes it.
const UPLOADS: usize = 64;
/// Downloads at once: of each, a piece is in memory.
const DOWNLOADS: usize = 256;
/// Inputs that are read for somebody who asks, at once: each takes a thread that clients' long prompts need too.
const READINGS: usize = 2;
/// How long other gateways wait for one of which nothing is heard.
#[cfg(feature = "postgres")]
const TERM: Duration = Duration::from_secs(15);
/// How often what is past its time is removed.
const SWEEP: Duration = Duration::from_secs(60);

/// How planned requests are routed: where the plan says, if that pod may take them. They wait in the queue, behind
/// everybody else's, until that pod is about to have computed what it was sent, and none waits inside its engine.
pub const PLANNED: &str = "\
prepare: [plan_hint, tokenize, block_hash]
filter: [healthy, model]
score:
  - least_load
pick:
  planned: {otherwise: max_score}
hold:
  unless:
    - backlog: {at_most_ms: 100, waiting: 0, rates: fixed}
  deadline: 10m
";

/// The same by the prompts' text, where some model has no tokenizer.
const PLANNED_BY_TEXT: &str = "\
prepare: [plan_hint, text_blocks]
filter: [healthy, model]
score:
  - least_load
pick:
  planned: {otherwise: max_score}
hold:
  unless:
    - backlog: {at_most_ms: 100, waiting: 0}
  deadline: 10m
speculate: 600s
";

/// Batches that cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum BatchesError {
    /// What was kept cannot be opened.
    #[error("batches: {0}")]
    Store(#[from] StoreError),
    /// The database's client is not part of this binary.
    #[error("batches: this binary cannot speak to PostgreSQL; build it with `--features postgres`")]
    NotBuilt,
    /// The profile for planned requests does not fit.
    #[error("batches: {0}")]
    Profile(Problems),
}

/// Serves batches.
pub(crate) struct Batches {
    /// The thread of the store, if it has one.
    _watched: Option<Watched>,
    store: Arc<dyn Store>,
    rules: BatchRules,
    scratch: TempFiles,
    profile: PlannedProfile,
    worker: Arc<Worker>,
    /// Who runs or waits for its turn, and how to tell it what is wished.
    running: Mutex<BTreeMap<String, watch::Sender<RunControl>>>,
    turns: Semaphore,
    /// For those that end before their turn: they only need records, but their inputs are read for that.
    leaving: Semaphore,
    readings: Arc<Semaphore>,
    uploads: Semaphore,
    downloads: Arc<Semaphore>,
    rooms: StorageQuotas,
    overview: Overview,
    /// Requests of all batches on each pod.
    offline: Mutex<Vec<(PodId, Arc<AtomicU32>)>>,
    /// How many those may be, for the pods of each model: its clients need others than those of the next.
    courtesies: Mutex<Vec<(Option<Name>, OnlinePriority<PodId>)>>,
}

/// Opens what was kept, goes on with what had not ended, and serves from now on.
///
/// # Errors
/// If the store cannot be opened.
pub fn serve_batches(gateway: &Arc<Gateway>, rules: BatchRules) -> Result<(), BatchesError> {
    let profile = PlannedProfile::new(gateway)?;
    let (store, watched) = open(gateway, &rules)?;
    // No worker that answers clients has this number.
    let number = gateway.settings().workers.get() + 1;
    let batches = Arc::new(Batches {
        _watched: watched,
        store,
        scratch: TempFiles::of(&rules),
        rules,
        profile,
        worker: Arc::new(Worker::new(Arc::clone(gateway), number)),
        running: Mutex::default(),
        turns: Semaphore::new(AT_ONCE),
        leaving: Semaphore::new(1),
        readings: Arc::new(Semaphore::new(READINGS)),
        uploads: Semaphore::new(UPLOADS),
        downloads: Arc::new(Semaphore::new(DOWNLOADS)),
        rooms: StorageQuotas::default(),
        overview: Overview::default(),
        offline: Mutex::default(),
        courtesies: Mutex::default(),
    });
    tend(gateway.background(), "keeping batches' house", &batches, keep_house);
    gateway.keep_batches(batches);
    Ok(())
}

/// A store, and the thread that it has, if it has one.
type Opened = (Arc<dyn Store>, Option<Watched>);

/// Opens the store. On a thread of its own, because a database's client waits in a way that tasks must not.
fn open(gateway: &Arc<Gateway>, rules: &BatchRules) -> Result<Opened, BatchesError> {
    let opening = || -> Result<Opened, BatchesError> {
        match &rules.kept {
            BatchStoreSettings::Folder(folder) => {
                Ok((Arc::new(FsStore::open(Arc::new(RealDisk), folder)?), None))
            }
            #[cfg(feature = "postgres")]
            BatchStoreSettings::Postgres(address) => {
                let runner = gateway_name(gateway);
                let sharing = wornpath_jobs::PostgresSharing { runner, term: TERM };
                let store = wornpath_jobs::Postgres::open(address, sharing)?;
                let watched = gateway.threads.add("postgres").beat_on(store.event_loop());
                Ok((Arc::new(store), Some(watched)))
            }
            #[cfg(not(feature = "postgres"))]
            BatchStoreSettings::Postgres(_) => {
                let _ = gateway;
                Err(BatchesError::NotBuilt)
            }
        }
    };
    std::thread::scope(|scope| scope.spawn(opening).join())
        .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// A name that no other gateway has.
#[cfg(feature = "postgres")]
fn gateway_name(gateway: &Arc<Gateway>) -> String {
    let worker = Worker::new(Arc::clone(gateway), gateway.settings().workers.get() + 1);
    format!("{:016x}{:016x}", worker.random(), worker.random())
}

/// Goes on with what had not ended, takes up what other gateways were told or have left behind, and removes what is
/// past its time.
async fn keep_house(batches: Arc<Batches>) {
    let (term, keep) = (batches.store.term(), batches.rules.keep.as_secs());
    let (mut is_first, mut swept) = (true, 0);
    loop {
        // A folder is nobody else's: it is looked through once.
        if is_first || term < Duration::MAX {
            match batches.ask(|store| store.unfinished()).await {
                Ok(open) => {
                    open.into_iter().for_each(|batch| task::start(&batches, batch.id));
                    is_first = false;
                }
                Err(error) => tracing::warn!(%error, "batches cannot be looked through"),
            }
        }
        if unix_time().saturating_sub(swept) >= SWEEP.as_secs() {
            swept = unix_time();
            match batches.ask(move |store| store.sweep(unix_time(), keep)).await {
                Ok(0) => {}
                Ok(removed) => tracing::info!(removed, "files and batches past their time"),
                Err(error) => tracing::warn!(%error, "nothing can be removed"),
            }
        }
        tokio::time::sleep((term / 3).min(SWEEP)).await;
    }
}

impl Batches {
    fn new_id(&self, prefix: &str) -> String {
        format!("{prefix}{:016x}{:08x}", self.worker.random(), self.worker.random() as u32)
    }

    fn running(&self) -> MutexGuard<'_, BTreeMap<String, watch::Sender<RunControl>>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Batches whose turn it is; others wait for one, or end without.
    fn turns_taken(&self) -> usize {
        AT_ONCE - self.turns.available_permits()
    }

    /// The right to read an input for somebody who asks; who reads has it until that is over, also if nobody waits any more.
    async fn turn_to_read(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.readings).acquire_owned().await.ok()
    }

    /// The count of offline requests on a pod.
    fn offline_on(&self, pod: PodId) -> Arc<AtomicU32> {
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
    fn ceiling(&self, model: Option<Name>, (now, pod, clients): (Moment, PodId, usize)) -> usize {
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
    async fn ask<T: Send + 'static>(
        &self,
        ask: impl FnOnce(&dyn Store) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let store = Arc::clone(&self.store);
        let asked = self.worker.gateway.background().spawn_blocking(move || ask(&*store));
        asked.await.map_err(|error| StoreError::Unreachable(error.to_string()))?
    }
}

/// For timestamps that clients see, and for when a batch's time is over.
#[allow(clippy::disallowed_methods, reason = "the interface tells times of day")]
pub(crate) fn unix_time() -> UnixTime {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}
