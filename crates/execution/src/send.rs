//! One request to one endpoint, up to the first byte of the response body.

use crate::connection::Connection;
use crate::endpoint::{Endpoint, WorkerNumber};
use crate::failure::CallError;
use crate::response::{EngineResponse, OpenCall};
use crate::timeouts::{TimeoutWatch, Timeouts};
use bytes::Bytes;
use http_body_util::Full;
use hyper::header::{CONTENT_LENGTH, HeaderMap, HeaderValue};
use hyper::{Request, Response, StatusCode, body::Incoming};
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use tokio::time::Instant;

/// A reused connection that is lost within this time after the request was closed by an idle
/// timeout of the engine; one that is lost later was not.
const STALE_WITHIN: Duration = Duration::from_millis(100);

/// Sends a request and waits for the first byte of the response body.
///
/// # Errors
/// If the endpoint is unreachable, a timeout passes, or the connection is lost.
pub async fn call(
    endpoint: &Arc<Endpoint>,
    worker: WorkerNumber,
    request: Request<Full<Bytes>>,
    timeouts: Timeouts,
) -> Result<EngineResponse, CallError> {
    let mut watch = TimeoutWatch::start(timeouts);
    let mut request = Some(request);
    while let Some(mut connection) = endpoint.take_idle(worker) {
        if !connection.is_ready() {
            continue;
        }
        let Some(sent) = request.take() else { break };
        // The engine may close an idle connection in the very moment of its reuse. That says
        // nothing about the engine, so the request goes out once more, over a new connection. If
        // the engine may have begun to compute, the caller decides instead.
        let again = sent.clone();
        let sent_at = Instant::now();
        match send(&mut connection, sent, &mut watch).await {
            Ok(response) => {
                let endpoint = Arc::clone(endpoint);
                let open = OpenCall { connection, watch, endpoint, worker };
                return begin(response, open).await;
            }
            Err(CallError::Broken(error)) if was_stale(&error, sent_at) => {
                request = Some(again);
            }
            Err(error) => return Err(error),
        }
        break;
    }
    let Some(request) = request else { return Err(CallError::PodGone) };
    // Boxed, because it is rare and large, and every request is moved about with the state of this
    // future.
    let mut connection = Box::pin(connect(endpoint, timeouts)).await?;
    let response = send(&mut connection, request, &mut watch).await?;
    let open = OpenCall { connection, watch, endpoint: Arc::clone(endpoint), worker };
    begin(response, open).await
}

/// The response from its first body byte on. The router never asks for a protocol switch.
async fn begin(response: Response<Incoming>, call: OpenCall) -> Result<EngineResponse, CallError> {
    if response.status() == StatusCode::SWITCHING_PROTOCOLS {
        return Err(CallError::Status(response.status()));
    }
    if !has_plain_length(response.headers()) {
        return Err(CallError::ContentLength);
    }
    let (head, incoming) = response.into_parts();
    EngineResponse::begin(head, incoming, call).await
}

/// Whether the length of a body is not given, or once and as a number. hyper also reads `2, 2`, and
/// would pass it on to the client.
fn has_plain_length(headers: &HeaderMap) -> bool {
    let mut lengths = headers.get_all(CONTENT_LENGTH).iter();
    let is_number = |length: &HeaderValue| {
        !length.is_empty() && length.as_bytes().iter().all(u8::is_ascii_digit)
    };
    lengths.next().is_none_or(is_number) && lengths.next().is_none()
}

fn was_stale(error: &hyper::Error, sent_at: Instant) -> bool {
    let has_response = error.is_parse();
    error.is_canceled() || !has_response && sent_at.elapsed() < STALE_WITHIN
}

async fn connect(endpoint: &Endpoint, timeouts: Timeouts) -> Result<Connection, CallError> {
    let limit = timeouts.connect.min(timeouts.total);
    let policy_epoch = endpoint.policy_epoch();
    let connecting = tokio::time::timeout(limit, endpoint.connect()).await;
    let stream =
        connecting.map_err(|_| CallError::ConnectTimeout(limit))?.map_err(CallError::Connect)?;
    Connection::open(stream, policy_epoch).await.map_err(CallError::Broken)
}

async fn send(
    connection: &mut Connection,
    request: Request<Full<Bytes>>,
    watch: &mut TimeoutWatch,
) -> Result<Response<Incoming>, CallError> {
    let mut response = pin!(connection.sender.send_request(request));
    poll_fn(|context| {
        // Driving the connection writes the request and brings the response, so the response itself
        // needs no waker.
        connection.drive(context);
        let mut no_waker = Context::from_waker(Waker::noop());
        if let Poll::Ready(response) = response.as_mut().poll(&mut no_waker) {
            return Poll::Ready(response.map_err(CallError::Broken));
        }
        watch.poll(context).map(Err)
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_length_that_is_given_twice_or_as_a_list_is_invalid() {
        let headers = |lengths: &[&'static str]| -> HeaderMap {
            lengths
                .iter()
                .map(|length| (CONTENT_LENGTH, HeaderValue::from_static(length)))
                .collect()
        };
        for good in [&[][..], &["0"], &["17"]] {
            assert!(has_plain_length(&headers(good)), "{good:?}");
        }
        for bad in [&["2, 2"][..], &["2", "2"], &["+2"], &["2 2"], &[""]] {
            assert!(!has_plain_length(&headers(bad)), "{bad:?}");
        }
    }
}
