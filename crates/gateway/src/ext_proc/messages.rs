//! The messages that the picker sends, built from what they say.

use super::head::{DESTINATION, DROPPED_REASON, SCORES};
use super::header_changes::HeaderChanges;
use super::proto::body_mutation::Mutation;
use super::proto::processing_response::Response;
use super::proto::{
    BodyMutation, BodyResponse, CommonResponse, HeadersResponse, HttpStatus, ImmediateResponse,
    ProcessingResponse, StreamedBodyResponse, Struct, TrailersResponse, Value, value,
};
use crate::dialect::Api;
use crate::proxy::error_response::ErrorResponse;
use bytes::Bytes;
use std::collections::HashMap;
use std::net::SocketAddr;
use wornpath_routing::RejectionCause;

/// The namespace of dynamic metadata that load balancers read.
pub(super) const LB_NAMESPACE: &str = "envoy.lb";

/// The longest chunk of a body: data planes refuse messages of 64 KiB and more.
const CHUNK_BYTES: usize = 62_000;

const JSON: &str = "application/json";

/// Which direction a message is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Direction {
    Request,
    Response,
}

/// Whether a part of a message is its last one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Part {
    Inner,
    Last,
}

const fn message(response: Response) -> ProcessingResponse {
    ProcessingResponse { response: Some(response), dynamic_metadata: None }
}

/// The answer to the head of a request: where it goes, in a header and in metadata, and the scores
/// of all candidates if there are any.
pub(super) fn destined(
    destinations: &str,
    scores: &[(SocketAddr, f64)],
    mut changes: HeaderChanges,
) -> ProcessingResponse {
    changes.set(DESTINATION, destinations.to_owned());
    let common = CommonResponse {
        header_mutation: changes.mutation(),
        body_mutation: None,
        clear_route_cache: true,
    };
    let value = |kind| Value { kind: Some(kind) };
    let map = |fields| value(value::Kind::StructValue(Struct { fields }));
    let destination = value(value::Kind::StringValue(destinations.to_owned()));
    let mut fields = HashMap::from([(DESTINATION.to_owned(), destination)]);
    if !scores.is_empty() {
        let score = |(at, score): &(SocketAddr, f64)| {
            (at.to_string(), value(value::Kind::NumberValue(*score)))
        };
        fields.insert(SCORES.to_owned(), map(scores.iter().map(score).collect()));
    }
    ProcessingResponse {
        response: Some(Response::RequestHeaders(HeadersResponse { response: Some(common) })),
        dynamic_metadata: Some(Struct { fields: [(LB_NAMESPACE.to_owned(), map(fields))].into() }),
    }
}

/// The answer to the head of a response.
pub(super) fn response_head(changes: HeaderChanges) -> ProcessingResponse {
    let header_mutation = changes.mutation();
    let common = CommonResponse { header_mutation, ..CommonResponse::default() };
    message(Response::ResponseHeaders(HeadersResponse { response: Some(common) }))
}

/// A body in chunks that a data plane takes; `last` says what its last chunk is.
pub(super) fn body(
    direction: Direction,
    mut bytes: Bytes,
    last: Part,
) -> impl Iterator<Item = ProcessingResponse> {
    let mut has_ended = bytes.is_empty() && last == Part::Inner;
    std::iter::from_fn(move || {
        if has_ended {
            return None;
        }
        let chunk = bytes.split_to(bytes.len().min(CHUNK_BYTES));
        has_ended = bytes.is_empty();
        let end_of_stream = has_ended && last == Part::Last;
        let streamed = StreamedBodyResponse { body: chunk, end_of_stream };
        let mutation = BodyMutation { mutation: Some(Mutation::StreamedResponse(streamed)) };
        Some(body_response(direction, Some(mutation)))
    })
}

/// The answer to a chunk that passes unchanged, in a mode in which each chunk has its answer.
pub(super) fn unchanged_chunk(direction: Direction) -> ProcessingResponse {
    body_response(direction, None)
}

fn body_response(direction: Direction, body_mutation: Option<BodyMutation>) -> ProcessingResponse {
    let common = CommonResponse { body_mutation, ..CommonResponse::default() };
    let response = BodyResponse { response: Some(common) };
    message(match direction {
        Direction::Request => Response::RequestBody(response),
        Direction::Response => Response::ResponseBody(response),
    })
}

/// The answer to trailers.
pub(super) const fn trailers(direction: Direction) -> ProcessingResponse {
    let response = TrailersResponse { header_mutation: None };
    message(match direction {
        Direction::Request => Response::RequestTrailers(response),
        Direction::Response => Response::ResponseTrailers(response),
    })
}

/// The error that the client gets instead of a response.
pub(super) fn refused(error: &ErrorResponse, api: Api) -> ProcessingResponse {
    let mut changes = HeaderChanges::default();
    changes.set("content-type", JSON);
    if let Some(after) = error.retry_after {
        changes.set("retry-after", after.as_secs().max(1).to_string());
    }
    if let Some(reason) = error.cause.and_then(dropped_reason) {
        changes.set(DROPPED_REASON, reason);
    }
    message(Response::ImmediateResponse(ImmediateResponse {
        status: Some(HttpStatus { code: error.status.as_u16().into() }),
        headers: changes.mutation(),
        body: error.body(api).into(),
        details: "wornpath".to_owned(),
    }))
}

/// Why a request was dropped, in the words of llm-d.
const fn dropped_reason(cause: RejectionCause) -> Option<&'static str> {
    match cause {
        RejectionCause::NoPod => Some("rejected-no-endpoints"),
        RejectionCause::Saturated => Some("rejected-saturated"),
        RejectionCause::Expired => Some("rejected-ttl-expired"),
        RejectionCause::ShuttingDown => Some("rejected-shutting-down"),
        RejectionCause::Request => None,
    }
}
