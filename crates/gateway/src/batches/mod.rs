//! OpenAI's Files and Batches interface, on the gateway's own pipeline.
//!
//! What clients upload and create is kept in a [`Store`] before they are answered. Every batch that has not ended
//! is run by one task ([`life`]): read, planned over the pods that are there, and sent through the same
//! decisions and the same queue as everybody's requests, at the lowest priority and with its planned pod
//! as a hint. How many are under way at once shrinks as clients want more.

mod engines;
mod life;
mod lists;
mod multipart;
mod overview;
mod retry;
mod routes;
mod trouble;
mod upload;

pub(crate) use routes::respond;

use crate::desk::Worker;
use crate::state::Gateway;
use overview::Overview;
use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::{Semaphore, watch};
use wornpath_jobs::{RealDisk, Shelf, Store, StoreError, UnixTime, Wish};
use wornpath_routing::{Problems, Profile, Surroundings};

/// Batches that are run at once.
const AT_ONCE: usize = 4;

/// How planned requests are routed: where the plan says, if that pod may take them.
const OFFLINE: &str = "\
prepare: [plan_hint]
filter: [healthy, model]
score:
  - least_load
pick:
  planned: {otherwise: max_score}
";

/// What batches may be like.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BatchRules {
    /// Where they are kept.
    pub folder: PathBuf,
    /// Lines of an input.
    pub most_lines: usize,
    /// Bytes of an upload.
    pub most_bytes: u64,
    /// Offline requests on one pod at once.
    pub window: NonZeroUsize,
    /// Tokens in a block, where the model's are not known.
    pub block_size: NonZeroUsize,
}

impl BatchRules {
    /// As OpenAI has it, but for higher limits.
    #[must_use]
    pub fn in_folder(folder: PathBuf) -> Self {
        Self {
            folder,
            most_lines: 1_000_000,
            most_bytes: 4 << 30,
            window: NonZeroUsize::new(128).expect("128 is not zero"),
            block_size: NonZeroUsize::new(16).expect("16 is not zero"),
        }
    }
}

/// Batches that cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum BatchesError {
    /// What was kept cannot be opened.
    #[error("batches: {0}")]
    Store(#[from] StoreError),
    /// The profile for planned requests does not fit.
    #[error("batches: {0}")]
    Profile(Problems),
}

/// Serves batches.
pub(crate) struct Batches {
    store: Arc<dyn Store>,
    rules: BatchRules,
    profile: Arc<Profile>,
    worker: Arc<Worker>,
    /// Who runs, and how to tell it what is wished.
    running: Mutex<BTreeMap<String, watch::Sender<Wish>>>,
    turns: Semaphore,
    overview: Overview,
}

/// Opens what was kept, goes on with what had not ended, and serves from now on.
///
/// # Errors
/// If the store cannot be opened.
pub fn serve_batches(gateway: &Arc<Gateway>, rules: BatchRules) -> Result<(), BatchesError> {
    let surroundings =
        Surroundings { models: Arc::clone(gateway.routing().models()), ..Surroundings::default() };
    let profile = Profile::check("planned requests", OFFLINE, &surroundings)
        .map_err(BatchesError::Profile)?;
    let store = Shelf::open(Arc::new(RealDisk), &rules.folder)?;
    // No worker that answers clients has this number.
    let number = gateway.settings().workers.get() + 1;
    let batches = Arc::new(Batches {
        store: Arc::new(store),
        rules,
        profile: Arc::new(profile),
        worker: Arc::new(Worker::new(Arc::clone(gateway), number)),
        running: Mutex::default(),
        turns: Semaphore::new(AT_ONCE),
        overview: Overview::default(),
    });
    for batch in batches.store.unfinished()? {
        life::start(&batches, batch.id);
    }
    gateway.keep_batches(batches);
    Ok(())
}

impl Batches {
    fn new_id(&self, prefix: &str) -> String {
        format!("{prefix}{:016x}{:08x}", self.worker.random(), self.worker.random() as u32)
    }

    fn running(&self) -> MutexGuard<'_, BTreeMap<String, watch::Sender<Wish>>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
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
fn unix_time() -> UnixTime {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}
