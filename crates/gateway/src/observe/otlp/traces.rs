//! Export of traces: a bounded queue of traced requests, and the task that sends it.

use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use wornpath_config::OtlpTarget;
use wornpath_index::Moment;

use super::collector::Collector;
use super::messages::{ExportTraces, Resource, ResourceSpans, ScopeSpans};
use super::{resource, scope, spans, zero};
use crate::observe::export_counts::ExportCounts;
use crate::observe::summary::{RequestSummary, SummaryObserver};

/// Capacity of the export queue, in requests.
const MAX_QUEUED: usize = 4096;
/// Requests per export.
const MAX_BATCH: usize = 256;
const EXPORT_INTERVAL: Duration = Duration::from_secs(1);
/// Timeout of the flush at shutdown; less than the watchdog allows for it.
const FINISH_TIMEOUT: Duration = Duration::from_millis(1500);

/// An entry of the export queue.
enum QueuedSpans {
    Ended(Box<RequestSummary>),
    /// Requests a confirmation once all earlier entries were sent.
    Flush(oneshot::Sender<()>),
}

/// Puts traced requests into the export queue.
pub(crate) struct Exporter {
    queue: mpsc::Sender<QueuedSpans>,
    /// Requests put into the queue so far.
    queued: AtomicU64,
    counts: Arc<ExportCounts>,
}

impl SummaryObserver for Exporter {
    fn ended(&self, record: &RequestSummary) {
        let is_traced = record.trace.as_ref().is_some_and(|trace| trace.context.is_some());
        if !is_traced {
            return;
        }
        let is_queued = self.queue.try_send(QueuedSpans::Ended(Box::new(record.clone()))).is_ok();
        let count = if is_queued { &self.queued } else { &self.counts.dropped };
        count.fetch_add(1, Relaxed);
    }

    fn finish(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        Box::pin(async {
            let flush = async {
                let (flushed, done) = oneshot::channel();
                let is_queued = self.queue.send(QueuedSpans::Flush(flushed)).await.is_ok();
                is_queued && done.await.is_ok()
            };
            if tokio::time::timeout(FINISH_TIMEOUT, flush).await != Ok(true) {
                let counts = &self.counts;
                let done = counts.exported.load(Relaxed) + counts.failed.load(Relaxed);
                let lost = self.queued.load(Relaxed).saturating_sub(done);
                counts.dropped.fetch_add(lost, Relaxed);
                tracing::warn!(lost, "traces lost at shutdown");
            }
        })
    }
}

/// Sends the entries of the export queue to the collector.
pub(crate) struct Sender {
    queue: mpsc::Receiver<QueuedSpans>,
    counts: Arc<ExportCounts>,
    collector: Collector,
    resource: Resource,
    /// The wall-clock time of moment zero, in nanoseconds since 1970.
    zero: u64,
}

/// Makes an exporter and its sender.
pub(crate) fn exporter(
    target: &OtlpTarget,
    attributes: &[(String, String)],
    counts: &Arc<ExportCounts>,
    now: Moment,
) -> (Exporter, Sender) {
    let (sender, queue) = mpsc::channel(MAX_QUEUED);
    let exporter =
        Exporter { queue: sender, queued: AtomicU64::new(0), counts: Arc::clone(counts) };
    let sender = Sender {
        queue,
        counts: Arc::clone(counts),
        collector: Collector::new(target.clone()),
        resource: resource(attributes),
        zero: zero(now),
    };
    (exporter, sender)
}

impl Sender {
    /// Sends until the exporter is dropped.
    pub(crate) async fn run(mut self) {
        let mut batch = Vec::new();
        while let Some(first) = self.queue.recv().await {
            let flushed = self.gather(first, &mut batch).await;
            if !batch.is_empty() {
                self.export(&batch).await;
                batch.clear();
            }
            if let Some(flushed) = flushed {
                // The flush may have timed out.
                let _ = flushed.send(());
            }
        }
    }

    /// Collects the entries of one export interval. Returns the confirmation to send if a flush
    /// ended it.
    async fn gather(
        &mut self,
        first: QueuedSpans,
        batch: &mut Vec<RequestSummary>,
    ) -> Option<oneshot::Sender<()>> {
        let mut interval = pin!(tokio::time::sleep(EXPORT_INTERVAL));
        let mut next = first;
        loop {
            match next {
                QueuedSpans::Ended(record) => batch.push(*record),
                QueuedSpans::Flush(flushed) => return Some(flushed),
            }
            if batch.len() == MAX_BATCH {
                return None;
            }
            next = tokio::select! {
                more = self.queue.recv() => more?,
                () = &mut interval => return None,
            };
        }
    }

    async fn export(&self, batch: &[RequestSummary]) {
        let count = batch.len() as u64;
        let traced = batch.iter().filter_map(|record| Some((record, record.trace.as_deref()?)));
        let spans = traced.flat_map(|(record, trace)| spans::spans(record, trace, self.zero));
        let scope_spans = vec![ScopeSpans { scope: Some(scope()), spans: spans.collect() }];
        let resource = Some(self.resource.clone());
        let message =
            ExportTraces { resource_spans: vec![ResourceSpans { resource, scope_spans }] };
        match self.collector.export(&message).await {
            Ok(()) => self.counts.exported.fetch_add(count, Relaxed),
            Err(reason) => {
                let collector = self.collector.url();
                tracing::warn!(%collector, reason, "trace export failed");
                self.counts.failed.fetch_add(count, Relaxed)
            }
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dialect::Api;
    use crate::observe::request_trace::{RequestTrace, TraceContext};

    #[test]
    fn what_does_not_fit_into_the_queue_is_dropped_and_counted() {
        let target = OtlpTarget::default();
        let counts = Arc::<ExportCounts>::default();
        let (exporter, sender) = exporter(&target, &[], &counts, Moment::ZERO);
        let context = Some(TraceContext { trace: 1, parent: None, span: 2 });
        let trace = Some(Arc::new(RequestTrace { context, ..RequestTrace::default() }));
        let record = RequestSummary { trace, ..RequestSummary::new("r", Api::CHAT) };
        for _ in 0..MAX_QUEUED + 3 {
            exporter.ended(&record);
        }
        exporter.ended(&RequestSummary::new("untraced", Api::CHAT));
        assert_eq!(counts.dropped.load(Relaxed), 3);
        assert_eq!(exporter.queued.load(Relaxed), MAX_QUEUED as u64);
        assert_eq!(sender.queue.len(), MAX_QUEUED);
    }
}
