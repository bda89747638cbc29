//! One stream of a data plane: a pick, its answer, and the response.

use super::answers::Outbox;
use super::bare::NoMoreMessages;
use super::messages::{self, Direction, Part};
use super::pick::{Answer, Pick, Question, pick};
use super::proto::processing_request::Request;
use super::proto::{BodySendMode, ProcessingRequest};
use super::request_body::BodyEnd;
use super::response::follow;
use crate::proxy::worker::Worker;
use std::net::IpAddr;
use std::sync::Arc;
use tonic::{Status, Streaming};

/// Runs one stream to its end.
pub(super) async fn process(
    worker: Arc<Worker>,
    peer: IpAddr,
    mut inbox: Streaming<ProcessingRequest>,
    outbox: Outbox,
) -> Result<(), Status> {
    let Some(first) = inbox.message().await? else { return Ok(()) };
    let response_mode = response_mode(&first)?;
    let Some(Request::RequestHeaders(head)) = &first.request else {
        let message = "the first message of a stream must be `request_headers`; set the processing \
                       mode `request_header_mode: SEND`";
        return Err(Status::invalid_argument(message));
    };
    let metadata = first.metadata_context.as_ref();
    let no_more = NoMoreMessages::of(&first);
    let question = Question { peer, head, metadata, response_mode, no_more };
    match Box::pin(pick(&worker, question, &mut inbox)).await? {
        Pick::ClientLeft => Ok(()),
        Pick::Refused(error, api) => {
            outbox.push(messages::refused(&error, api));
            Ok(())
        }
        Pick::Picked(request, answer) => {
            send(&outbox, *answer, &worker);
            follow(*request, inbox, outbox, response_mode).await
        }
    }
}

/// How the body of the response is sent to the picker. Refuses modes that it cannot serve.
fn response_mode(first: &ProcessingRequest) -> Result<BodySendMode, Status> {
    if first.observability_mode {
        let message = "an endpoint picker must answer; set `observability_mode: false`";
        return Err(Status::failed_precondition(message));
    }
    // Data planes that do not tell their modes use this one.
    let Some(modes) = first.protocol_config else { return Ok(BodySendMode::FullDuplexStreamed) };
    if modes.request_body_mode() != BodySendMode::FullDuplexStreamed {
        let message = format!(
            "`request_body_mode` is {}; an endpoint picker needs FULL_DUPLEX_STREAMED",
            modes.request_body_mode().as_str_name()
        );
        return Err(Status::failed_precondition(message));
    }
    Ok(modes.response_body_mode())
}

/// Sends the answer to the head, then the body.
fn send(outbox: &Outbox, answer: Answer, worker: &Worker) {
    outbox.push(messages::destined(&answer.destinations, &answer.scores, answer.changes));
    if let Some(body) = answer.body {
        let last = if answer.body_end == BodyEnd::Trailers { Part::Inner } else { Part::Last };
        messages::body(Direction::Request, body, last).for_each(|chunk| outbox.push(chunk));
    }
    if answer.body_end == BodyEnd::Trailers {
        outbox.push(messages::trailers(Direction::Request));
    }
    if let Some(reservation) = answer.reservation {
        outbox.release_after_last(reservation);
    }
    if let Some(insert) = answer.insert {
        worker.commit(insert);
    }
}
