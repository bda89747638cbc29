//! One call of a step: its request, its timeouts, and what its response tells about the pod.

use crate::breaker::CallOutcome;
use crate::endpoint::{Endpoint, WorkerNumber};
use crate::failure::CallError;
use crate::replan::{CallOptions, StepCall, Target};
use crate::response::EngineResponse;
use crate::send::call;
use crate::splice::{Edit, splice};
use crate::timeouts::Timeouts;
use crate::transfer::{self, TransferState};
use bytes::Bytes;
use http_body_util::Full;
use hyper::header::{HOST, HeaderMap, HeaderValue, RETRY_AFTER};
use hyper::http::uri::PathAndQuery;
use hyper::{Request, StatusCode, Uri};
use std::sync::Arc;
use std::time::Duration;
use wornpath_routing::{Mutation, PlanStep};

/// The most bytes of a response that does not go to the client.
pub(crate) const MAX_STEP_BYTES: usize = 8 << 20;

pub(crate) fn request(
    call: &StepCall,
    step: &PlanStep,
    target: &Target,
    transfer: &TransferState,
) -> Result<Request<Full<Bytes>>, CallError> {
    let body = if step.mutations.is_empty() {
        call.body.clone()
    } else {
        let edits: Vec<Edit> = transfer::edits(&step.mutations, call.path.path(), transfer);
        splice(&call.body, &edits)?
    };
    let mut request = Request::new(Full::new(body));
    *request.method_mut() = call.method.clone();
    *request.uri_mut() = uri(&call.path, target.endpoint.prefix());
    *request.headers_mut() = call.headers.clone();
    request.headers_mut().insert(HOST, target.endpoint.authority().clone());
    target.endpoint.authorize(request.headers_mut());
    if let Some(rank) = target.rank {
        request.headers_mut().insert("x-data-parallel-rank", HeaderValue::from(rank));
    }
    Ok(request)
}

fn uri(path: &PathAndQuery, prefix: &str) -> Uri {
    if prefix.is_empty() {
        return Uri::from(path.clone());
    }
    format!("{prefix}{path}").parse().unwrap_or_else(|_| Uri::from(path.clone()))
}

/// The timeouts of a step's call.
pub(crate) fn step_timeouts(options: &CallOptions<'_>, step: &PlanStep) -> Timeouts {
    let mut timeouts = options.timeouts;
    let is_prefill = step.mutations.iter().any(|it| matches!(it, Mutation::PrefillOnly));
    if let Some(whole) = options.whole_answer
        && !is_prefill
    {
        timeouts.first_byte = timeouts.first_byte.max(whole);
    }
    if let Some(deadline) = step.deadline {
        timeouts.total = timeouts.total.min(deadline);
    }
    timeouts
}

/// Queries a prefill engine's id among its peers: `{"0": {"engine_id": …}}`.
pub(crate) async fn query_engine_id(
    prefill: &Endpoint,
    port: u16,
    timeouts: Timeouts,
) -> Result<String, CallError> {
    let missing = || CallError::MissingField("engine_id");
    let endpoint = Arc::new(prefill.on_port(port).map_err(|_| missing())?);
    let mut request = Request::new(Full::new(Bytes::new()));
    *request.uri_mut() = Uri::from_static("/query");
    request.headers_mut().insert(HOST, endpoint.authority().clone());
    let response = call(&endpoint, WorkerNumber(0), request, timeouts).await?;
    let status = response.head.status;
    if !status.is_success() {
        return Err(CallError::Status(status));
    }
    let (_, body) = response.whole(MAX_STEP_BYTES).await?;
    let engines: serde_json::Value = serde_json::from_slice(&body).map_err(|_| missing())?;
    engines["0"]["engine_id"].as_str().map(str::to_owned).ok_or_else(missing)
}

/// Statuses that concern the pod and not the request, so that another pod may succeed.
pub(crate) fn is_retryable(status: StatusCode) -> bool {
    matches!(status.as_u16(), 429 | 500 | 502 | 503 | 504)
}

/// Whether the prompt may be in the pod's cache now. Engines refuse before they compute; one that
/// timed out may still compute.
pub(crate) fn may_have_computed(result: &Result<EngineResponse, CallError>) -> bool {
    match result {
        Ok(response) => response.head.status.is_success(),
        Err(cause) => cause.is_late(),
    }
}

/// What the result of a call tells the breaker.
pub(crate) fn outcome(result: &Result<EngineResponse, CallError>) -> CallOutcome {
    match result {
        Err(error) => error.outcome(),
        Ok(response) => match response.head.status.as_u16() {
            429 | 503 => CallOutcome::Busy(retry_after(&response.head.headers)),
            500.. => CallOutcome::Failed,
            _ => CallOutcome::Good,
        },
    }
}

fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let seconds: f64 = headers.get(RETRY_AFTER)?.to_str().ok()?.trim().parse().ok()?;
    // The breaker's longest rest is shorter anyway.
    (seconds >= 0.0).then(|| Duration::from_secs_f64(seconds.min(86_400.0)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::breaker::BreakerRules;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    #[tokio::test]
    async fn an_engine_id_counts_only_in_a_successful_response() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let query = async {
            let endpoint = Endpoint::new("http://127.0.0.1:1", BreakerRules::default(), 1).unwrap();
            query_engine_id(&endpoint, port, Timeouts::default()).await
        };
        let engine = async {
            let (mut stream, _) = listener.accept().await.unwrap();
            let _read = stream.read(&mut [0; 1024]).await.unwrap();
            let body = r#"{"0": {"engine_id": "e"}}"#;
            let head = format!("HTTP/1.1 500 no\r\ncontent-length: {}\r\n\r\n", body.len());
            stream.write_all(format!("{head}{body}").as_bytes()).await.unwrap();
            stream
        };
        let (result, _stream) = tokio::join!(query, engine);
        assert!(
            matches!(result, Err(CallError::Status(StatusCode::INTERNAL_SERVER_ERROR))),
            "{result:?}"
        );
    }
}
