//! The HTTP side of pushed events.

use super::Wanted;
use super::access::Access;
use super::request::{PushError, Pushed};
use crate::said::Said;
use crate::transport::PodName;
use bytes::Bytes;
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::body::Body;
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, RETRY_AFTER};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

/// A full state of 200,000 blocks with their tokens stays below this.
const MOST_BYTES: usize = 32 << 20;
const MOST_CONNECTIONS: usize = 4096;
const HEADERS_WITHIN: Duration = Duration::from_secs(5);
/// How long to wait when the system gives no more connections.
const OUT_OF_CONNECTIONS: Duration = Duration::from_millis(100);

/// Answers sidecars, and hands what they say to a [`Push`].
#[derive(Clone)]
pub struct PushService {
    requests: mpsc::Sender<(PodName, Vec<Said>)>,
    wanted: Arc<Wanted>,
    knows: Arc<dyn Fn(&str) -> bool + Send + Sync>,
}

impl PushService {
    pub(super) fn new(
        requests: mpsc::Sender<(PodName, Vec<Said>)>,
        wanted: Arc<Wanted>,
        knows: Box<dyn Fn(&str) -> bool + Send + Sync>,
    ) -> Self {
        Self { requests, wanted, knows: knows.into() }
    }

    /// Serves until it is dropped.
    pub async fn serve(self, listener: TcpListener, access: Access) -> Infallible {
        let mut connections = JoinSet::new();
        loop {
            tokio::select! {
                accepted = listener.accept(), if connections.len() < MOST_CONNECTIONS => {
                    let Ok((stream, _)) = accepted else {
                        tokio::time::sleep(OUT_OF_CONNECTIONS).await;
                        continue;
                    };
                    let (service, access) = (self.clone(), access.clone());
                    let answer = service_fn(move |request| {
                        let (service, access) = (service.clone(), access.clone());
                        async move { Ok::<_, Infallible>(service.answer(request, &access).await) }
                    });
                    let connection = http1::Builder::new()
                        .timer(TokioTimer::new())
                        .header_read_timeout(HEADERS_WITHIN)
                        .serve_connection(TokioIo::new(stream), answer);
                    connections.spawn(async move {
                        // A peer that breaks off is its own affair.
                        let _ = connection.await;
                    });
                }
                Some(_) = connections.join_next() => {}
            }
        }
    }

    /// Answers one request.
    pub async fn answer<B>(&self, request: Request<B>, access: &Access) -> Response<Full<Bytes>>
    where
        B: Body<Data = Bytes>,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let authorization = request.headers().get(AUTHORIZATION).map(|value| value.as_bytes());
        if !access.admits(authorization) {
            return refuse(
                StatusCode::UNAUTHORIZED,
                "expected `Authorization: Bearer` and a token",
            );
        }
        if request.method() != Method::POST {
            return refuse(StatusCode::METHOD_NOT_ALLOWED, "expected POST");
        }
        let (head, body) = request.into_parts();
        match Limited::new(body, MOST_BYTES).collect().await {
            Ok(body) => self.take(head.uri.path(), &body.to_bytes()),
            Err(error) if error.is::<LengthLimitError>() => {
                let message = format!("body: found more than {MOST_BYTES} bytes; post it in parts");
                refuse(StatusCode::PAYLOAD_TOO_LARGE, &message)
            }
            Err(error) => refuse(StatusCode::BAD_REQUEST, &format!("body: {error}")),
        }
    }

    fn take(&self, path: &str, body: &[u8]) -> Response<Full<Bytes>> {
        let Pushed { pod, mut said } = match Pushed::parse(path, body) {
            Ok(pushed) => pushed,
            Err(error @ PushError::Path { .. }) => {
                return refuse(StatusCode::NOT_FOUND, &error.to_string());
            }
            Err(error) => return refuse(StatusCode::BAD_REQUEST, &error.to_string()),
        };
        if !(self.knows)(&pod) {
            let message = format!("pod `{pod}`: found no such pod in the fleet; add it to `pods`");
            return refuse(StatusCode::NOT_FOUND, &message);
        }
        // Whoever posts can be told what is wanted.
        said.insert(0, Said::Connected);
        if self.requests.try_send((Arc::clone(&pod), said)).is_err() {
            return refuse(
                StatusCode::SERVICE_UNAVAILABLE,
                "too many requests wait; post it again",
            );
        }
        let sync = self.wanted.pods().remove(&pod);
        respond(StatusCode::OK, &serde_json::json!({ "sync": sync }))
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
