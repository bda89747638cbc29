//! The HTTP side of pushed events.

use super::access::{PodTokens, PushAccess};
use super::epochs::LatestEpochs;
use super::request::{PushError, PushedMessage};
use super::{MOST_WAITING_ITEMS, PushQuery, PushWaiter, items};
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
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinSet;
use tokio::time::Instant;

/// A full state of a hundred thousand blocks with their tokens, as sidecars write it, stays below this.
const MOST_BYTES: usize = 32 << 20;
/// How long a post may take, waiting for room included.
const BODY_TIME: Duration = Duration::from_secs(30);
const MOST_CONNECTIONS: usize = 4096;
/// All bodies that are being read at a time, in KiB: eight of the largest.
const MOST_BODIES_KIB: usize = 8 * MOST_BYTES / 1024;
const HEADERS_WITHIN: Duration = Duration::from_secs(5);
#[cfg(feature = "grpc")]
const MOST_STREAMS: u32 = 64;
/// How often a silent stream is asked for a sign of life, and how long it may take.
#[cfg(feature = "grpc")]
const PING_EVERY: Duration = Duration::from_secs(5);
/// How long to wait when the system gives no more connections.
const OUT_OF_CONNECTIONS: Duration = Duration::from_millis(100);

/// Answers sidecars, and hands what they say to a [`Push`](super::Push).
#[derive(Clone)]
pub struct PushService {
    pub(super) requests: mpsc::Sender<PushWaiter>,
    pub(super) wanted: Arc<PushQuery>,
    pub(super) guests: Arc<PodTokens>,
    pub(super) lives: Arc<LatestEpochs>,
    /// Room for items that wait.
    pub(super) room: Arc<Semaphore>,
    /// Room for bodies that are being read, in KiB.
    bodies: Arc<Semaphore>,
}

/// What sidecars and engines come over.
pub trait PushConnection: AsyncRead + AsyncWrite + Unpin + Send + 'static {}

impl<T: AsyncRead + AsyncWrite + Unpin + Send + 'static> PushConnection for T {}

#[cfg(not(feature = "grpc"))]
type Answer = Full<Bytes>;
#[cfg(feature = "grpc")]
type Answer = http_body_util::Either<Full<Bytes>, tonic::body::Body>;

impl PushService {
    pub(super) fn new(
        requests: mpsc::Sender<PushWaiter>,
        wanted: Arc<PushQuery>,
        guests: Arc<PodTokens>,
    ) -> Self {
        let room = Arc::new(Semaphore::new(MOST_WAITING_ITEMS));
        let bodies = Arc::new(Semaphore::new(MOST_BODIES_KIB));
        Self { requests, wanted, guests, lives: Arc::default(), room, bodies }
    }

    /// Serves until it is dropped.
    pub async fn serve(self, listener: TcpListener, access: PushAccess) -> Infallible {
        let mut connections = JoinSet::new();
        loop {
            tokio::select! {
                accepted = listener.accept(), if connections.len() < MOST_CONNECTIONS => {
                    let Ok((stream, _)) = accepted else {
                        tokio::time::sleep(OUT_OF_CONNECTIONS).await;
                        continue;
                    };
                    connections.spawn(self.clone().speak(stream, access.clone()));
                }
                Some(_) = connections.join_next() => {}
            }
        }
    }

    /// One connection, to its end. A peer that breaks off is its own affair.
    #[cfg(not(feature = "grpc"))]
    pub async fn speak(self, stream: impl PushConnection, access: PushAccess) {
        let answer = service_fn(move |request| self.clone().respond(request, access.clone()));
        let connection = hyper::server::conn::http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEADERS_WITHIN)
            .serve_connection(TokioIo::new(stream), answer);
        let _ = connection.await;
    }

    /// One connection, to its end: posts over HTTP/1, streams over HTTP/2. A peer that breaks off is its own
    /// affair.
    #[cfg(feature = "grpc")]
    pub async fn speak(self, stream: impl PushConnection, access: PushAccess) {
        let answer = service_fn(move |request| self.clone().respond(request, access.clone()));
        let mut server =
            hyper_util::server::conn::auto::Builder::new(hyper_util::rt::TokioExecutor::new());
        server.http1().timer(TokioTimer::new()).header_read_timeout(HEADERS_WITHIN);
        server
            .http2()
            .timer(TokioTimer::new())
            .max_concurrent_streams(MOST_STREAMS)
            .keep_alive_interval(PING_EVERY)
            .keep_alive_timeout(PING_EVERY);
        let _ = server.serve_connection(TokioIo::new(stream), answer).await;
    }

    #[cfg(not(feature = "grpc"))]
    async fn respond(
        self,
        request: Request<Incoming>,
        access: PushAccess,
    ) -> Result<Response<Answer>, Infallible> {
        Ok(self.answer(request, &access).await)
    }

    #[cfg(feature = "grpc")]
    async fn respond(
        self,
        request: Request<Incoming>,
        access: PushAccess,
    ) -> Result<Response<Answer>, Infallible> {
        let kind = request.headers().get(CONTENT_TYPE).map(|kind| kind.as_bytes());
        if kind.is_some_and(|kind| kind.starts_with(b"application/grpc")) {
            let answer = super::streams::answer(self, access, request, MOST_BYTES).await;
            return Ok(answer.map(Answer::Right));
        }
        Ok(self.answer(request, &access).await.map(Answer::Left))
    }

    /// Whether whoever brings this header may speak of some pod.
    pub(super) fn admits_somebody(
        &self,
        access: &PushAccess,
        authorization: Option<&[u8]>,
    ) -> bool {
        access.admits(authorization) | self.guests.has_token(authorization)
    }

    /// Whether whoever brings this header may speak of this pod.
    pub(super) fn admits(
        &self,
        access: &PushAccess,
        pod: &str,
        authorization: Option<&[u8]>,
    ) -> bool {
        access.admits_to(&self.guests, pod, authorization)
    }

    /// Answers one request.
    pub async fn answer<B>(&self, request: Request<B>, access: &PushAccess) -> Response<Full<Bytes>>
    where
        B: Body<Data = Bytes>,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let (head, body) = request.into_parts();
        let authorization = head.headers.get(AUTHORIZATION).map(|value| value.as_bytes());
        if !self.admits_somebody(access, authorization) {
            return refuse(
                StatusCode::UNAUTHORIZED,
                "expected `Authorization: Bearer` and a token",
            );
        }
        if head.method != Method::POST {
            return refuse(StatusCode::METHOD_NOT_ALLOWED, "expected POST");
        }
        let most = body.size_hint().upper().unwrap_or(MOST_BYTES as u64).min(MOST_BYTES as u64);
        let taken = async {
            let room = self.bodies.acquire_many(1 + (most / 1024) as u32).await;
            (Limited::new(body, MOST_BYTES).collect().await, room)
        };
        // Whoever died in the middle of a post would keep its room for ever.
        let Ok((body, room)) = tokio::time::timeout(BODY_TIME, taken).await else {
            return refuse(StatusCode::REQUEST_TIMEOUT, "body: it took too long to come");
        };
        let body = match body {
            Ok(body) => body.to_bytes(),
            Err(error) if error.is::<LengthLimitError>() => {
                let message = format!("body: found more than {MOST_BYTES} bytes; post it in parts");
                return refuse(StatusCode::PAYLOAD_TOO_LARGE, &message);
            }
            Err(error) => return refuse(StatusCode::BAD_REQUEST, &format!("body: {error}")),
        };
        let parsed = PushedMessage::parse(head.uri.path(), &body);
        drop((body, room));
        match parsed {
            Ok(pushed) if !self.guests.knows(&pushed.pod) => {
                let pod = &pushed.pod;
                let message =
                    format!("pod `{pod}`: found no such pod in the fleet; add it to `pods`");
                refuse(StatusCode::NOT_FOUND, &message)
            }
            Ok(pushed) if !self.admits(access, &pushed.pod, authorization) => {
                let message = format!("pod `{}`: another token is expected for it", pushed.pod);
                refuse(StatusCode::FORBIDDEN, &message)
            }
            Ok(pushed) => self.take(pushed),
            Err(error @ PushError::Path { .. }) => {
                refuse(StatusCode::NOT_FOUND, &error.to_string())
            }
            Err(error) => refuse(StatusCode::BAD_REQUEST, &error.to_string()),
        }
    }

    fn take(&self, PushedMessage { pod, mut said }: PushedMessage) -> Response<Full<Bytes>> {
        let outdated = self.lives.note(&pod, &said, Instant::now());
        // Whoever posts can be told what is wanted.
        said.insert(0, SourceMessage::Connected);
        let room = Arc::clone(&self.room).try_acquire_many_owned(items(&said));
        let waiting =
            room.ok().map(|room| PushWaiter { pod: Arc::clone(&pod), said, _room: Some(room) });
        if waiting.is_none_or(|waiting| self.requests.try_send(waiting).is_err()) {
            return refuse(
                StatusCode::SERVICE_UNAVAILABLE,
                "too many requests wait; post it again",
            );
        }
        let sync = self.wanted.take(&pod);
        let mut answer = serde_json::json!({ "sync": sync });
        if let Some(epoch) = outdated {
            answer["outdated"] = epoch.0.into();
        }
        respond(StatusCode::OK, &answer)
    }
}

fn refuse(status: StatusCode, message: &str) -> Response<Full<Bytes>> {
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
