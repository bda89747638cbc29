//! The last requests and their routing decisions.
//!
//! Workers write to a ring buffer and never wait: a slot that is being read is skipped. Failures
//! are kept for longer, behind a lock that is held for some microseconds ([`FailureJournal`]).

use std::cmp::Reverse;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, PoisonError};

use serde_json::{Value, json};
use wornpath_index::Moment;
use wornpath_routing::Name;

use crate::failures::FailureJournal;
use crate::finished::{RecentRequest, cause, is_failure};
use wornpath_gateway::observe::request_trace::{CallTrace, ContinuationTrace, TraceContext};
use wornpath_gateway::observe::summary::{RequestSummary, SummaryObserver};
use wornpath_gateway::observe::timestamp::Timestamp;

/// Capacity of each ring.
const CAPACITY: usize = 256;

/// The last requests. Those with a recorded decision have a ring of their own: they are few, and
/// the others would overwrite them within a second.
#[derive(Default)]
pub struct RecentDecisions {
    all: DecisionRing,
    explained: DecisionRing,
    failures: FailureJournal,
    /// Number of requests so far.
    count: AtomicUsize,
}

struct DecisionRing {
    slots: Box<[Mutex<Option<Arc<RecentRequest>>>]>,
    count: AtomicUsize,
}

impl Default for DecisionRing {
    fn default() -> Self {
        Self {
            slots: (0..CAPACITY).map(|_| Mutex::default()).collect(),
            count: AtomicUsize::new(0),
        }
    }
}

impl DecisionRing {
    fn push(&self, request: Arc<RecentRequest>) {
        let at = self.count.fetch_add(1, Relaxed) % CAPACITY;
        if let Ok(mut slot) = self.slots[at].try_lock() {
            *slot = Some(request);
        }
    }

    fn read(&self, into: &mut Vec<Arc<RecentRequest>>) {
        for slot in &self.slots {
            into.extend(slot.lock().unwrap_or_else(PoisonError::into_inner).clone());
        }
    }
}

impl SummaryObserver for RecentDecisions {
    fn ended(&self, record: &RequestSummary) {
        let number = self.count.fetch_add(1, Relaxed);
        let ended_at = Timestamp::now().0 as f64 / 1000.0;
        let request = Arc::new(RecentRequest { number, ended_at, summary: shown(record) });
        if is_failure(record) {
            self.failures.push(&request);
        }
        let ring = if record.trace.is_some() { &self.explained } else { &self.all };
        ring.push(request);
    }
}

/// A copy without what the admin plane never shows: the block hashes of the prompt, and the words of
/// a refusal, which may quote the client.
fn shown(record: &RequestSummary) -> RequestSummary {
    let mut shown = record.clone();
    shown.traffic = None;
    if let Some(refusal) = &shown.refusal {
        shown.reason = Some(refusal.reason.as_str().into());
    }
    shown
}

impl RecentDecisions {
    /// The last requests, and the failures of a day, the latest first.
    pub(crate) fn all(&self) -> Vec<Arc<RecentRequest>> {
        let mut all = self.failures.all();
        self.all.read(&mut all);
        self.explained.read(&mut all);
        all.sort_unstable_by_key(|request| Reverse(request.number));
        all.dedup_by_key(|request| request.number);
        all
    }

    /// The last requests, the latest first.
    fn last(&self) -> Vec<Arc<RecentRequest>> {
        let mut all = Vec::new();
        self.all.read(&mut all);
        self.explained.read(&mut all);
        all.sort_unstable_by_key(|request| Reverse(request.number));
        all
    }

    /// The request with this id, if it is among the last or a failure of the day.
    #[must_use]
    pub fn find(&self, id: &str) -> Option<Arc<RequestSummary>> {
        self.kept(id).map(|request| Arc::new(request.summary.clone()))
    }

    pub(crate) fn kept(&self, id: &str) -> Option<Arc<RecentRequest>> {
        self.all().into_iter().find(|request| request.summary.id == id)
    }

    /// The failures of a day, by status, cause and time.
    pub(crate) fn failures(&self) -> Value {
        self.failures.incidents()
    }

    /// Up to `most` notable requests, the latest first: those with a recorded decision, failed and
    /// retried ones, and others up to the limit.
    pub(crate) fn notable(&self, most: usize) -> Vec<Arc<RecentRequest>> {
        let mut all = self.last();
        let is_notable = |request: &RecentRequest| {
            let record = &request.summary;
            record.trace.is_some() || record.retries > 0 || record.status >= 400
        };
        // Many failures leave half of the list to requests with a recorded decision.
        let explained = all.iter().filter(|request| request.summary.trace.is_some()).count();
        let mut failed_left = most - explained.min(most / 2);
        all.retain(|request| {
            let is_failed = request.summary.trace.is_none() && is_notable(request);
            let is_kept = !is_failed || failed_left > 0;
            failed_left = failed_left.saturating_sub(usize::from(is_failed));
            is_kept
        });
        let mut others_left =
            most.saturating_sub(all.iter().filter(|request| is_notable(request)).count());
        all.retain(|request| {
            let is_kept = is_notable(request) || others_left > 0;
            others_left = others_left.saturating_sub(usize::from(!is_notable(request)));
            is_kept
        });
        all.truncate(most);
        all
    }
}

/// A record as JSON, without its decision. Times are in microseconds.
pub(crate) fn line(request: &RecentRequest) -> Value {
    let record = &request.summary;
    let usage = record.usage;
    let (computed_by, computed) = record.computed();
    json!({
        "id": record.id,
        "api": record.api.name(),
        "profile": record.profile.as_str(),
        "model": record.model.as_str(),
        "tenant": record.tenant.as_ref().map(ToString::to_string),
        "pod": record.pod.as_ref().map(|(_, name)| name.as_str()),
        "status": record.status,
        "end": record.ended.word(),
        "decided_us": micros(record.decided),
        "first_byte_us": record.first_byte.map(micros),
        "total_us": micros(record.total),
        "retries": record.retries,
        "continued": record.continued,
        "degraded": record.is_degraded,
        "prompt_tokens": usage.prompt_tokens,
        "output_tokens": usage.output_tokens,
        "cached_tokens": {
            "speculative": record.speculative.is_some(),
            "predicted": record.predicted_tokens,
            "actual": computed.cached_tokens,
        },
        // Differs from `pod` if another pod computed the prompt.
        "computed_by": computed_by.map(Name::as_str),
        "explained": record.trace.is_some(),
        // Its trace, if it is exported; the request's span has the id of this record.
        "trace": record.trace.as_ref().and_then(|trace| trace.context).map(trace_id),
        "ended_at": request.ended_at,
        "cause": is_failure(record).then(|| cause(record)),
        "reason": record.reason.as_deref(),
        "best": record.best.as_ref().map(|best| {
            json!({"pod": best.pod.as_str(), "tokens": best.tokens, "why": best.why.word()})
        }),
        "shadow": record.shadow.as_ref().map(|shadow| {
            json!({
                "profile": shadow.profile.as_str(), "result": shadow.result,
                "pod": shadow.pod.as_ref().map(Name::as_str), "cached_tokens": shadow.cached_tokens,
                "first_token_us": shadow.first_token.map(micros),
            })
        }),
    })
}

/// A record as JSON, with its decision if that was recorded.
pub(crate) fn json(request: &RecentRequest) -> Value {
    let mut shown = line(request);
    // Only some requests have a recorded decision; the others lack these fields.
    if let Some(trace) = &request.summary.trace {
        shown["explanation"] = trace.explanation.to_json();
        shown["has_waited"] = trace.has_waited.into();
        shown["calls"] = trace.calls.iter().map(|call| called(call, trace.arrived)).collect();
        let moved = trace.continuations.iter().map(|it| continued(it, trace.arrived));
        shown["continuations"] = moved.collect();
    }
    shown
}

fn trace_id(context: TraceContext) -> String {
    format!("{:032x}", context.trace)
}

fn called(call: &CallTrace, arrived: Moment) -> Value {
    json!({
        "step": call.step.as_str(),
        "url": call.url,
        "sent_us": micros(call.started.since(arrived)),
        "took_us": micros(call.ended.since(call.started)),
        "failure": call.failure,
    })
}

fn continued(continuation: &ContinuationTrace, arrived: Moment) -> Value {
    json!({
        "cause": continuation.cause,
        "at_us": micros(continuation.at.since(arrived)),
        "tokens": continuation.tokens,
        "from": continuation.from.as_ref().map(Name::as_str),
        "to": continuation.to.as_ref().map(Name::as_str),
    })
}

fn micros(time: std::time::Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use wornpath_gateway::Api;

    fn record(id: usize) -> RequestSummary {
        RequestSummary::new(&id.to_string(), Api::CHAT)
    }

    #[test]
    fn the_latest_come_first_and_the_oldest_are_overwritten() {
        let recent = RecentDecisions::default();
        assert!(recent.last().is_empty());
        (0..CAPACITY + 3).for_each(|id| recent.ended(&record(id)));
        let all = recent.all();
        let ids: Vec<_> = all.iter().map(|request| request.summary.id.as_str()).collect();
        assert_eq!(ids[..2], [(CAPACITY + 2).to_string(), (CAPACITY + 1).to_string()]);
        assert_eq!((ids.len(), ids[CAPACITY - 1]), (CAPACITY, "3"));
        assert!(recent.find("3").is_some());
        assert!(recent.find("2").is_none(), "it was overwritten");
    }

    #[test]
    fn explained_and_failed_requests_are_shown_before_the_rest() {
        let recent = RecentDecisions::default();
        for id in 0..20 {
            let trace = (id == 3).then(|| {
                Arc::new(wornpath_gateway::observe::request_trace::RequestTrace::default())
            });
            let status = if id == 7 { 503 } else { 200 };
            recent.ended(&RequestSummary { trace, status, ..record(id) });
        }
        let ids = |most| -> Vec<String> {
            recent.notable(most).iter().map(|request| request.summary.id.clone()).collect()
        };
        assert_eq!(ids(4), ["19", "18", "7", "3"]);
        assert_eq!(ids(1), ["7"]);
        assert_eq!(ids(100).len(), 20);
    }

    #[test]
    fn a_failure_is_found_after_many_other_requests() {
        let recent = RecentDecisions::default();
        recent.ended(&RequestSummary { status: 503, ..record(0) });
        (1..3 * CAPACITY).for_each(|id| recent.ended(&record(id)));
        assert!(recent.find("0").is_some());
        assert_eq!(recent.failures()[0]["count"], 1);
    }
}
