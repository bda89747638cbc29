//! Calls of the router itself to the engines: what it asks them, and how long they may take.

use crate::fleet::engine_facts::{EngineAnswers, EngineFacts};
use crate::fleet::snapshot::PodEntry;
use bytes::Bytes;
use http_body_util::Full;
use hyper::header::{ACCEPT, CONTENT_TYPE, HOST, HeaderValue};
use hyper::{Method, Request, StatusCode, Uri};
use serde_json::Value;
use std::sync::Arc;
use std::time::Duration;
use wornpath_execution::{BreakerRules, EgressPolicy, Endpoint, Timeouts, WorkerNumber, call};

/// Limit on an answer that is JSON.
const MAX_ANSWER_BYTES: usize = 4 << 20;
/// Limit on what an engine says of itself; a chat template has some kilobytes.
const MAX_FACTS_BYTES: usize = 256 << 10;
/// Limit on a metrics page, which usually has a few hundred kilobytes.
const MAX_PAGE_BYTES: usize = 8 << 20;
/// Time for a pod that is coming up to say what it is; until then it gets no requests.
pub(crate) const ANSWER_TIMEOUT: Duration = Duration::from_secs(1);

pub(crate) const TIMEOUTS: Timeouts = Timeouts {
    connect: Duration::from_secs(1),
    first_byte: Duration::from_secs(2),
    between_bytes: Duration::from_secs(2),
    total: Duration::from_secs(4),
};

/// Asks an engine what it is; also returns its metrics page.
pub(crate) async fn ask(
    entry: &PodEntry,
    reach: &Arc<EgressPolicy>,
) -> (EngineFacts, Option<String>) {
    let answer = async |path: &str| {
        tokio::time::timeout(ANSWER_TIMEOUT, fetch(&entry.endpoint, path)).await.ok()?.ok()
    };
    let page = tokio::time::timeout(ANSWER_TIMEOUT, metrics_page(entry, reach));
    let (page, version, event_sources, server_info, tokenizer_info) = tokio::join!(
        page,
        answer("/version"),
        answer("/kv_event_sources"),
        answer("/get_server_info"),
        answer("/tokenizer_info"),
    );
    let page = page.ok().flatten();
    let authority = entry.endpoint.authority().to_str().unwrap_or_default();
    let answers = EngineAnswers {
        host: authority.rsplit_once(':').map_or(authority, |(host, _)| host),
        cards: &entry.cards,
        page: page.as_deref().unwrap_or_default(),
        version: parsed(version),
        event_sources,
        server_info: parsed(server_info),
        tokenizer_info: parsed(tokenizer_info),
    };
    (answers.facts(), page)
}

/// A longer answer is not parsed: it is none of an engine.
fn parsed(body: Option<Bytes>) -> Value {
    let body = body.filter(|body| body.len() <= MAX_FACTS_BYTES);
    body.and_then(|body| serde_json::from_slice(&body).ok()).unwrap_or_default()
}

/// The metrics page of a pod; none if it cannot be read. The pod's key is sent only to the pod's
/// own address.
pub(crate) async fn metrics_page(entry: &PodEntry, reach: &Arc<EgressPolicy>) -> Option<String> {
    let pod = &entry.endpoint;
    let url = match &entry.config.metrics {
        Some(url) => url.clone(),
        None => format!("{}/metrics", entry.config.url()),
    };
    let endpoint =
        Endpoint::new(&url, BreakerRules::default(), 1).ok()?.with_egress_policy(reach).ok()?;
    let endpoint = Arc::new(endpoint);
    let mut request = Request::new(Full::new(Bytes::new()));
    *request.uri_mut() = endpoint.prefix().parse().unwrap_or_else(|_| Uri::from_static("/"));
    request.headers_mut().insert(HOST, endpoint.authority().clone());
    if endpoint.authority() == pod.authority() {
        pod.authorize(request.headers_mut());
    }
    request.headers_mut().insert(ACCEPT, HeaderValue::from_static("text/plain"));
    let answer = call(&endpoint, WorkerNumber::NONE, request, TIMEOUTS).await.ok()?;
    if answer.head.status != StatusCode::OK {
        return None;
    }
    let (_, body) = answer.whole(MAX_PAGE_BYTES).await.ok()?;
    String::from_utf8(body.into()).ok()
}

/// The body of a successful `GET` of a path.
pub(crate) async fn fetch(endpoint: &Arc<Endpoint>, path: &str) -> Result<Bytes, String> {
    successful(endpoint, path, get(endpoint, path)).await
}

/// The body of a successful `POST` of JSON.
pub(crate) async fn post(
    endpoint: &Arc<Endpoint>,
    path: &str,
    body: &Value,
) -> Result<Bytes, String> {
    let mut request = get(endpoint, path).map(|_| Full::new(body.to_string().into()));
    *request.method_mut() = Method::POST;
    request.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    successful(endpoint, path, request).await
}

async fn successful(
    endpoint: &Arc<Endpoint>,
    path: &str,
    request: Request<Full<Bytes>>,
) -> Result<Bytes, String> {
    let answer = call(endpoint, WorkerNumber::NONE, request, TIMEOUTS).await;
    let answer = answer.map_err(|error| error.to_string())?;
    let (head, body) = answer.whole(MAX_ANSWER_BYTES).await.map_err(|error| error.to_string())?;
    if !head.status.is_success() {
        return Err(format!("{path}: status {}", head.status));
    }
    Ok(body)
}

pub(crate) fn get(endpoint: &Endpoint, path: &str) -> Request<Full<Bytes>> {
    let mut request = Request::new(Full::new(Bytes::new()));
    let path = format!("{}{path}", endpoint.prefix());
    *request.uri_mut() = path.parse().unwrap_or_else(|_| Uri::from_static("/"));
    request.headers_mut().insert(HOST, endpoint.authority().clone());
    endpoint.authorize(request.headers_mut());
    request
}
