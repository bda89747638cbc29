//! Respond: the head of the engine's answer becomes the client's, and the relay takes over its body.

use crate::fleet::snapshot::FleetSnapshot;
use crate::observe::summary::{Computed, RequestSummary, Speculative};
use crate::proxy::headers;
use crate::proxy::quota::QuotaPermit;
use crate::proxy::relay::{End, EndMarker, Relay};
use crate::proxy::usage::UsageScan;
use crate::proxy::worker::Worker;
use crate::reply::ClientReply;
use hyper::header::{CONTENT_LENGTH, HeaderValue, TRANSFER_ENCODING};
use hyper::{Response, Version};
use std::sync::Arc;
use wornpath_config::DebugHeaders;
use wornpath_execution::{PlanResponse, PrefillResult};

/// The engine's answer as the client gets it.
pub(crate) fn answer(
    worker: &Arc<Worker>,
    (carried, turn): (PlanResponse, Option<QuotaPermit>),
    mut record: RequestSummary,
    arrived: wornpath_index::Moment,
) -> Response<ClientReply> {
    let gateway = &worker.gateway;
    let (snapshot, settings) = (gateway.snapshot(), gateway.settings());
    let mut response_head = carried.answer.head;
    response_head.version = Version::HTTP_11;
    let headers = &response_head.headers;
    let ends_by_closing =
        !headers.contains_key(TRANSFER_ENCODING) && !headers.contains_key(CONTENT_LENGTH);
    if headers.contains_key(TRANSFER_ENCODING) {
        // The engine's framing was by chunks, whatever else it says.
        response_head.headers.remove(CONTENT_LENGTH);
    }
    headers::strip(&mut response_head.headers);
    headers::strip_ours(&mut response_head.headers);
    record.status = response_head.status.as_u16();
    let now = gateway.now();
    record.first_byte = Some(now.saturating_sub(arrived));
    if let (Some(load), 0, 200..300) = (&carried.step.reservation, carried.retries, record.status) {
        load.began(now.saturating_sub(arrived + record.decided), now);
    }
    record.retries = carried.retries;
    record.is_degraded = carried.is_degraded;
    let (cache, computed_by) = match &carried.prefill {
        Some(taken) => (&taken.cache, taken.pod),
        None => (&carried.step.cache, carried.step.pod),
    };
    // Who did not look predicts nothing, not zero.
    record.predicted_tokens = record.predicted_tokens.map(|_| cache.tokens);
    let speculative = cache.speculative.zip(computed_by);
    record.speculative = speculative.map(|(last, pod)| Speculative { pod, last });
    record.computed = carried.prefill.map(|taken| Box::new(computed(&snapshot, &taken)));
    let entry = carried.step.pod.and_then(|pod| snapshot.entry(pod));
    record.pod = entry.map(|entry| (entry.pod.id(), entry.pod.facts().name.clone()));
    if settings.reveal == DebugHeaders::Pod
        && let Some((_, name)) = &record.pod
    {
        headers::reveal(&mut response_head.headers, name, &carried.step, carried.is_degraded);
    }
    if carried.is_degraded {
        response_head.headers.insert(headers::DEGRADED, HeaderValue::from_static("true"));
    }
    let told = EndMarker::by(record.api, &response_head.headers);
    let end = if ends_by_closing { End::Closing } else { End::Told };
    let load = (carried.step, carried.endpoint, turn);
    let relay =
        Relay::new((carried.answer.body, end), load, told, (Arc::clone(worker), record, arrived));
    Response::from_parts(response_head, ClientReply::Relay(Box::pin(relay)))
}

/// Who computed the prompt for another pod, and what it said of it.
fn computed(snapshot: &FleetSnapshot, taken: &PrefillResult) -> Computed {
    let mut scan = UsageScan::default();
    scan.feed(&taken.answer);
    let entry = taken.pod.and_then(|pod| snapshot.entry(pod));
    Computed { pod: entry.map(|entry| entry.pod.facts().name.clone()), usage: scan.usage() }
}
