//! Which part of the gateway answers a request: the gateway itself, a local API, or an engine.

use crate::dialect::Api;
use crate::fleet::snapshot::{FleetSnapshot, PodEntry};
use crate::http::metrics_page;
use crate::percent::decode;
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
use serde_json::{Value, json};
use std::convert::Infallible;
use std::sync::Arc;
use wornpath_routing::Health;

/// Where one model is asked for.
const MODEL_PATH: &str = "/v1/models/";

static METRICS: TaskName = TaskName::new("write the metrics");

/// Answers one request.
///
/// What this keeps while it waits is moved about for every request, so what few requests need (a place in the
/// waiting room, a thread of its own, files and batches) is kept apart.
pub(crate) async fn respond(
    worker: Arc<Worker>,
    request: Request<Incoming>,
) -> Result<Response<ClientReply>, Infallible> {
    let id = headers::request_id(request.headers(), || worker.random());
    let mut response = match own(&worker, request).await {
        Ok(own) => own,
        Err(request) => handle(&worker, request, &id).await,
    };
    let headers = response.headers_mut();
    headers.insert(headers::REQUEST_ID, id);
    if worker.gateway.is_draining() {
        // Its connection would be closed before long, perhaps under its next request.
        headers.insert(CONNECTION, HeaderValue::from_static("close"));
    }
    Ok(response)
}

/// What the gateway answers without any engine, or the request back.
async fn own(
    worker: &Arc<Worker>,
    request: Request<Incoming>,
) -> Result<Response<ClientReply>, Request<Incoming>> {
    #[cfg(debug_assertions)]
    crate::fault::inject(worker, request.headers());
    match (request.method(), request.uri().path()) {
        // Of what is answered to HEAD, the server leaves out the body.
        (&(Method::GET | Method::HEAD), "/health" | "/ping") => return Ok(health(worker)),
        (&(Method::GET | Method::HEAD), "/ready") => return Ok(ready(worker)),
        (&(Method::GET | Method::HEAD), "/v1/models") => return Ok(models(worker)),
        (&(Method::GET | Method::HEAD), path) if path.starts_with(MODEL_PATH) => {
            return Ok(model(worker, &path[MODEL_PATH.len()..]));
        }
        (&(Method::GET | Method::HEAD), "/metrics") => {
            if let Some(page) = Box::pin(metrics(worker)).await {
                return Ok(page);
            }
        }
        _ => {}
    }
    match worker.gateway.local_api().filter(|api| api.serves(request.uri().path())) {
        Some(api) => Ok(Arc::clone(api).respond(request).await),
        None => Err(request),
    }
}

/// Whether the process should go on. Takes no lock that a stuck thread could hold.
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
        Readiness::Starting => unavailable(none_is_up(&worker.gateway.snapshot()).into()),
        Readiness::Draining => unavailable("draining".into()),
    }
}

fn unavailable(why: Bytes) -> Response<ClientReply> {
    let mut response = Response::new(ClientReply::whole(why));
    *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
    response
}

/// Why no pod takes requests.
fn none_is_up(snapshot: &FleetSnapshot) -> &'static str {
    let is_draining = |entry: &PodEntry| entry.pod.vitals().health() == Health::Draining;
    match snapshot.entries() {
        [] => "starting: no pods configured",
        entries if entries.iter().all(is_draining) => "no pod available: all are draining",
        _ => "starting: no pod has answered yet",
    }
}

/// The page of metrics. It looks at every pod, so it is written where it keeps no request waiting.
async fn metrics(worker: &Worker) -> Option<Response<ClientReply>> {
    let (gateway, counted) = (Arc::clone(&worker.gateway), Arc::clone(worker.gateway.metrics()?));
    let write = move || metrics_page::page(&gateway, &counted);
    let page = worker.gateway.pool.spawn(&METRICS, 0, write).await.ok()?;
    let mut response = Response::new(ClientReply::whole(Bytes::from(page)));
    let kind = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    response.headers_mut().insert(CONTENT_TYPE, kind);
    Some(response)
}

fn models(worker: &Worker) -> Response<ClientReply> {
    shown(&json!({"object": "list", "data": worker.gateway.snapshot().cards()}))
}

/// One model, by a name that may be written with escapes, as `org%2Fmodel`.
fn model(worker: &Worker, name: &str) -> Response<ClientReply> {
    let name = decode(name).unwrap_or_else(|| name.to_owned());
    let snapshot = worker.gateway.snapshot();
    match snapshot.cards().iter().find(|card| card["id"] == *name) {
        Some(card) => shown(card),
        None => {
            let message = format!("model `{name}` not found; GET /v1/models lists the models");
            ErrorResponse::new(StatusCode::NOT_FOUND, message).response(Api::OTHER)
        }
    }
}

fn shown(json: &Value) -> Response<ClientReply> {
    let mut response = Response::new(ClientReply::whole(json.to_string().into()));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}
