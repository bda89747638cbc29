//! Starts the batch service, and its periodic maintenance.

use crate::batches::{Batches, DOWNLOADS, MAX_RUNNING, READERS};
use crate::damage::DamageLog;
use crate::error::BatchesError;
use crate::overview::Overview;
use crate::profile::PlannedProfile;
use crate::run_slots::RunSlots;
use crate::storage_quota::StorageQuotas;
use crate::sweeper::{SWEEP, Sweeper};
use crate::task;
use crate::temp_files::TempFiles;
use crate::upload_slots::UploadSlots;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::Semaphore;
use wornpath_config::{BatchRules, BatchStoreSettings};
use wornpath_gateway::Gateway;
use wornpath_gateway::proxy::worker::Worker;
use wornpath_gateway::watchdog::heartbeat::Watched;
use wornpath_gateway::watchdog::supervise;
use wornpath_jobs::{AnswerBudget, FsStore, RealDisk, Store};

/// Lease time: how long other gateways wait before they take over from a silent one.
#[cfg(feature = "postgres")]
const TERM: Duration = Duration::from_secs(15);

/// Opens the store, resumes unfinished batches, and enables the Files and Batches APIs.
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
        temp_files: TempFiles::of(&rules),
        answers: AnswerBudget::new(rules.answers),
        rules,
        profile,
        worker: Arc::new(Worker::new(Arc::clone(gateway), number)),
        running: Mutex::default(),
        run_slots: RunSlots::new(MAX_RUNNING),
        closing_slots: RunSlots::new(1),
        readers: Arc::new(Semaphore::new(READERS)),
        creating: tokio::sync::Mutex::default(),
        uploads: UploadSlots::default(),
        downloads: Arc::new(Semaphore::new(DOWNLOADS)),
        storage_quotas: StorageQuotas::default(),
        overview: Overview::default(),
        damage: DamageLog::default(),
        offline: Mutex::default(),
        online_priorities: Mutex::default(),
    });
    supervise(gateway.pods().background(), "batch maintenance", &batches, maintain);
    gateway.serve_locally(batches);
    Ok(())
}

/// A store, and its thread if it has one.
type Opened = (Arc<dyn Store>, Option<Watched>);

/// Opens the store on a separate thread, because a database client blocks.
fn open(gateway: &Arc<Gateway>, rules: &BatchRules) -> Result<Opened, BatchesError> {
    let opening = || -> Result<Opened, BatchesError> {
        match &rules.kept {
            BatchStoreSettings::Folder(folder) => {
                Ok((Arc::new(FsStore::open(Arc::new(RealDisk), folder)?), None))
            }
            #[cfg(feature = "postgres")]
            BatchStoreSettings::Postgres(database) => {
                let runner = gateway_name(gateway);
                let sharing = wornpath_jobs::PostgresSharing { runner, term: TERM };
                let server = wornpath_jobs::PostgresServer {
                    address: database.address.clone(),
                    password: database.password.clone(),
                    tls: database.tls.clone(),
                };
                let store = wornpath_jobs::Postgres::open(&server, sharing)?;
                let watched = gateway.threads().add("postgres").beat_on(store.event_loop());
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

/// A unique name of this gateway.
#[cfg(feature = "postgres")]
fn gateway_name(gateway: &Arc<Gateway>) -> String {
    let worker = Worker::new(Arc::clone(gateway), gateway.settings().workers.get() + 1);
    format!("{:016x}{:016x}", worker.random(), worker.random())
}

/// Resumes unfinished batches, picks up batches that other gateways created or abandoned, and
/// removes expired files and batches.
async fn maintain(batches: Arc<Batches>) {
    let term = batches.store.term();
    let mut is_first = true;
    let mut sweeper = Sweeper::new(&batches);
    loop {
        // Only this gateway uses a folder, so one scan is enough.
        if is_first || term < Duration::MAX {
            match batches.with_store(|store| store.unfinished()).await {
                Ok(open) => {
                    open.iter().for_each(|batch| task::start(&batches, batch));
                    is_first = false;
                }
                Err(error) => tracing::warn!(%error, "cannot list unfinished batches"),
            }
        }
        sweeper.sweep(&batches).await;
        tokio::time::sleep((term / 3).min(SWEEP)).await;
    }
}
