//! What is known of pods, kept over a restart: read at the start, written now and then and at the end.
//!
//! Nothing depends on it. A file that cannot be read or written is said aloud and counted, and the router goes on.

use crate::fleet::registry::{PodRegistry, lock};
use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use wornpath_config::CheckpointSettings;
use wornpath_events::checkpoint::{CheckpointSize, PodCheckpoint, read, write};
use wornpath_index::Moment;

/// How long records are kept for pods that have not come. Discovery finds them in seconds, or they are no more.
const KEPT_FOR: Duration = Duration::from_secs(120);

/// The file, and how writing it went.
#[derive(Debug)]
pub(crate) struct Checkpoint {
    settings: CheckpointSettings,
    /// Held while it is written.
    history: Mutex<CheckpointHistory>,
}

/// How writing went so far.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CheckpointHistory {
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

    /// What was written before the start; nothing if it cannot be used.
    pub(crate) fn read(&self) -> Vec<PodCheckpoint> {
        let file = self.settings.file.display();
        match read(&self.settings.file) {
            Ok(records) => {
                let blocks: usize = records.iter().map(|record| record.items.len()).sum();
                tracing::info!(%file, pods = records.len(), blocks, "checkpoint loaded; waiting for pods to confirm it");
                records
            }
            Err(error) => {
                tracing::warn!(%file, %error, "checkpoint ignored; requesting full snapshots");
                Vec::new()
            }
        }
    }

    /// Writes down what is known now.
    pub(crate) fn write(&self, registry: &PodRegistry) {
        let mut history = lock(&self.history);
        match write(&self.settings.file, registry.events()) {
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

/// Writes the checkpoint now and then, for as long as it is polled, if there is one.
pub(crate) async fn keep(checkpoint: Arc<Checkpoint>, registry: Arc<PodRegistry>) -> Infallible {
    loop {
        tokio::time::sleep(checkpoint.settings.every).await;
        let (checkpoint, registry) = (Arc::clone(&checkpoint), Arc::clone(&registry));
        if registry.now() > KEPT_FOR {
            registry.events().recall(Vec::new());
        }
        let writing = tokio::task::spawn_blocking(move || checkpoint.write(&registry));
        if let Err(error) = writing.await {
            tracing::warn!(%error, "checkpoint write failed");
        }
    }
}
