//! The access log: a line for each finished request, written by a thread of its own.
//!
//! The thread that served the request copies a few fields into a bounded queue and never waits: a
//! disk that is full, or a pipe that is not read, costs lines, which are counted, and no request.

mod line;
mod writer;

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};
use std::thread::Builder;
use std::time::Duration;

use tokio::sync::oneshot;
use wornpath_config::{AccessLogSettings, LoggedFailures};

use crate::observe::export_counts::ExportCounts;
use crate::observe::metrics::Metrics;
use crate::observe::summary::{RequestEnd, RequestSummary, SummaryObserver};
use crate::observe::timestamp::Timestamp;
use line::AccessRecord;
use writer::{AccessWriter, LogTarget};

/// Capacity of the queue of lines.
const MAX_QUEUED: usize = 8192;
/// Timeout of the flush at shutdown.
const FINISH_TIMEOUT: Duration = Duration::from_secs(1);
/// How often a full queue is tried again at shutdown.
const FINISH_RETRY: Duration = Duration::from_millis(10);

/// A message to the thread that writes.
enum AccessMessage {
    Line(Box<AccessRecord>),
    /// Opens the file again: it may have been renamed.
    Reopen,
    /// Requests a confirmation once all earlier lines were written.
    Flush(oneshot::Sender<()>),
}

/// Puts a line for each finished request into the queue.
pub struct AccessLog {
    queue: SyncSender<AccessMessage>,
    sampler: LineSampler,
    counts: Arc<ExportCounts>,
}

/// Chooses the requests that get a line.
struct LineSampler {
    share: f64,
    failures: LoggedFailures,
    /// Requests so far.
    count: AtomicU64,
}

impl LineSampler {
    fn has_line(&self, record: &RequestSummary) -> bool {
        if self.failures == LoggedFailures::All && is_failed(record) {
            return true;
        }
        if self.share >= 1.0 {
            return true;
        }
        // Evenly spread, so that the share is exact over any stretch of requests.
        let count = self.count.fetch_add(1, Relaxed) as f64;
        ((count + 1.0) * self.share).floor() > (count * self.share).floor()
    }
}

fn is_failed(record: &RequestSummary) -> bool {
    record.status >= 400 || record.ended != RequestEnd::Whole
}

impl AccessLog {
    /// Opens the log and starts the thread that writes it.
    ///
    /// # Errors
    /// If the file cannot be opened, or the thread not started.
    pub fn start(settings: &AccessLogSettings, metrics: &Metrics) -> io::Result<Self> {
        Self::counted(settings, &metrics.access_log)
    }

    fn counted(settings: &AccessLogSettings, counts: &Arc<ExportCounts>) -> io::Result<Self> {
        let target = LogTarget::open(&settings.to)?;
        let (queue, lines) = sync_channel(MAX_QUEUED);
        let writer = AccessWriter::new(settings, target, Arc::clone(counts));
        // Ends with the queue; never joined, since a write may block for ever.
        Builder::new().name("access-log".to_owned()).spawn(move || writer.run(&lines))?;
        let sampler = LineSampler {
            share: settings.share,
            failures: settings.failures,
            count: AtomicU64::new(0),
        };
        Ok(Self { queue, sampler, counts: Arc::clone(counts) })
    }

    /// Opens the file again, after the lines that are queued.
    pub fn reopen(&self) {
        if self.queue.try_send(AccessMessage::Reopen).is_err() {
            tracing::warn!("access log not opened again: its queue is full; reload once more");
        }
    }
}

impl SummaryObserver for AccessLog {
    fn ended(&self, record: &RequestSummary) {
        if !self.sampler.has_line(record) {
            return;
        }
        let line = Box::new(AccessRecord::new(record, Timestamp::now()));
        if self.queue.try_send(AccessMessage::Line(line)).is_err() {
            self.counts.dropped.fetch_add(1, Relaxed);
        }
    }

    fn finish(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        Box::pin(async {
            let (flushed, done) = oneshot::channel();
            let flush = async {
                let mut message = AccessMessage::Flush(flushed);
                while let Err(TrySendError::Full(back)) = self.queue.try_send(message) {
                    message = back;
                    tokio::time::sleep(FINISH_RETRY).await;
                }
                done.await.is_ok()
            };
            if tokio::time::timeout(FINISH_TIMEOUT, flush).await != Ok(true) {
                tracing::warn!("access log lines lost at shutdown: its target accepts no lines");
            }
        })
    }
}

#[cfg(test)]
mod tests;
