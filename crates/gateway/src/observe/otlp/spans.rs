//! The spans of a request: of the request itself, and below it of everything that was done.

use std::ops::Range;
use std::time::Duration;

use wornpath_index::Moment;
use wornpath_routing::StepExplanation;

use super::messages::{Span, SpanKind, Status, StatusCode};
use super::{Value, attribute};
use crate::observe::request_trace::{RequestTrace, TraceContext};
use crate::observe::summary::RequestSummary;

/// The span of the request, with child spans for preparation, decision and calls.
pub(super) fn spans(record: &RequestSummary, trace: &RequestTrace, zero: u64) -> Vec<Span> {
    let Some(context) = trace.context else { return Vec::new() };
    let mut all = ChildSpans { context, zero, spans: vec![root(record, trace, context, zero)] };
    let at = trace.prepared;
    let prepare = &trace.explanation.prepare;
    let took = prepare.iter().map(|(_, took)| *took).sum::<Duration>();
    let names: Vec<_> = prepare.iter().map(|(name, _)| *name).collect();
    all.add(
        SpanKind::Internal,
        "prepare",
        at..at + took,
        &[("wornpath.plugins", names.join(",").into())],
    );
    let mut at = trace.decided;
    if let Some(took) = trace.explanation.lookup {
        all.add(SpanKind::Internal, "lookup", at..at + took, &[]);
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
        all.add(SpanKind::Client, "call", call.started..call.ended, &attributes);
    }
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
    all.add(SpanKind::Internal, "filter", at..at + took, &attributes);
    at += took;
    let took: Duration = step.scorers.iter().map(|scorer| scorer.took).sum();
    let scorers = step.scorers.iter().map(|scorer| format!("{} x{}", scorer.name, scorer.weight));
    all.add(
        SpanKind::Internal,
        "score",
        at..at + took,
        &[name.clone(), ("wornpath.plugins", joined(scorers))],
    );
    at += took;
    if let Some(pick) = &step.pick {
        let pod = step.candidates.iter().find(|candidate| candidate.pod == pick.pod);
        let mut attributes =
            vec![name, ("wornpath.picker", pick.name.into()), ("wornpath.ties", pick.ties.into())];
        attributes.extend(pod.map(|pod| ("wornpath.pod", pod.name.as_str().into())));
        attributes.extend(pod.map(|pod| ("wornpath.cached_blocks", pod.blocks.into())));
        all.add(SpanKind::Internal, "pick", at..at + pick.took, &attributes);
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
        all.add(SpanKind::Internal, "hold", at..at + took, &attributes);
    }
    if trace.has_waited {
        let from = at + took;
        all.add(SpanKind::Internal, "wait", from..(trace.arrived + record.decided).max(from), &[]);
    }
}

/// A list as text.
fn joined(names: impl Iterator<Item = String>) -> Value {
    names.collect::<Vec<_>>().join(", ").into()
}

fn root(record: &RequestSummary, trace: &RequestTrace, context: TraceContext, zero: u64) -> Span {
    let usage = record.usage;
    let pod = record.pod.as_ref().map(|(_, name)| name.as_str());
    let attributes: Vec<(&str, Option<Value>)> = vec![
        ("http.request.method", Some("POST".into())),
        ("http.response.status_code", Some(u64::from(record.status).into())),
        ("wornpath.request_id", Some(record.id.as_str().into())),
        ("wornpath.tenant", record.tenant.as_ref().map(|name| name.as_str().into())),
        ("wornpath.profile", Some(record.profile.as_str().into())),
        ("gen_ai.request.model", Some(record.model.as_str().into())),
        ("wornpath.pod", pod.map(Into::into)),
        ("wornpath.end", Some(record.ended.word().into())),
        ("error.message", record.reason.as_deref().map(Into::into)),
        ("wornpath.has_waited", Some(trace.has_waited.into())),
        ("wornpath.retries", Some(u64::from(record.retries).into())),
        ("wornpath.cached_tokens.predicted", record.predicted_tokens.map(Into::into)),
        ("wornpath.cached_tokens.actual", record.computed().1.cached_tokens.map(Into::into)),
        ("gen_ai.usage.input_tokens", usage.prompt_tokens.map(Into::into)),
        ("gen_ai.usage.output_tokens", usage.output_tokens.map(Into::into)),
    ];
    let given = attributes.into_iter().filter_map(|(key, value)| Some(attribute(key, value?)));
    let code = if record.status >= 500 { StatusCode::Error } else { StatusCode::Unset };
    Span {
        trace_id: context.trace.to_be_bytes().to_vec(),
        span_id: context.span.to_be_bytes().to_vec(),
        parent_span_id: context
            .parent
            .map(|parent| parent.to_be_bytes().to_vec())
            .unwrap_or_default(),
        name: record.api.name().to_owned(),
        kind: SpanKind::Server.into(),
        start_time_unix_nano: nanos(zero, trace.arrived),
        end_time_unix_nano: nanos(zero, trace.arrived + record.total),
        attributes: given.collect(),
        status: Some(Status { code: code.into() }),
    }
}

/// The spans of a request, its own first.
struct ChildSpans {
    context: TraceContext,
    zero: u64,
    spans: Vec<Span>,
}

impl ChildSpans {
    fn add(
        &mut self,
        kind: SpanKind,
        name: &str,
        during: Range<Moment>,
        attributes: &[(&str, Value)],
    ) {
        let has_failed = attributes.iter().any(|(key, _)| *key == "error.type");
        let code = if has_failed { StatusCode::Error } else { StatusCode::Unset };
        // Any number that is unique within the request.
        let number = self.spans.len() as u64;
        let span = self.context.span.wrapping_add(number.wrapping_mul(0x9E37_79B9_7F4A_7C15)) | 1;
        self.spans.push(Span {
            trace_id: self.context.trace.to_be_bytes().to_vec(),
            span_id: span.to_be_bytes().to_vec(),
            parent_span_id: self.context.span.to_be_bytes().to_vec(),
            name: name.to_owned(),
            kind: kind.into(),
            start_time_unix_nano: nanos(self.zero, during.start),
            end_time_unix_nano: nanos(self.zero, during.end),
            attributes: attributes
                .iter()
                .map(|(key, value)| attribute(key, value.clone()))
                .collect(),
            status: Some(Status { code: code.into() }),
        });
    }
}

fn nanos(zero: u64, moment: Moment) -> u64 {
    let since = u64::try_from(moment.since_zero().as_nanos()).unwrap_or(u64::MAX);
    zero.saturating_add(since)
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
            continuations: Vec::new(),
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
        let named = |name: &str| spans.iter().find(|span| span.name == name).unwrap();
        let wait = named("wait");
        let times = (wait.start_time_unix_nano, wait.end_time_unix_nano);
        assert_eq!(times, (111_000_000, 161_000_000));
        assert!(format!("{:?}", named("hold")).contains("300 ms of prefill"), "{spans:?}");
        let ids: std::collections::HashSet<_> = spans.iter().map(|span| &span.span_id).collect();
        assert_eq!(ids.len(), spans.len(), "every span has an id of its own");
    }
}
