//! One request to one endpoint, and the beginning of its answer.

use crate::connection::Connection;
use crate::endpoint::{Endpoint, WorkerNumber};
use crate::failure::CallError;
use crate::response::EngineResponse;
use crate::timeouts::{TimeoutWatch, Timeouts};
use bytes::Bytes;
use http_body_util::Full;
use hyper::http::response::Parts;
use hyper::{Request, Response, StatusCode, body::Incoming};
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use tokio::time::Instant;

/// A connection that ends later after a request was sent did not end because nobody used it.
const IN_PASSING: Duration = Duration::from_millis(100);

/// Sends a request and waits until the first byte of the answer's body is there.
///
/// # Errors
/// If there is no connection, no answer in time, or the connection breaks.
pub async fn call(
    endpoint: &Arc<Endpoint>,
    worker: WorkerNumber,
    request: Request<Full<Bytes>>,
    timeouts: Timeouts,
) -> Result<EngineResponse, CallError> {
    let mut watch = TimeoutWatch::start(timeouts);
    let mut request = Some(request);
    while let Some(mut line) = endpoint.take_idle(worker) {
        if !line.is_free() {
            continue;
        }
        let Some(sent) = request.take() else { break };
        // The engine may close an idle connection in the very moment we use it. That says nothing about
        // the engine, so the request goes out once more, over a connection of its own. If it was taken, it may
        // have been begun: then whoever called decides.
        let (again, sent_at) = (sent.clone(), Instant::now());
        match send(&mut line, sent, &mut watch).await {
            Ok(response) => {
                let (head, incoming) = answered(response)?;
                return EngineResponse::begun(head, incoming, (line, watch), (endpoint, worker))
                    .await;
            }
            Err(CallError::Broken(error)) if was_closed_in_passing(&error, sent_at) => {
                request = Some(again);
            }
            Err(error) => return Err(error),
        }
        break;
    }
    let Some(request) = request else { return Err(CallError::PodGone) };
    // Rare and large: apart, so that it does not swell the state that every request is moved about with.
    let mut line = Box::pin(connect(endpoint, timeouts)).await?;
    let response = send(&mut line, request, &mut watch).await?;
    let (head, incoming) = answered(response)?;
    EngineResponse::begun(head, incoming, (line, watch), (endpoint, worker)).await
}

/// The answer in its parts. Nobody asked to speak otherwise from now on.
fn answered(response: Response<Incoming>) -> Result<(Parts, Incoming), CallError> {
    match response.status() {
        StatusCode::SWITCHING_PROTOCOLS => Err(CallError::Status(response.status())),
        _ => Ok(response.into_parts()),
    }
}

fn was_closed_in_passing(error: &hyper::Error, sent_at: Instant) -> bool {
    let has_answered = error.is_parse();
    error.is_canceled() || !has_answered && sent_at.elapsed() < IN_PASSING
}

async fn connect(endpoint: &Endpoint, timeouts: Timeouts) -> Result<Connection, CallError> {
    let (most, rules) = (timeouts.connect.min(timeouts.total), endpoint.rules());
    let connecting = tokio::time::timeout(most, endpoint.connect()).await;
    let stream =
        connecting.map_err(|_| CallError::ConnectTimeout(most))?.map_err(CallError::Connect)?;
    Connection::open(stream, rules).await.map_err(CallError::Broken)
}

async fn send(
    line: &mut Connection,
    request: Request<Full<Bytes>>,
    watch: &mut TimeoutWatch,
) -> Result<Response<Incoming>, CallError> {
    let mut response = pin!(line.sender.send_request(request));
    poll_fn(|context| {
        // The request is taken up when the connection is driven, and nothing but that brings an answer;
        // so the answer itself need not wake anybody.
        line.drive(context);
        let mut asleep = Context::from_waker(Waker::noop());
        if let Poll::Ready(response) = response.as_mut().poll(&mut asleep) {
            return Poll::Ready(response.map_err(CallError::Broken));
        }
        watch.poll(context).map(Err)
    })
    .await
}
