//! The last requests and how they were decided, for people who ask why.
//!
//! Whoever answers clients leaves a record in the next place of a ring and waits for nobody: a place that is
//! being read is passed over.

use std::cmp::Reverse;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, PoisonError};

use serde_json::{Value, json};
use wornpath_index::Moment;
use wornpath_routing::Name;

use wornpath_gateway::observe::request_trace::CallTrace;
use wornpath_gateway::observe::summary::{RequestSummary, SummaryObserver};

/// How many are remembered of each kind.
const PLACES: usize = 256;

/// The last requests; and apart from them those whose decision was taken down, which are few and would be pushed out
/// within a second.
#[derive(Default)]
pub struct RecentDecisions {
    all: DecisionRing,
    explained: DecisionRing,
    /// How many there were.
    count: AtomicUsize,
}

struct DecisionRing {
    places: Box<[Mutex<Option<NumberedDecision>>]>,
    count: AtomicUsize,
}

/// A record, and how many there had been before it.
type NumberedDecision = (usize, RequestSummary);

impl Default for DecisionRing {
    fn default() -> Self {
        Self { places: (0..PLACES).map(|_| Mutex::default()).collect(), count: AtomicUsize::new(0) }
    }
}

impl DecisionRing {
    fn keep(&self, number: usize, record: &RequestSummary) {
        let place = self.count.fetch_add(1, Relaxed) % PLACES;
        if let Ok(mut place) = self.places[place].try_lock() {
            *place = Some((number, record.clone()));
        }
    }

    fn read(&self, into: &mut Vec<NumberedDecision>) {
        for place in &self.places {
            into.extend(place.lock().unwrap_or_else(PoisonError::into_inner).clone());
        }
    }
}

impl SummaryObserver for RecentDecisions {
    fn ended(&self, record: &RequestSummary) {
        let number = self.count.fetch_add(1, Relaxed);
        let ring = if record.trace.is_some() { &self.explained } else { &self.all };
        ring.keep(number, record);
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

    /// The request that was called so, while it is remembered.
    #[must_use]
    pub fn find(&self, id: &str) -> Option<Arc<RequestSummary>> {
        self.last(usize::MAX).into_iter().find(|record| record.id == id)
    }

    /// Up to `most` that are worth a look, the latest first: those whose decision was taken down and those that
    /// did not go well, and others where there is room.
    pub(crate) fn worth_a_look(&self, most: usize) -> Vec<Arc<RequestSummary>> {
        let mut all = self.last(usize::MAX);
        let is_told = |record: &RequestSummary| {
            record.trace.is_some() || record.retries > 0 || record.status >= 400
        };
        // What went wrong a thousand times leaves half of the room to what can be explained.
        let explained = all.iter().filter(|record| record.trace.is_some()).count();
        let mut wrong = most - explained.min(most / 2);
        all.retain(|record| {
            let is_wrong = record.trace.is_none() && is_told(record);
            let is_kept = !is_wrong || wrong > 0;
            wrong = wrong.saturating_sub(usize::from(is_wrong));
            is_kept
        });
        let mut room = most.saturating_sub(all.iter().filter(|record| is_told(record)).count());
        all.retain(|record| {
            let is_kept = is_told(record) || room > 0;
            room = room.saturating_sub(usize::from(!is_told(record)));
            is_kept
        });
        all.truncate(most);
        all
    }
}

/// A record as one line of a list, as JSON. Times are in microseconds.
pub(crate) fn line(record: &RequestSummary) -> Value {
    let (usage, (computed_by, computed)) = (record.usage, record.computed());
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
        "degraded": record.is_degraded,
        "prompt_tokens": usage.prompt_tokens,
        "output_tokens": usage.output_tokens,
        "cached_tokens": {
            "speculative": record.speculative.is_some(),
            "predicted": record.predicted_tokens,
            "actual": computed.cached_tokens,
        },
        // Another one than answered, where the prompt was computed apart.
        "computed_by": computed_by.map(Name::as_str),
        "explained": record.trace.is_some(),
    })
}

/// A record as JSON, with everything that was taken down of it.
pub(crate) fn json(record: &RequestSummary) -> Value {
    let mut shown = line(record);
    // Taken down for some only; the others have no such fields.
    if let Some(trace) = &record.trace {
        shown["explanation"] = trace.explanation.to_json();
        shown["has_waited"] = trace.has_waited.into();
        shown["calls"] = trace.calls.iter().map(|call| called(call, trace.arrived)).collect();
        shown["trace"] = trace.context.map(|context| format!("{:032x}", context.trace)).into();
    }
    shown
}

fn called(call: &CallTrace, arrived: Moment) -> Value {
    json!({
        "step": call.step.as_str(),
        "url": call.url,
        "sent_us": micros(call.started.saturating_sub(arrived)),
        "took_us": micros(call.ended.saturating_sub(call.started)),
        "failure": call.failure,
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
    fn the_latest_come_first_and_the_oldest_give_way() {
        let recent = RecentDecisions::default();
        assert!(recent.last(9).is_empty());
        (0..PLACES + 3).for_each(|id| recent.ended(&record(id)));
        let ids: Vec<_> = recent.last(2).iter().map(|record| record.id.clone()).collect();
        assert_eq!(ids, [(PLACES + 2).to_string(), (PLACES + 1).to_string()]);
        let all = recent.last(usize::MAX);
        assert_eq!((all.len(), all[PLACES - 1].id.as_str()), (PLACES, "3"));
        assert_eq!(recent.find("3").map(|record| record.id.clone()).as_deref(), Some("3"));
        assert!(recent.find("2").is_none(), "it gave way");
    }

    #[test]
    fn what_can_be_explained_or_went_wrong_is_shown_before_the_rest() {
        let recent = RecentDecisions::default();
        for id in 0..20 {
            let trace = (id == 3).then(|| {
                Arc::new(wornpath_gateway::observe::request_trace::RequestTrace::default())
            });
            let status = if id == 7 { 503 } else { 200 };
            recent.ended(&RequestSummary { trace, status, ..record(id) });
        }
        let ids = |most| -> Vec<String> {
            recent.worth_a_look(most).iter().map(|record| record.id.clone()).collect()
        };
        assert_eq!(ids(4), ["19", "18", "7", "3"]);
        assert_eq!(ids(1), ["7"]);
        assert_eq!(ids(100).len(), 20);
    }
}
