//! How the batch service starts, and what it does now and then.

use crate::batches::{AT_ONCE, Batches, DOWNLOADS, READINGS, UPLOADS};
use crate::error::BatchesError;
use crate::overview::Overview;
use crate::profile::PlannedProfile;
use crate::storage_quota::StorageQuotas;
use crate::task;
use crate::temp_files::TempFiles;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::Semaphore;
use wornpath_config::{BatchRules, BatchStoreSettings};
use wornpath_gateway::Gateway;
use wornpath_gateway::proxy::unix_time;
use wornpath_gateway::proxy::worker::Worker;
use wornpath_gateway::watchdog::heartbeat::Watched;
use wornpath_gateway::watchdog::supervise;
use wornpath_jobs::{FsStore, RealDisk, Store};

/// How long other gateways wait for one of which nothing is heard.
#[cfg(feature = "postgres")]
const TERM: Duration = Duration::from_secs(15);
/// How often what is past its time is removed.
const SWEEP: Duration = Duration::from_secs(60);

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
    supervise(gateway.pods().background(), "keeping batches' house", &batches, keep_house);
    gateway.serve_locally(batches);
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
