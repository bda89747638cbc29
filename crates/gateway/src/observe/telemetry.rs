//! Trace export: sends the spans of traced requests to a collector, as OTLP over HTTP in JSON.
//!
//! Written by hand because it is small: a list of spans, once a second. The threads that serve
//! clients never wait for it: if the collector is slow, spans are dropped and counted.

use crate::observe::request_trace::{RequestTrace, TraceContext};
use crate::observe::summary::{RequestSummary, SummaryObserver};
use bytes::Bytes;
use http_body_util::Full;
use hyper::header::{CONTENT_TYPE, HOST, HeaderValue};
use hyper::{Method, Request, Uri};
use serde_json::{Value, json};
use std::ops::Range;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};
use wornpath_config::TelemetrySettings;
use wornpath_execution::{
    BreakerRules, EgressPolicy, Endpoint, EndpointError, Timeouts, WorkerNumber, call,
};
use wornpath_index::Moment;
use wornpath_routing::StepExplanation;

/// Capacity of the export queue, in requests.
const MAX_QUEUED: usize = 4096;
/// Requests per export.
const MAX_BATCH: usize = 256;
const EXPORT_INTERVAL: Duration = Duration::from_secs(1);
/// Timeout of the flush at shutdown; less than the watchdog allows for it.
const FINISH_TIMEOUT: Duration = Duration::from_millis(1500);
const MAX_RESPONSE_BYTES: usize = 1 << 20;
const TIMEOUTS: Timeouts = Timeouts {
    connect: Duration::from_secs(2),
    first_byte: Duration::from_secs(5),
    between_bytes: Duration::from_secs(5),
    total: Duration::from_secs(10),
};

/// Export results of traced requests.
#[derive(Debug, Default)]
pub struct SpanCounts {
    /// Accepted by the collector.
    pub(crate) exported: AtomicU64,
    /// Refused by the collector, or not delivered.
    pub(crate) failed: AtomicU64,
    /// Not sent, because the export queue was full or the process ended.
    pub(crate) dropped: AtomicU64,
}

/// An entry of the export queue.
enum QueuedSpans {
    Ended(Box<RequestSummary>),
    /// Requests a confirmation once all earlier entries were sent.
    Flush(oneshot::Sender<()>),
}

/// Puts traced requests into the export queue.
pub struct Exporter {
    queue: mpsc::Sender<QueuedSpans>,
    /// Requests put into the queue so far.
    queued: AtomicU64,
    counts: Arc<SpanCounts>,
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
pub struct Sender {
    queue: mpsc::Receiver<QueuedSpans>,
    counts: Arc<SpanCounts>,
    endpoint: Arc<Endpoint>,
    service: String,
    /// The wall-clock time of moment zero, in nanoseconds since 1970.
    zero: u128,
}

/// Makes an exporter and its sender.
///
/// # Errors
/// If the address of the collector is invalid.
pub fn exporter(
    settings: &TelemetrySettings,
    reach: &EgressPolicy,
    now: Moment,
) -> Result<(Exporter, Sender), EndpointError> {
    // The address list restricts pods only; the certificates apply to both.
    let reach = Arc::new(EgressPolicy { allowed: None, tls: reach.tls.clone() });
    let endpoint =
        Endpoint::new(&settings.otlp, BreakerRules::default(), 1)?.with_egress_policy(&reach)?;
    let (sender, queue) = mpsc::channel(MAX_QUEUED);
    let counts = Arc::<SpanCounts>::default();
    let queued = AtomicU64::new(0);
    let exporter = Exporter { queue: sender, queued, counts: Arc::clone(&counts) };
    let endpoint = Arc::new(endpoint);
    let service = settings.service.clone();
    let zero = time_of_day().saturating_sub(now.since_zero().as_nanos());
    Ok((exporter, Sender { queue, counts, endpoint, service, zero }))
}

impl Exporter {
    /// The results so far, shared with the sender.
    pub const fn counts(&self) -> &Arc<SpanCounts> {
        &self.counts
    }
}

impl Sender {
    /// Sends until the exporter is dropped.
    pub async fn run(mut self) {
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
        match self.send(batch).await {
            Ok(()) => self.counts.exported.fetch_add(count, Relaxed),
            Err(why) => {
                tracing::warn!(
                    collector = self.endpoint.url(),
                    reason = why,
                    "trace export failed"
                );
                self.counts.failed.fetch_add(count, Relaxed)
            }
        };
    }

    async fn send(&self, batch: &[RequestSummary]) -> Result<(), String> {
        let spans: Vec<Value> = batch
            .iter()
            .filter_map(|record| Some((record, record.trace.as_deref()?)))
            .flat_map(|(record, trace)| spans(record, trace, self.zero))
            .collect();
        let service = attribute("service.name", &self.service.as_str().into());
        let body = json!({"resourceSpans": [{
            "resource": {"attributes": [service]},
            "scopeSpans": [{
                "scope": {"name": "wornpath", "version": env!("CARGO_PKG_VERSION")},
                "spans": spans,
            }],
        }]});
        let mut request = Request::new(Full::new(Bytes::from(body.to_string())));
        *request.method_mut() = Method::POST;
        let path = format!("{}/v1/traces", self.endpoint.prefix());
        *request.uri_mut() = path.parse().unwrap_or_else(|_| Uri::from_static("/v1/traces"));
        let headers = request.headers_mut();
        headers.insert(HOST, self.endpoint.authority().clone());
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        let response = call(&self.endpoint, WorkerNumber::NONE, request, TIMEOUTS).await;
        let response = response.map_err(|error| error.to_string())?;
        let status = response.head.status;
        let body = response.whole(MAX_RESPONSE_BYTES).await;
        if !status.is_success() {
            return Err(format!("collector returned {status}"));
        }
        let result: Value = match &body {
            Ok((_, body)) => serde_json::from_slice(body).unwrap_or_default(),
            Err(_) => Value::Null,
        };
        let partial = &result["partialSuccess"];
        // OTLP encodes 64-bit integers as JSON strings; many collectors send numbers.
        match partial["rejectedSpans"].to_string().trim_matches('"') {
            "null" | "0" | "" => Ok(()),
            rejected => {
                Err(format!("collector rejected {rejected} spans: {}", partial["errorMessage"]))
            }
        }
    }
}

/// The span of the request, with child spans for preparation, decision and calls.
fn spans(record: &RequestSummary, trace: &RequestTrace, zero: u128) -> Vec<Value> {
    let Some(context) = trace.context else { return Vec::new() };
    let mut all = ChildSpans { context, zero, spans: Vec::new() };
    let at = trace.prepared;
    let prepare = &trace.explanation.prepare;
    let took = prepare.iter().map(|(_, took)| *took).sum::<Duration>();
    let names: Vec<_> = prepare.iter().map(|(name, _)| *name).collect();
    all.add("prepare", at..at + took, &[("wornpath.plugins", names.join(",").into())]);
    let mut at = trace.decided;
    if let Some(took) = trace.explanation.lookup {
        all.add("lookup", at..at + took, &[]);
        at += took;
    }
    for step in &trace.explanation.steps {
        at = add_step(&mut all, step, at);
    }
    add_wait(&mut all, record, trace, at);
    for call in &trace.calls {
        let mut attributes = vec![
            ("wornpath.step", call.step.as_str().into()),
            ("url.full", call.url.as_str().into()),
        ];
        attributes.extend(call.failure.as_deref().map(|why| ("error.type", why.into())));
        all.add("call", call.started..call.ended, &attributes);
    }
    all.spans.insert(0, root(record, trace, context, zero));
    all.spans
}

/// Adds the spans of one step of the decision, which began at `at`. Returns when it ended.
fn add_step(all: &mut ChildSpans, step: &StepExplanation, mut at: Moment) -> Moment {
    let name = ("wornpath.step", Value::from(step.step.as_str()));
    let took: Duration = step.filters.iter().map(|filter| filter.took).sum();
    let dropped: usize = step.filters.iter().map(|filter| filter.dropped).sum();
    let filters = step.filters.iter().map(|filter| format!("{} -{}", filter.name, filter.dropped));
    let attributes = [
        name.clone(),
        ("wornpath.plugins", joined(filters)),
        ("wornpath.candidates", step.candidates.len().into()),
        ("wornpath.dropped", dropped.into()),
    ];
    all.add("filter", at..at + took, &attributes);
    at += took;
    let took: Duration = step.scorers.iter().map(|scorer| scorer.took).sum();
    let scorers = step.scorers.iter().map(|scorer| format!("{} x{}", scorer.name, scorer.weight));
    all.add("score", at..at + took, &[name.clone(), ("wornpath.plugins", joined(scorers))]);
    at += took;
    if let Some(pick) = &step.pick {
        let pod = step.candidates.iter().find(|candidate| candidate.pod == pick.pod);
        let mut attributes =
            vec![name, ("wornpath.picker", pick.name.into()), ("wornpath.ties", pick.ties.into())];
        attributes.extend(pod.map(|pod| ("wornpath.pod", pod.name.as_str().into())));
        attributes.extend(pod.map(|pod| ("wornpath.cached_blocks", pod.blocks.into())));
        all.add("pick", at..at + pick.took, &attributes);
        at += pick.took;
    }
    at
}

/// Adds the spans of the admission check and of the wait queue.
fn add_wait(all: &mut ChildSpans, record: &RequestSummary, trace: &RequestTrace, at: Moment) {
    let judges = &trace.explanation.hold;
    let took: Duration = judges.iter().map(|judge| judge.took).sum();
    if !judges.is_empty() {
        let mut attributes =
            vec![("wornpath.plugins", joined(judges.iter().map(|judge| judge.name.to_owned())))];
        let objection = judges.iter().find_map(|judge| judge.objection.as_deref());
        attributes.extend(objection.map(|why| ("wornpath.objection", why.into())));
        all.add("hold", at..at + took, &attributes);
    }
    if trace.has_waited {
        let from = at + took;
        all.add("wait", from..(trace.arrived + record.decided).max(from), &[]);
    }
}

fn joined(names: impl Iterator<Item = String>) -> Value {
    names.collect::<Vec<_>>().join(", ").into()
}

fn root(record: &RequestSummary, trace: &RequestTrace, context: TraceContext, zero: u128) -> Value {
    let usage = record.usage;
    let pod = record.pod.as_ref().map(|(_, name)| name.as_str());
    let attributes: Vec<(&str, Option<Value>)> = vec![
        ("http.request.method", Some("POST".into())),
        ("http.response.status_code", Some(record.status.into())),
        ("wornpath.request_id", Some(record.id.as_str().into())),
        ("wornpath.profile", Some(record.profile.as_str().into())),
        ("gen_ai.request.model", Some(record.model.as_str().into())),
        ("wornpath.pod", pod.map(Into::into)),
        ("wornpath.end", Some(record.ended.word().into())),
        ("wornpath.has_waited", Some(trace.has_waited.into())),
        ("wornpath.retries", Some(record.retries.into())),
        ("wornpath.cached_tokens.predicted", record.predicted_tokens.map(Into::into)),
        ("wornpath.cached_tokens.actual", record.computed().1.cached_tokens.map(Into::into)),
        ("gen_ai.usage.input_tokens", usage.prompt_tokens.map(Into::into)),
        ("gen_ai.usage.output_tokens", usage.output_tokens.map(Into::into)),
    ];
    let attributes: Vec<_> = attributes
        .iter()
        .filter_map(|(key, value)| Some(attribute(key, value.as_ref()?)))
        .collect();
    let mut span = json!({
        "traceId": format!("{:032x}", context.trace),
        "spanId": format!("{:016x}", context.span),
        "name": record.api.name(),
        // A server's.
        "kind": 2,
        "startTimeUnixNano": nanos(zero, trace.arrived),
        "endTimeUnixNano": nanos(zero, trace.arrived + record.total),
        "attributes": attributes,
        "status": {"code": if record.status >= 500 { 2 } else { 0 }},
    });
    if let Some(parent) = context.parent {
        span["parentSpanId"] = format!("{parent:016x}").into();
    }
    span
}

/// The child spans of a request.
struct ChildSpans {
    context: TraceContext,
    zero: u128,
    spans: Vec<Value>,
}

impl ChildSpans {
    fn add(&mut self, name: &str, during: Range<Moment>, attributes: &[(&str, Value)]) {
        let has_failed = attributes.iter().any(|(key, _)| *key == "error.type");
        let attributes: Vec<_> =
            attributes.iter().map(|(key, value)| attribute(key, value)).collect();
        // Any number that is unique within the request.
        let number = self.spans.len() as u64 + 1;
        let span = self.context.span.wrapping_add(number.wrapping_mul(0x9E37_79B9_7F4A_7C15)) | 1;
        self.spans.push(json!({
            "traceId": format!("{:032x}", self.context.trace),
            "spanId": format!("{span:016x}"),
            "parentSpanId": format!("{:016x}", self.context.span),
            "name": name,
            // SPAN_KIND_CLIENT or SPAN_KIND_INTERNAL.
            "kind": if name == "call" { 3 } else { 1 },
            "startTimeUnixNano": nanos(self.zero, during.start),
            "endTimeUnixNano": nanos(self.zero, during.end),
            "attributes": attributes,
            "status": {"code": if has_failed { 2 } else { 0 }},
        }));
    }
}

fn attribute(key: &str, value: &Value) -> Value {
    let value = match value {
        Value::Bool(flag) => json!({"boolValue": flag}),
        // OTLP encodes integers as strings, so that no reader rounds them.
        Value::Number(number) => json!({"intValue": number.to_string()}),
        Value::String(text) => json!({"stringValue": text}),
        other => json!({"stringValue": other.to_string()}),
    };
    json!({"key": key, "value": value})
}

fn nanos(zero: u128, moment: Moment) -> String {
    (zero + moment.since_zero().as_nanos()).to_string()
}

#[expect(
    clippy::disallowed_methods,
    reason = "spans carry wall-clock times; no decision reads them"
)]
fn time_of_day() -> u128 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |time| time.as_nanos())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dialect::Api;
    use crate::observe::summary::RequestEnd;
    use wornpath_routing::{Explanation, JudgeExplanation};

    #[test]
    fn a_request_that_waited_has_spans_for_the_objection_and_the_wait() {
        let ms = Duration::from_millis;
        let judge = JudgeExplanation {
            name: "backlog",
            pod: "a".into(),
            objection: Some("300 ms of prefill".to_owned()),
            took: ms(1),
        };
        let trace = RequestTrace {
            arrived: Moment::from_millis(100),
            prepared: Moment::from_millis(100),
            decided: Moment::from_millis(110),
            explanation: Explanation { hold: vec![judge], ..Explanation::default() },
            has_waited: true,
            calls: Vec::new(),
            context: Some(TraceContext { trace: 1, parent: None, span: 2 }),
        };
        let record = RequestSummary {
            profile: "p".into(),
            model: "m".into(),
            status: 200,
            ended: RequestEnd::Whole,
            decided: ms(61),
            total: ms(90),
            ..RequestSummary::new("r", Api::CHAT)
        };
        let spans = spans(&record, &trace, 0);
        let named = |name: &str| spans.iter().find(|span| span["name"] == name).unwrap();
        assert_eq!(named("wait")["startTimeUnixNano"], "111000000");
        assert_eq!(named("wait")["endTimeUnixNano"], "161000000");
        assert!(named("hold").to_string().contains("300 ms of prefill"), "{spans:?}");
        let ids: std::collections::HashSet<_> =
            spans.iter().map(|span| span["spanId"].to_string()).collect();
        assert_eq!(ids.len(), spans.len(), "every span has an id of its own");
    }
}
