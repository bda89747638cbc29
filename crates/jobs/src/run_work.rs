//! The interface of a run: its work, the signal that stops it, and its progress.

use crate::dedup::DedupGroups;
use crate::engines::LineSource;
use crate::record::{Counts, TokenUsage};
use std::sync::Arc;
use tokio::sync::watch;

/// The work of a run. A job of its plan has the number of its line.
pub struct RunWork {
    /// The lines of the input.
    pub source: Arc<dyn LineSource>,
    /// The prefix of the ids of its records.
    pub name: String,
    /// The line number in the input file, which names a request without a `custom_id`.
    pub numbers: Arc<dyn Fn(u32) -> u32 + Send + Sync>,
    /// Lines that get the response of an identical line.
    pub copies: DedupGroups,
}

impl std::fmt::Debug for RunWork {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "RunWork({})", self.name)
    }
}

/// Whether a run continues.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum RunControl {
    /// Requests are sent.
    #[default]
    GoOn,
    /// No more requests are sent; those in flight may end.
    Finish,
    /// Requests in flight are cancelled. Responses that have come are still published.
    Stop,
}

/// The channels between a run and its owner.
#[derive(Debug)]
pub struct RunChannels {
    /// Whether the run continues.
    pub control: watch::Receiver<RunControl>,
    /// Where the run reports its progress.
    pub progress: watch::Sender<RunProgress>,
}

/// The progress of a run.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct RunProgress {
    /// Lines, including those of earlier runs.
    pub counts: Counts,
    /// Tokens, as engines count them.
    pub usage: TokenUsage,
    /// Requests in flight.
    pub in_flight: usize,
    /// Pods that are lost.
    pub gone: usize,
    /// The pod that was lost last, and why.
    pub trouble: Option<(usize, String)>,
    /// Why nothing can be read or written at the moment; at the end, why the last responses were
    /// not published.
    pub blocked: Option<String>,
}
