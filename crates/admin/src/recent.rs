//! The last requests and their routing decisions.
//!
//! Workers write to a ring buffer and never wait: a slot that is being read is skipped.

use std::cmp::Reverse;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, PoisonError};

use serde_json::{Value, json};
use wornpath_index::Moment;
use wornpath_routing::Name;

use wornpath_gateway::observe::request_trace::{CallTrace, ContinuationTrace, TraceContext};
use wornpath_gateway::observe::summary::{RequestSummary, SummaryObserver};

/// Capacity of each ring.
const CAPACITY: usize = 256;

/// The last requests. Those with a recorded decision have a ring of their own: they are few, and
/// the others would overwrite them within a second.
#[derive(Default)]
pub struct RecentDecisions {
    all: DecisionRing,
    explained: DecisionRing,
    /// Number of requests so far.
    count: AtomicUsize,
}

struct DecisionRing {
    slots: Box<[Mutex<Option<NumberedDecision>>]>,
    count: AtomicUsize,
}

/// A record and its sequence number.
type NumberedDecision = (usize, RequestSummary);

impl Default for DecisionRing {
    fn default() -> Self {
        Self {
            slots: (0..CAPACITY).map(|_| Mutex::default()).collect(),
            count: AtomicUsize::new(0),
        }
    }
}

impl DecisionRing {
    fn push(&self, number: usize, record: &RequestSummary) {
        let at = self.count.fetch_add(1, Relaxed) % CAPACITY;
        if let Ok(mut slot) = self.slots[at].try_lock() {
            *slot = Some((number, record.clone()));
        }
    }

    fn read(&self, into: &mut Vec<NumberedDecision>) {
        for slot in &self.slots {
            into.extend(slot.lock().unwrap_or_else(PoisonError::into_inner).clone());
        }
    }
}

impl SummaryObserver for RecentDecisions {
    fn ended(&self, record: &RequestSummary) {
        let number = self.count.fetch_add(1, Relaxed);
        let ring = if record.trace.is_some() { &self.explained } else { &self.all };
        ring.push(number, record);
    }
}

impl RecentDecisions {
    /// The last `most`, the latest first.
    #[must_use]
    pub fn last(&self, most: usize) -> Vec<Arc<RequestSummary>> {
        let mut all = Vec::new();
        self.all.read(&mut all);
        self.explained.read(&mut all);
        all.sort_unstable_by_key(|(number, _)| Reverse(*number));
        all.truncate(most);
        all.into_iter().map(|(_, record)| Arc::new(record)).collect()
    }

    /// The request with this id, if it is among the last.
    #[must_use]
    pub fn find(&self, id: &str) -> Option<Arc<RequestSummary>> {
        self.last(usize::MAX).into_iter().find(|record| record.id == id)
    }

    /// Up to `most` notable requests, the latest first: those with a recorded decision, failed and
    /// retried ones, and others up to the limit.
    pub(crate) fn notable(&self, most: usize) -> Vec<Arc<RequestSummary>> {
        let mut all = self.last(usize::MAX);
        let is_notable = |record: &RequestSummary| {
            record.trace.is_some() || record.retries > 0 || record.status >= 400
        };
        // Many failures leave half of the list to requests with a recorded decision.
        let explained = all.iter().filter(|record| record.trace.is_some()).count();
        let mut failed_left = most - explained.min(most / 2);
        all.retain(|record| {
            let is_failed = record.trace.is_none() && is_notable(record);
            let is_kept = !is_failed || failed_left > 0;
            failed_left = failed_left.saturating_sub(usize::from(is_failed));
            is_kept
        });
        let mut others_left =
            most.saturating_sub(all.iter().filter(|record| is_notable(record)).count());
        all.retain(|record| {
            let is_kept = is_notable(record) || others_left > 0;
            others_left = others_left.saturating_sub(usize::from(!is_notable(record)));
            is_kept
        });
        all.truncate(most);
        all
    }
}

/// A record as JSON, without its decision. Times are in microseconds.
pub(crate) fn line(record: &RequestSummary) -> Value {
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
    })
}

/// A record as JSON, with its decision if that was recorded.
pub(crate) fn json(record: &RequestSummary) -> Value {
    let mut shown = line(record);
    // Only some requests have a recorded decision; the others lack these fields.
    if let Some(trace) = &record.trace {
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
        assert!(recent.last(9).is_empty());
        (0..CAPACITY + 3).for_each(|id| recent.ended(&record(id)));
        let ids: Vec<_> = recent.last(2).iter().map(|record| record.id.clone()).collect();
        assert_eq!(ids, [(CAPACITY + 2).to_string(), (CAPACITY + 1).to_string()]);
        let all = recent.last(usize::MAX);
        assert_eq!((all.len(), all[CAPACITY - 1].id.as_str()), (CAPACITY, "3"));
        assert_eq!(recent.find("3").map(|record| record.id.clone()).as_deref(), Some("3"));
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
            recent.notable(most).iter().map(|record| record.id.clone()).collect()
        };
        assert_eq!(ids(4), ["19", "18", "7", "3"]);
        assert_eq!(ids(1), ["7"]);
        assert_eq!(ids(100).len(), 20);
    }
}
