//! Dispatches each request to the part of the gateway that answers it.
//!
//! The gateway itself answers health, readiness, models and metrics; a local API (files, batches)
//! answers the paths that it serves; everything else goes to an engine.

use crate::dialect::Api;
use crate::fleet::snapshot::{FleetSnapshot, PodEntry};
use crate::http::metrics_page::{self, PageFormat};
use crate::proxy::error_response::ErrorResponse;
use crate::proxy::gateway::Readiness;
use crate::proxy::handle::handle;
use crate::proxy::headers;
use crate::proxy::worker::Worker;
use crate::reply::ClientReply;
use crate::watchdog::TaskName;
use bytes::Bytes;
use hyper::body::Incoming;
use hyper::header::{CONNECTION, CONTENT_TYPE, HeaderValue};
use hyper::{Method, Request, Response, StatusCode};
use percent_encoding::percent_decode_str;
use serde_json::{Value, json};
use std::borrow::Cow;
use std::convert::Infallible;
use std::future::poll_fn;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use wornpath_routing::{Health, Rejection};

/// The prefix of the path that names one model.
const MODEL_PATH: &str = "/v1/models/";

pub(super) static METRICS: TaskName = TaskName::new("write the metrics");

/// Answers one request, of a client at `address`.
///
/// This future is moved for every request and should be small: the stages of a request, 14 KB, are
/// boxed, and in them what few requests need (the wait queue, the low-priority pool).
pub(crate) async fn respond(
    worker: Arc<Worker>,
    request: Request<Incoming>,
    address: IpAddr,
) -> Result<Response<ClientReply>, Infallible> {
    let id = headers::request_id(request.headers(), || worker.random());
    let mut response = match respond_locally(&worker, request, address).await {
        Ok(response) => response,
        Err(request) => {
            let handled = Box::pin(handle(&worker, request, &id, address));
            unless_cut(&worker, handled).await
        }
    };
    let headers = response.headers_mut();
    headers.insert(headers::REQUEST_ID, id);
    if worker.gateway.is_draining() {
        // The drain closes the connection soon, perhaps during the client's next request.
        headers.insert(CONNECTION, HeaderValue::from_static("close"));
    }
    Ok(response)
}

/// A response, or 503 once the drain does not wait for it any longer.
async fn unless_cut(
    worker: &Worker,
    mut response: impl Future<Output = Response<ClientReply>> + Unpin,
) -> Response<ClientReply> {
    let cut = || {
        let rejection = Rejection::shutting_down();
        ErrorResponse::from(rejection).response(Api::OTHER)
    };
    poll_fn(|context| match Pin::new(&mut response).poll(context) {
        Poll::Pending if worker.gateway.is_cut() => Poll::Ready(cut()),
        polled => polled,
    })
    .await
}

/// The response to a request that needs no engine; otherwise the request itself, as the error.
async fn respond_locally(
    worker: &Arc<Worker>,
    request: Request<Incoming>,
    address: IpAddr,
) -> Result<Response<ClientReply>, Request<Incoming>> {
    #[cfg(debug_assertions)]
    crate::fault::inject(worker, request.headers());
    match (request.method(), request.uri().path()) {
        // For HEAD, hyper leaves out the body.
        (&(Method::GET | Method::HEAD), "/health" | "/ping") => return Ok(health(worker)),
        (&(Method::GET | Method::HEAD), "/ready") => return Ok(ready(worker)),
        (&(Method::GET | Method::HEAD), "/v1/models") => return Ok(models(worker)),
        (&(Method::GET | Method::HEAD), path) if path.starts_with(MODEL_PATH) => {
            return Ok(model(worker, &path[MODEL_PATH.len()..]));
        }
        (&(Method::GET | Method::HEAD), "/metrics") => {
            let format = PageFormat::wanted(request.headers());
            if let Some(page) = Box::pin(metrics(worker, format)).await {
                return Ok(page);
            }
        }
        _ => {}
    }
    match worker.gateway.local_api().filter(|api| api.serves(request.uri().path())) {
        Some(api) => Ok(Arc::clone(api).respond(request, address).await),
        None if is_for_batches(worker, request.uri().path()) => Ok(no_batches()),
        None => Err(request),
    }
}

/// Whether a path is of the files and batches API, which no engine gets unless a route names it.
fn is_for_batches(worker: &Worker, path: &str) -> bool {
    let is_below = |root: &&str| {
        path.strip_prefix(*root).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    let root = ["/v1/files", "/v1/batches"].into_iter().find(is_below);
    root.is_some_and(|root| !worker.gateway.routes().names(root, path))
}

fn no_batches() -> Response<ClientReply> {
    let message = "this gateway does not serve files and batches; \
                   its operator can start it with `wornpath serve --batches FOLDER`";
    ErrorResponse::new(StatusCode::NOT_FOUND, message.to_owned()).response(Api::OTHER)
}

/// Liveness: whether all threads make progress. Takes no lock that a stuck thread could hold.
fn health(worker: &Worker) -> Response<ClientReply> {
    match worker.gateway.threads().why_unhealthy() {
        None => Response::new(ClientReply::whole(Bytes::new())),
        Some(why) => unavailable(why.into()),
    }
}

fn ready(worker: &Worker) -> Response<ClientReply> {
    if let Some(why) = worker.gateway.threads().why_unhealthy() {
        return unavailable(why.into());
    }
    match worker.gateway.readiness() {
        Readiness::Ready => Response::new(ClientReply::whole(Bytes::from_static(b"ready"))),
        Readiness::Starting => unavailable(why_no_pod_is_up(&worker.gateway.snapshot()).into()),
        Readiness::Draining => unavailable("draining".into()),
    }
}

fn unavailable(why: Bytes) -> Response<ClientReply> {
    let mut response = Response::new(ClientReply::whole(why));
    *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
    response
}

fn why_no_pod_is_up(snapshot: &FleetSnapshot) -> &'static str {
    let is_draining = |entry: &PodEntry| entry.pod.state().health() == Health::Draining;
    match snapshot.entries() {
        [] => "starting: no pods configured",
        entries if entries.iter().all(is_draining) => "no pod available: all are draining",
        _ => "starting: no pod has answered yet",
    }
}

/// The metrics page. It visits every pod, so it is written on the low-priority pool.
async fn metrics(worker: &Worker, format: PageFormat) -> Option<Response<ClientReply>> {
    let gateway = Arc::clone(&worker.gateway);
    let metrics = Arc::clone(gateway.metrics()?);
    let write = move || metrics_page::page(&gateway, &metrics, format);
    let page = worker.gateway.pool.spawn(&METRICS, 0, write).await.ok()?;
    let mut response = Response::new(ClientReply::whole(Bytes::from(page)));
    let kind = HeaderValue::from_static(format.content_type());
    response.headers_mut().insert(CONTENT_TYPE, kind);
    Some(response)
}

fn models(worker: &Worker) -> Response<ClientReply> {
    json_response(&json!({"object": "list", "data": worker.gateway.snapshot().cards()}))
}

/// One model, by its name, which may be percent-encoded: `org%2Fmodel`.
fn model(worker: &Worker, name: &str) -> Response<ClientReply> {
    let name = percent_decode_str(name).decode_utf8().unwrap_or(Cow::Borrowed(name));
    let snapshot = worker.gateway.snapshot();
    match snapshot.cards().iter().find(|card| card["id"] == *name) {
        Some(card) => json_response(card),
        None => {
            let message = format!("model `{name}` not found; GET /v1/models lists the models");
            ErrorResponse::new(StatusCode::NOT_FOUND, message).response(Api::OTHER)
        }
    }
}

fn json_response(json: &Value) -> Response<ClientReply> {
    let mut response = Response::new(ClientReply::whole(json.to_string().into()));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}
