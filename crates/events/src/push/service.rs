//! HTTP server for pushed events.

use super::access::PushAccess;
use super::intake::{Intake, IntakeError, SnapshotRequest};
use super::request::{PushError, PushedReport, Reported};
use crate::message::SourceMessage;
use bytes::Bytes;
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::body::{Body, Incoming};
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, RETRY_AFTER};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::Semaphore;

/// A snapshot of a hundred thousand blocks with their tokens, as sidecars write it, stays below
/// this.
const MAX_BODY_BYTES: usize = 32 << 20;
/// How long a post may take, including the wait for buffer space.
const BODY_TIMEOUT: Duration = Duration::from_secs(30);
/// Buffer space for all bodies being read, in KiB: eight of the largest.
const MAX_BODIES_KIB: usize = 8 * MAX_BODY_BYTES / 1024;
const HEADER_TIMEOUT: Duration = Duration::from_secs(5);
#[cfg(feature = "grpc")]
const MAX_STREAMS: u32 = 64;
/// Interval and timeout of HTTP/2 keep-alive pings.
#[cfg(feature = "grpc")]
const KEEP_ALIVE: Duration = Duration::from_secs(5);

/// Serves sidecars, and queues their reports for a [`Push`](super::Push).
#[derive(Clone)]
pub struct PushService {
    intake: Intake,
    /// Buffer space for bodies being read, in KiB.
    bodies: Arc<Semaphore>,
}

/// A connection of a sidecar or an engine.
pub trait PushConnection: AsyncRead + AsyncWrite + Unpin + Send + 'static {}

impl<T: AsyncRead + AsyncWrite + Unpin + Send + 'static> PushConnection for T {}

#[cfg(not(feature = "grpc"))]
type ResponseBody = Full<Bytes>;
#[cfg(feature = "grpc")]
type ResponseBody = http_body_util::Either<Full<Bytes>, tonic::body::Body>;

impl PushService {
    pub(super) fn new(intake: Intake) -> Self {
        Self { intake, bodies: Arc::new(Semaphore::new(MAX_BODIES_KIB)) }
    }

    /// Serves one connection until it closes. Calls `admitted` for every request that the access
    /// rules allow. A connection that breaks is not an error of the router.
    #[cfg(not(feature = "grpc"))]
    pub async fn serve_connection(
        self,
        stream: impl PushConnection,
        access: PushAccess,
        admitted: impl Fn() + Clone + Send + Sync + 'static,
    ) {
        let service = service_fn(|request| self.route(request, &access, &admitted));
        let connection = hyper::server::conn::http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEADER_TIMEOUT)
            .serve_connection(TokioIo::new(stream), service);
        let _ = connection.await;
    }

    /// Serves one connection until it closes: posts over HTTP/1, streams over HTTP/2. Calls
    /// `admitted` for every request that the access rules allow. A connection that breaks is not an
    /// error of the router.
    #[cfg(feature = "grpc")]
    pub async fn serve_connection(
        self,
        stream: impl PushConnection,
        access: PushAccess,
        admitted: impl Fn() + Clone + Send + Sync + 'static,
    ) {
        let service = service_fn(move |request| {
            let service = self.clone();
            let access = access.clone();
            let admitted = admitted.clone();
            async move { service.route(request, &access, admitted).await }
        });
        let mut server =
            hyper_util::server::conn::auto::Builder::new(hyper_util::rt::TokioExecutor::new());
        server.http1().timer(TokioTimer::new()).header_read_timeout(HEADER_TIMEOUT);
        server
            .http2()
            .timer(TokioTimer::new())
            .max_concurrent_streams(MAX_STREAMS)
            .keep_alive_interval(KEEP_ALIVE)
            .keep_alive_timeout(KEEP_ALIVE);
        let _ = server.serve_connection(TokioIo::new(stream), service).await;
    }

    #[cfg(not(feature = "grpc"))]
    async fn route(
        &self,
        request: Request<Incoming>,
        access: &PushAccess,
        admitted: impl Fn(),
    ) -> Result<Response<ResponseBody>, Infallible> {
        Ok(match self.refusal(&request, access) {
            None => {
                admitted();
                self.answer(request, access).await
            }
            Some(refusal) => refusal,
        })
    }

    #[cfg(feature = "grpc")]
    async fn route(
        self,
        request: Request<Incoming>,
        access: &PushAccess,
        admitted: impl Fn(),
    ) -> Result<Response<ResponseBody>, Infallible> {
        let kind = request.headers().get(CONTENT_TYPE).map(|kind| kind.as_bytes());
        let is_grpc = kind.is_some_and(|kind| kind.starts_with(b"application/grpc"));
        match self.refusal(&request, access) {
            None => admitted(),
            // The stream's own answer says that the token is wrong, as gRPC does.
            Some(refusal) if is_grpc && refusal.status() == StatusCode::UNAUTHORIZED => {}
            Some(refusal) => return Ok(refusal.map(ResponseBody::Left)),
        }
        if is_grpc {
            let intake = self.intake;
            let response =
                super::streams::answer(intake, access.clone(), request, MAX_BODY_BYTES).await;
            return Ok(response.map(ResponseBody::Right));
        }
        Ok(self.answer(request, access).await.map(ResponseBody::Left))
    }

    /// The response that refuses a request by its head, if it comes from a web page, or without a
    /// token that allows to report on any pod.
    fn refusal<B>(
        &self,
        request: &Request<B>,
        access: &PushAccess,
    ) -> Option<Response<Full<Bytes>>> {
        if let Err(page) = access.check_page(request) {
            return Some(error(page.status(), &page.to_string()));
        }
        let authorization = request.headers().get(AUTHORIZATION).map(|value| value.as_bytes());
        let is_admitted = self.intake.admits_any(access, authorization);
        (!is_admitted).then(|| {
            let message = "missing or wrong token; send `Authorization: Bearer TOKEN`";
            error(StatusCode::UNAUTHORIZED, message)
        })
    }

    /// Answers one admitted post.
    async fn answer(
        &self,
        request: Request<Incoming>,
        access: &PushAccess,
    ) -> Response<Full<Bytes>> {
        let (head, body) = request.into_parts();
        let authorization = head.headers.get(AUTHORIZATION).map(|value| value.as_bytes());
        if head.method != Method::POST {
            return error(StatusCode::METHOD_NOT_ALLOWED, "method not allowed; use POST");
        }
        if let Err(page) = access.check_content_type(&head.headers) {
            return error(page.status(), &page.to_string());
        }
        let limit = MAX_BODY_BYTES as u64;
        let size = body.size_hint().upper().unwrap_or(limit).min(limit);
        let read = async {
            let space = self.bodies.acquire_many(1 + (size / 1024) as u32).await;
            (Limited::new(body, MAX_BODY_BYTES).collect().await, space)
        };
        // A sidecar that dies in the middle of a post would otherwise hold its buffer space
        // forever.
        let Ok((body, space)) = tokio::time::timeout(BODY_TIMEOUT, read).await else {
            let message = format!("body: timeout after {} s", BODY_TIMEOUT.as_secs());
            return error(StatusCode::REQUEST_TIMEOUT, &message);
        };
        let body = match body {
            Ok(body) => body.to_bytes(),
            Err(failure) if failure.is::<LengthLimitError>() => {
                let message =
                    format!("body: larger than the limit of {MAX_BODY_BYTES} bytes; split it");
                return error(StatusCode::PAYLOAD_TOO_LARGE, &message);
            }
            Err(failure) => return error(StatusCode::BAD_REQUEST, &format!("body: {failure}")),
        };
        let parsed = PushedReport::parse(head.uri.path(), &body);
        drop((body, space));
        match parsed {
            Ok(pushed) if !self.intake.has_pod(&pushed.pod) => {
                let message = format!("unknown pod `{}`; add it to `pods`", pushed.pod);
                error(StatusCode::NOT_FOUND, &message)
            }
            Ok(pushed) if !self.intake.admits(access, &pushed.pod, authorization) => {
                let message = format!("pod `{}`: wrong token; use the pod's own", pushed.pod);
                error(StatusCode::FORBIDDEN, &message)
            }
            Ok(pushed) => self.submit(pushed),
            Err(failure @ PushError::Path { .. }) => {
                error(StatusCode::NOT_FOUND, &failure.to_string())
            }
            Err(failure) => error(StatusCode::BAD_REQUEST, &failure.to_string()),
        }
    }

    fn submit(&self, PushedReport { pod, reported }: PushedReport) -> Response<Full<Bytes>> {
        // A sidecar that posts can be asked for a snapshot, unless it is posting one.
        let (submitted, is_free) = match reported {
            Reported::Message(message) => {
                (self.intake.try_submit(&pod, vec![SourceMessage::Connected, message]), true)
            }
            Reported::Part(part) => (self.intake.try_submit_part(&pod, part), false),
        };
        let outdated = match submitted {
            Ok(outdated) => outdated,
            Err(IntakeError::OutOfOrder) => {
                let message = "part: does not continue the last one of this pod; begin with part 0";
                return error(StatusCode::CONFLICT, message);
            }
            Err(IntakeError::Full | IntakeError::Closed) => {
                return error(StatusCode::SERVICE_UNAVAILABLE, "event queue full; retry later");
            }
        };
        let request = if is_free { self.intake.snapshots.take(&pod) } else { None };
        let mut body = serde_json::json!({ "sync": request.is_some() });
        if request == Some(SnapshotRequest::WithTokens) {
            body["tokens"] = true.into();
        }
        if let Some(epoch) = outdated {
            body["outdated"] = epoch.0.into();
        }
        respond(StatusCode::OK, &body)
    }
}

fn error(status: StatusCode, message: &str) -> Response<Full<Bytes>> {
    respond(status, &serde_json::json!({ "error": message }))
}

fn respond(status: StatusCode, body: &serde_json::Value) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(body.to_string())));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, hyper::header::HeaderValue::from_static("application/json"));
    if status == StatusCode::SERVICE_UNAVAILABLE {
        headers.insert(RETRY_AFTER, hyper::header::HeaderValue::from_static("1"));
    }
    response
}
