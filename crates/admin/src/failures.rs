//! The failures of a day: the first few of each kind in every minute, with their explanations.
//!
//! The rings of the last requests hold seconds of a busy router. An operator who asks the next
//! morning why a request was refused at night finds it here. Memory is bounded: minutes, kinds in a
//! minute, requests of a kind, and the candidates in all explanations.

use std::collections::{BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::{Value, json};
use wornpath_gateway::observe::summary::RequestSummary;
use wornpath_routing::Name;

use crate::finished::{RecentRequest, cause};

/// A day.
const MINUTES: u64 = 24 * 60;
/// Kinds of failures that are told apart in a minute.
const KINDS: usize = 16;
/// Requests of a kind that are kept in a minute.
const OF_KIND: usize = 4;
/// Requests that are kept in all.
const REQUESTS: usize = 2048;
/// Seconds without a failure of a status and cause after which the next one is another incident.
const QUIET: f64 = 600.0;
/// Candidates in the explanations that are kept: some 300 bytes each.
const CANDIDATES: usize = 1 << 16;

/// The failures of a day.
#[derive(Default)]
pub(crate) struct FailureJournal(Mutex<JournalState>);

#[derive(Default)]
struct JournalState {
    /// The latest last.
    minutes: VecDeque<FailureMinute>,
    requests: usize,
    candidates: usize,
}

struct FailureMinute {
    minute: u64,
    kinds: Vec<FailureKind>,
}

struct FailureKind {
    status: u16,
    cause: &'static str,
    model: Name,
    tenant: Option<Name>,
    count: u64,
    /// When the last one ended.
    last: f64,
    kept: Vec<Arc<RecentRequest>>,
}

/// Failures of one status and cause that followed each other closely.
struct FailureIncident {
    status: u16,
    cause: &'static str,
    count: u64,
    tenants: BTreeSet<String>,
    first: f64,
    last: f64,
    reason: Option<Arc<str>>,
}

impl FailureJournal {
    /// Keeps a failure, unless enough of its kind were kept in this minute.
    pub(crate) fn push(&self, request: &Arc<RecentRequest>) {
        let mut state = self.state();
        let minute = request.ended_at as u64 / 60;
        if state.minutes.back().is_none_or(|last| last.minute < minute) {
            state.minutes.push_back(FailureMinute { minute, kinds: Vec::new() });
        }
        let Some(last) = state.minutes.back_mut() else { return };
        let Some(kind) = last.kind(&request.summary) else { return };
        kind.count += 1;
        kind.last = request.ended_at;
        if kind.kept.len() < OF_KIND {
            kind.kept.push(Arc::clone(request));
            state.requests += 1;
            state.candidates += candidates(&request.summary);
        }
        state.shrink(minute);
    }

    /// All failures that are kept.
    pub(crate) fn all(&self) -> Vec<Arc<RecentRequest>> {
        let state = self.state();
        let kinds = state.minutes.iter().flat_map(|minute| &minute.kinds);
        kinds.flat_map(|kind| kind.kept.iter().cloned()).collect()
    }

    /// The incidents of the day, those with the latest failure first, as JSON.
    pub(crate) fn incidents(&self) -> Value {
        let mut incidents: Vec<FailureIncident> = Vec::new();
        for kind in self.state().minutes.iter().flat_map(|minute| &minute.kinds) {
            let first = kind.kept.first();
            let since = first.map_or(kind.last, |first| first.ended_at);
            let is_same = |incident: &&mut FailureIncident| {
                incident.status == kind.status
                    && incident.cause == kind.cause
                    && since - incident.last < QUIET
            };
            if let Some(incident) = incidents.iter_mut().find(is_same) {
                incident.count += kind.count;
                incident.first = incident.first.min(since);
                incident.last = incident.last.max(kind.last);
                incident.tenants.extend(kind.tenant.as_ref().map(Name::to_string));
                continue;
            }
            incidents.push(FailureIncident {
                status: kind.status,
                cause: kind.cause,
                count: kind.count,
                tenants: kind.tenant.iter().map(Name::to_string).collect(),
                first: since,
                last: kind.last,
                reason: first.and_then(|first| first.summary.reason.clone()),
            });
        }
        incidents.sort_by(|one, other| other.last.total_cmp(&one.last));
        let shown = |incident: &FailureIncident| {
            json!({
                "status": incident.status, "cause": incident.cause, "count": incident.count,
                "tenants": incident.tenants,
                "first": incident.first, "last": incident.last,
                "reason": incident.reason.as_deref(),
            })
        };
        incidents.iter().map(shown).collect()
    }

    fn state(&self) -> MutexGuard<'_, JournalState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl JournalState {
    /// Drops the oldest minutes, as far as they are too old or too much.
    fn shrink(&mut self, now: u64) {
        while let Some(oldest) = self.minutes.front() {
            let is_too_much = self.requests > REQUESTS || self.candidates > CANDIDATES;
            let is_too_old = oldest.minute + MINUTES <= now;
            if !is_too_old && (!is_too_much || self.minutes.len() == 1) {
                return;
            }
            let Some(oldest) = self.minutes.pop_front() else { return };
            for request in oldest.kinds.iter().flat_map(|kind| &kind.kept) {
                self.requests -= 1;
                self.candidates -= candidates(&request.summary);
            }
        }
    }
}

impl FailureMinute {
    /// The kind of a failure. If this minute has too many, one that differs in model or tenant;
    /// none if there is no such kind either.
    fn kind(&mut self, summary: &RequestSummary) -> Option<&mut FailureKind> {
        let cause = cause(summary);
        let is_like = |kind: &FailureKind| kind.status == summary.status && kind.cause == cause;
        let is_same = |kind: &FailureKind| {
            is_like(kind) && kind.model == summary.model && kind.tenant == summary.tenant
        };
        if let Some(at) = self.kinds.iter().position(is_same) {
            return self.kinds.get_mut(at);
        }
        if self.kinds.len() == KINDS {
            return self.kinds.iter_mut().find(|kind| is_like(kind));
        }
        self.kinds.push(FailureKind {
            status: summary.status,
            cause,
            model: summary.model.clone(),
            tenant: summary.tenant.clone(),
            count: 0,
            last: 0.0,
            kept: Vec::new(),
        });
        self.kinds.last_mut()
    }
}

fn candidates(summary: &RequestSummary) -> usize {
    let Some(trace) = &summary.trace else { return 0 };
    trace.explanation.steps.iter().map(|step| step.candidates.len()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use wornpath_gateway::Api;
    use wornpath_gateway::observe::summary::{Refusal, RefusalCause};

    fn failure(minute: u64, status: u16) -> Arc<RecentRequest> {
        let refusal = Refusal { cause: RefusalCause::NoPod, reason: "no pod".to_owned() };
        let summary = RequestSummary {
            status,
            refusal: Some(Box::new(refusal)),
            ..RequestSummary::new(&format!("{minute}"), Api::CHAT)
        };
        Arc::new(RecentRequest { number: 0, ended_at: (minute * 60) as f64, summary })
    }

    #[test]
    fn a_flood_of_one_failure_does_not_displace_another() {
        let journal = FailureJournal::default();
        journal.push(&failure(1, 502));
        (0..100_000).for_each(|_| journal.push(&failure(1, 503)));
        let kept = journal.all();
        assert_eq!(kept.len(), 1 + OF_KIND);
        let incidents = journal.incidents();
        let counts: Vec<_> = incidents.as_array().unwrap().iter().map(|it| &it["count"]).collect();
        assert_eq!(counts, [1, 100_000]);
    }

    #[test]
    fn failures_hours_apart_are_two_incidents() {
        let journal = FailureJournal::default();
        for minute in [10, 11, 12, 190] {
            journal.push(&failure(minute, 503));
        }
        let incidents = journal.incidents();
        let times = |at: usize| [&incidents[at]["first"], &incidents[at]["last"]];
        assert_eq!(incidents.as_array().unwrap().len(), 2);
        assert_eq!(times(0), [11_400.0, 11_400.0]);
        assert_eq!(times(1), [600.0, 720.0]);
    }

    #[test]
    fn failures_of_many_tenants_are_all_counted() {
        let journal = FailureJournal::default();
        for tenant in 0..100 {
            let mut request = Arc::into_inner(failure(1, 429)).unwrap();
            request.summary.tenant = Some(format!("t{tenant}").as_str().into());
            journal.push(&Arc::new(request));
        }
        assert_eq!(journal.incidents()[0]["count"], 100);
        assert!(journal.all().len() <= KINDS * OF_KIND);
    }

    #[test]
    fn failures_are_kept_for_a_day_and_within_the_limit() {
        let journal = FailureJournal::default();
        for minute in 0..2000 {
            for status in 500..516 {
                journal.push(&failure(minute, status));
            }
        }
        let kept = journal.all();
        assert!(kept.len() <= REQUESTS && kept.len() > REQUESTS - KINDS, "{}", kept.len());
        journal.push(&failure(2000 + MINUTES, 503));
        assert_eq!(journal.all().len(), 1, "all others are more than a day old");
    }
}
