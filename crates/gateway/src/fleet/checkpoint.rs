//! The checkpoint: the state of the pods' caches, kept across a restart. Read at start, written
//! periodically and at shutdown.
//!
//! It is an optimization only: a failed read or write is logged and counted, and the router
//! continues.

use crate::fleet::registry::{PodRegistry, lock};
use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use wornpath_config::CheckpointSettings;
use wornpath_events::checkpoint::{CheckpointSize, PodCheckpoint, read};
use wornpath_index::Moment;

/// How long records wait for their pods to be added. Discovery finds pods within seconds, or they
/// are gone.
const RECORD_TIMEOUT: Duration = Duration::from_secs(120);

/// The checkpoint file and its statistics.
#[derive(Debug)]
pub(crate) struct Checkpoint {
    settings: CheckpointSettings,
    /// Held during a write.
    history: Mutex<CheckpointHistory>,
}

/// Statistics of the writes so far.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CheckpointHistory {
    /// The last successful write.
    pub(crate) last: Option<(Moment, CheckpointSize)>,
    pub(crate) written: u64,
    pub(crate) failed: u64,
}

impl Checkpoint {
    pub(crate) fn new(settings: CheckpointSettings) -> Self {
        Self { settings, history: Mutex::default() }
    }

    pub(crate) fn history(&self) -> CheckpointHistory {
        *lock(&self.history)
    }

    /// The records of the previous process; empty if the file cannot be used.
    pub(crate) fn read(&self) -> Vec<PodCheckpoint> {
        let file = self.settings.file.display();
        match read(&self.settings.file) {
            Ok(records) => {
                let blocks: usize = records.iter().map(|record| record.blocks.len()).sum();
                tracing::info!(%file, pods = records.len(), blocks, "checkpoint loaded; waiting for pods to confirm it");
                records
            }
            Err(error) => {
                tracing::warn!(%file, %error, "checkpoint ignored; requesting full snapshots");
                Vec::new()
            }
        }
    }

    /// Writes the current state of all pods.
    pub(crate) fn write(&self, registry: &PodRegistry) {
        let mut history = lock(&self.history);
        match registry.events().write_checkpoint(&self.settings.file) {
            Ok(written) => {
                history.last = Some((registry.now(), written));
                history.written += 1;
                tracing::debug!(?written, "checkpoint written");
            }
            Err(error) => {
                history.failed += 1;
                tracing::warn!(file = %self.settings.file.display(), %error, "checkpoint write failed");
            }
        }
    }
}

/// Writes the checkpoint at the configured interval; never returns.
pub(crate) async fn write_periodically(
    checkpoint: Arc<Checkpoint>,
    registry: Arc<PodRegistry>,
) -> Infallible {
    loop {
        tokio::time::sleep(checkpoint.settings.every).await;
        let checkpoint = Arc::clone(&checkpoint);
        let registry = Arc::clone(&registry);
        if registry.now() > Moment::at(RECORD_TIMEOUT) {
            registry.events().load_checkpoint(Vec::new());
        }
        let write = tokio::task::spawn_blocking(move || checkpoint.write(&registry));
        if let Err(error) = write.await {
            tracing::warn!(%error, "checkpoint write failed");
        }
    }
}
