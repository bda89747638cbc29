//! What is known of pods, kept over a restart: read at the start, written now and then and at the end.
//!
//! Nothing depends on it. A file that cannot be read or written is said aloud and counted, and the router goes on.

use crate::settings::CheckpointSettings;
use crate::state::{Gateway, lock};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use wornpath_events::checkpoint::{CheckpointSize, PodCheckpoint, read};
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
                let blocks: usize = records.iter().map(|record| record.blocks.len()).sum();
                tracing::info!(%file, pods = records.len(), blocks, "checkpoint read: it counts once the pods confirm it");
                records
            }
            Err(error) => {
                tracing::warn!(%file, "checkpoint passed over, every pod is asked for all it has: {error}");
                Vec::new()
            }
        }
    }

    /// Writes down what is known now.
    pub(crate) fn write(&self, gateway: &Gateway) {
        let mut history = lock(&self.history);
        match gateway.events().write_checkpoint(&self.settings.file) {
            Ok(written) => {
                history.last = Some((gateway.now(), written));
                history.written += 1;
                tracing::debug!(?written, "checkpoint written");
            }
            Err(error) => {
                history.failed += 1;
                tracing::warn!(file = %self.settings.file.display(), "checkpoint not written: {error}");
            }
        }
    }
}

/// Writes the checkpoint now and then, for as long as it is polled, if there is one.
pub(crate) async fn keep(gateway: Arc<Gateway>) {
    let Some(checkpoint) = &gateway.checkpoint else { return };
    loop {
        tokio::time::sleep(checkpoint.settings.every).await;
        let gateway = Arc::clone(&gateway);
        if gateway.now() > KEPT_FOR {
            gateway.events().load_checkpoint(Vec::new());
        }
        let writing = tokio::task::spawn_blocking(move || finish(&gateway));
        if let Err(error) = writing.await {
            tracing::warn!("checkpoint not written: {error}");
        }
    }
}

/// Writes it once more, if there is one.
pub(crate) fn finish(gateway: &Gateway) {
    if let Some(checkpoint) = &gateway.checkpoint {
        checkpoint.write(gateway);
    }
}
