//! Respond: the head of the engine's answer becomes the client's, and the relay takes over its
//! body.

use crate::fleet::snapshot::FleetSnapshot;
use crate::observe::summary::{Computed, RequestSummary, Speculative};
use crate::proxy::gateway::QuotaPermit;
use crate::proxy::headers;
use crate::proxy::relay::{BodyFraming, EndMarker, OpenResponse, Relay};
use crate::proxy::usage::UsageScan;
use crate::proxy::worker::Worker;
use crate::reply::ClientReply;
use hyper::header::{CONTENT_LENGTH, HeaderValue, TRANSFER_ENCODING};
use hyper::{Response, Version};
use std::sync::Arc;
use wornpath_config::DebugHeaders;
use wornpath_execution::{PlanResponse, PrefillResult};
use wornpath_index::Moment;

/// The response of a plan as the client gets it.
pub(crate) fn respond(
    worker: &Arc<Worker>,
    response: PlanResponse,
    permit: Option<QuotaPermit>,
    mut summary: RequestSummary,
    arrived: Moment,
) -> Response<ClientReply> {
    let gateway = &worker.gateway;
    let snapshot = gateway.snapshot();
    let settings = gateway.settings();
    let mut response_head = response.answer.head;
    response_head.version = Version::HTTP_11;
    let headers = &response_head.headers;
    let ends_by_closing =
        !headers.contains_key(TRANSFER_ENCODING) && !headers.contains_key(CONTENT_LENGTH);
    if headers.contains_key(TRANSFER_ENCODING) {
        // Chunked framing takes precedence over a length (RFC 9112, section 6.3).
        response_head.headers.remove(CONTENT_LENGTH);
    }
    headers::strip(&mut response_head.headers);
    headers::strip_gateway_headers(&mut response_head.headers);
    headers::strip_response(&mut response_head.headers);
    summary.status = response_head.status.as_u16();
    let now = gateway.now();
    summary.first_byte = Some(now.since(arrived));
    if let (Some(load), 0, 200..300) =
        (&response.step.reservation, response.retries, summary.status)
    {
        load.began(now.since(arrived + summary.decided), now);
    }
    summary.retries = response.retries;
    summary.is_degraded = response.is_degraded;
    let (cache, computed_by) = match &response.prefill {
        Some(prefill) => (&prefill.cache, prefill.pod),
        None => (&response.step.cache, response.step.pod),
    };
    // A profile without a cache lookup predicts nothing, which is not the same as zero tokens.
    summary.predicted_tokens = summary.predicted_tokens.map(|_| cache.tokens);
    let speculative = cache.speculative.zip(computed_by);
    summary.speculative = speculative.map(|(last, pod)| Speculative { pod, last });
    summary.computed = response.prefill.map(|prefill| Box::new(computed(&snapshot, &prefill)));
    let entry = response.step.pod.and_then(|pod| snapshot.entry(pod));
    summary.pod = entry.map(|entry| (entry.pod.id(), entry.pod.facts().name.clone()));
    if settings.reveal == DebugHeaders::Pod
        && let Some((_, name)) = &summary.pod
    {
        headers::reveal(&mut response_head.headers, name, &response.step, response.is_degraded);
    }
    if response.is_degraded {
        response_head.headers.insert(headers::DEGRADED, HeaderValue::from_static("true"));
    }
    let end_marker = EndMarker::of(summary.api, &response_head.headers);
    let framing = if ends_by_closing { BodyFraming::Close } else { BodyFraming::Delimited };
    let open = OpenResponse {
        step: response.step,
        endpoint: response.endpoint,
        permit,
        worker: Arc::clone(worker),
        summary,
        arrived,
    };
    let relay = Relay::new(response.answer.body, framing, end_marker, open);
    Response::from_parts(response_head, ClientReply::Relay(Box::pin(relay)))
}

/// The pod that computed the prompt for another one, and the usage that it reported.
fn computed(snapshot: &FleetSnapshot, prefill: &PrefillResult) -> Computed {
    let mut scan = UsageScan::default();
    scan.feed(&prefill.answer);
    let entry = prefill.pod.and_then(|pod| snapshot.entry(pod));
    Computed { pod: entry.map(|entry| entry.pod.facts().name.clone()), usage: scan.usage() }
}
