//! Ingress: authenticates a request, checks its head and its quota, and reads its body within the
//! limits.
//!
//! Everything that can refuse a request by its head comes before the body is read, so a refused
//! client costs no memory: its key, its path, and the quota of its tenant, whose permit is held from
//! then on. Encoded bodies are refused, because routing would have to decode them.

use crate::dialect::Api;
use crate::fleet::snapshot::FleetSnapshot;
use crate::observe::request_trace::TraceContext;
use crate::proxy::body::{self, BodyError, BodyRules, BodySender, ReceivedBody};
use crate::proxy::body_budget::BodyReservation;
use crate::proxy::error_response::ErrorResponse;
use crate::proxy::headers;
use crate::proxy::parse::ParsedBody;
use crate::proxy::quota::QuotaPermit;
use crate::proxy::unix_time;
use crate::proxy::worker::Worker;
use crate::routes::is_path;
use bytes::Bytes;
use hyper::body::Body;
use hyper::header::{AUTHORIZATION, CONTENT_ENCODING, HeaderMap, HeaderValue};
use hyper::http::request::Parts;
use hyper::http::uri::PathAndQuery;
use hyper::{Method, StatusCode};
use sha2::{Digest, Sha256};
use std::fmt::Display;
use std::net::IpAddr;
use wornpath_config::{Credentials, ExpiringKey, KeyDigest, Settings, TenantSettings};
use wornpath_execution::Edit;
use wornpath_execution::StepCall;
use wornpath_execution::splice;
use wornpath_index::Moment;
use wornpath_routing::Name;

/// A request that passed the checks, as pods get it.
pub(crate) struct Ingress<'a> {
    /// The settings by which it was checked.
    pub(crate) settings: &'a Settings,
    pub(crate) tenant: Option<&'a TenantSettings>,
    /// A permit of the tenant's quota; none if it has no quota.
    pub(crate) permit: Option<QuotaPermit>,
    pub(crate) call: StepCall,
    /// What the body of `call` holds of the budget of all bodies.
    pub(crate) reservation: Option<BodyReservation>,
    /// The headers that profiles may read, including those that pods do not get.
    pub(crate) routing_headers: Vec<(String, String)>,
}

/// What is known of a request before its head is read.
pub(crate) struct Arrival {
    pub(crate) at: Moment,
    pub(crate) id: HeaderValue,
    /// The address of the client's connection.
    pub(crate) address: IpAddr,
}

/// A refused request.
pub(crate) struct Refused {
    pub(crate) error: ErrorResponse,
    /// Whether the client may still send its body, and will not read the response before.
    pub(crate) is_body_unread: bool,
    /// The tenant that sent it, if its key was checked.
    pub(crate) tenant: Option<Name>,
}

impl From<ErrorResponse> for Refused {
    fn from(error: ErrorResponse) -> Self {
        Self { error, is_body_unread: false, tenant: None }
    }
}

/// Checks the head and the quota, then reads the body.
pub(crate) async fn receive<'a, B>(
    worker: &Worker,
    mut parts: Parts,
    body: &mut B,
    arrival: &Arrival,
    settings: &'a Settings,
) -> Result<Ingress<'a>, Refused>
where
    B: Body<Data = Bytes, Error: Display> + Unpin,
{
    let CheckedHead { tenant, path } = check_head(&parts, settings)?;
    let limits = &settings.limits;
    let name = || tenant.map(|tenant| tenant.name.clone());
    let unread = |error| Refused { error, is_body_unread: true, tenant: name() };
    let permit = acquire_quota(worker, tenant).map_err(unread)?;
    let rules = BodyRules {
        budget: worker.gateway.bodies(),
        limits,
        most: limits.body_bytes,
        sender: BodySender { tenant: tenant.map(|it| &it.name), address: arrival.address },
    };
    let received = body::read(body, &rules).await;
    let ReceivedBody { bytes, reservation } = received.map_err(|error| Refused {
        is_body_unread: matches!(error, BodyError::Full(_)),
        error: error.into(),
        tenant: name(),
    })?;
    headers::strip(&mut parts.headers);
    headers::strip_request(&mut parts.headers);
    parts.headers.insert(headers::REQUEST_ID, arrival.id.clone());
    TraceContext::drop_malformed(&mut parts.headers);
    let routing_headers = headers::for_routing(&parts.headers);
    if settings.upstream_credentials == Credentials::None {
        headers::strip_credentials(&mut parts.headers);
    }
    let headers = parts.headers;
    let call = StepCall { method: parts.method, path, headers, body: bytes, asks_usage: false };
    Ok(Ingress { settings, tenant, permit, call, reservation, routing_headers })
}

/// Names of models in an error message.
const LISTED_MODELS: usize = 20;

/// Refuses a request that names no model where several are served, or one that none serves.
pub(crate) fn check_model(
    api: Api,
    name: &str,
    snapshot: &FleetSnapshot,
) -> Result<(), ErrorResponse> {
    if !api.dialect().is_known() {
        return Ok(());
    }
    let Some(available) = snapshot.available_instead(name) else { return Ok(()) };
    let listed = available.iter().take(LISTED_MODELS).map(|name| format!("`{name}`"));
    let mut list = listed.collect::<Vec<_>>().join(", ");
    if available.len() > LISTED_MODELS {
        let more = available.len() - LISTED_MODELS;
        list += &format!(" and {more} more (GET /v1/models)");
    }
    Err(match name {
        "" => ErrorResponse::bad(format!("`model` is missing; available: {list}")),
        name => {
            let message = format!("the model `{name}` does not exist; available: {list}");
            ErrorResponse::new(StatusCode::NOT_FOUND, message)
        }
    })
}

/// What the head of an accepted request says.
struct CheckedHead<'a> {
    tenant: Option<&'a TenantSettings>,
    path: PathAndQuery,
}

/// Authenticates the client, and refuses what no engine should get.
fn check_head<'a>(parts: &Parts, settings: &'a Settings) -> Result<CheckedHead<'a>, ErrorResponse> {
    let limit = settings.limits.head_bytes;
    let length = headers::length(parts);
    if length > limit {
        // hyper's buffer may hold a complete head that is longer than the limit.
        let message = format!(
            "request line and headers too large: {length} bytes (limit {limit}, `limits.head`)"
        );
        return Err(ErrorResponse::new(StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE, message));
    }
    let tenant = tenant(&parts.headers, settings)?;
    if parts
        .headers
        .get_all(CONTENT_ENCODING)
        .iter()
        .any(|coding| !coding.as_bytes().eq_ignore_ascii_case(b"identity"))
    {
        let message =
            "encoded bodies are not supported; send the body without `content-encoding`".to_owned();
        return Err(ErrorResponse::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, message));
    }
    if [Method::CONNECT, Method::TRACE].contains(&parts.method) {
        let message = format!("method {} not allowed", parts.method);
        return Err(ErrorResponse::new(StatusCode::METHOD_NOT_ALLOWED, message));
    }
    let path = parts.uri.path_and_query().cloned();
    let path = path.unwrap_or_else(|| PathAndQuery::from_static("/"));
    if !path.as_str().starts_with('/') {
        return Err(ErrorResponse::bad(format!(
            "invalid path `{path}`: it must begin with a slash"
        )));
    }
    headers::check_spelling(path.path()).map_err(ErrorResponse::bad)?;
    if !headers::is_client_path(path.path()) && !has_route(path.path(), settings) {
        let path = path.path();
        let message =
            format!("`{path}` is not forwarded to engines; add a route with this path to allow it");
        return Err(ErrorResponse::new(StatusCode::NOT_FOUND, message));
    }
    Ok(CheckedHead { tenant, path })
}

/// Whether a route of the configuration matches the path.
fn has_route(path: &str, settings: &Settings) -> bool {
    let patterns = settings.routes.iter().filter_map(|route| route.path.as_deref());
    patterns.into_iter().any(|pattern| is_path(pattern, path))
}

/// The tenant whose API key the request has; none where no tenants are configured. All keys are
/// compared, each in constant time, so that response times reveal nothing about a key.
pub fn tenant<'a>(
    headers: &HeaderMap,
    settings: &'a Settings,
) -> Result<Option<&'a TenantSettings>, ErrorResponse> {
    if settings.tenants.is_empty() {
        return Ok(None);
    }
    let key = headers
        .get(AUTHORIZATION)
        .and_then(|value| value.to_str().ok())
        .and_then(|value| value.split_once(' '))
        .and_then(|(scheme, key)| scheme.eq_ignore_ascii_case("bearer").then_some(key))
        .or_else(|| headers.get(headers::API_KEY).and_then(|value| value.to_str().ok()));
    let Some(key) = key else {
        let message = "missing API key; send it as `authorization: Bearer …`".to_owned();
        return Err(ErrorResponse::new(StatusCode::UNAUTHORIZED, message));
    };
    let digest = KeyDigest(Sha256::digest(key.trim().as_bytes()).into());
    let mut found = None;
    for tenant in &settings.tenants {
        if let Some(key) = tenant.key_of(&digest) {
            found = Some((tenant, key));
        }
    }
    let refused = |why: &str| Err(ErrorResponse::new(StatusCode::UNAUTHORIZED, why.to_owned()));
    match found {
        None => refused("invalid API key"),
        Some((_, ExpiringKey { until: Some(until), .. })) if until <= unix_time() => {
            refused("expired API key; use the present one")
        }
        Some((tenant, _)) => Ok(Some(tenant)),
    }
}

/// A permit within the tenant's quota and rates; none if it has none.
fn acquire_quota(
    worker: &Worker,
    tenant: Option<&TenantSettings>,
) -> Result<Option<QuotaPermit>, ErrorResponse> {
    let Some(tenant) = tenant else { return Ok(None) };
    Ok(worker.gateway.quotas.acquire(tenant, worker.gateway.now())?)
}

/// Replaces an alias of the configuration by the name that engines know.
pub(crate) fn replace_alias(
    body: &ParsedBody,
    call: &mut StepCall,
    snapshot: &FleetSnapshot,
) -> Result<(), ErrorResponse> {
    let Some(name) = snapshot.alias_of(&body.model) else { return Ok(()) };
    if !body.is_object {
        return Err(ErrorResponse::bad(format!(
            "`{}` is an alias of `{name}`, which cannot be replaced in a form; send `{name}`",
            body.model
        )));
    }
    set_field(call, "model", name.as_str())
}

/// Replaces the model that a request names by the one that it is to get.
pub(crate) fn rename_model(
    model: Option<String>,
    body: &mut ParsedBody,
    call: &mut StepCall,
) -> Result<(), ErrorResponse> {
    let Some(model) = model.filter(|_| body.is_object) else { return Ok(()) };
    set_field(call, "model", &model)?;
    body.model = model;
    Ok(())
}

fn set_field(call: &mut StepCall, field: &str, value: &str) -> Result<(), ErrorResponse> {
    let edit = Edit::set(field, &value.into());
    let edited = splice(&call.body, &[edit]);
    call.body = edited.map_err(|error| ErrorResponse::bad(error.to_string()))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::disallowed_methods, reason = "the test measures time")]
    use super::*;
    use std::hint::black_box;
    use std::time::Instant;

    type Compare = fn(&KeyDigest, &KeyDigest) -> bool;

    fn early_exit_eq(one: &KeyDigest, other: &KeyDigest) -> bool {
        one.0.iter().zip(&other.0).all(|(one, other)| black_box(one) == black_box(other))
    }

    /// The median time to compare a key that is wrong in its last byte, relative to one that is
    /// wrong in every byte.
    fn timing_ratio(compare: Compare) -> f64 {
        let right = KeyDigest([7; 32]);
        let mut nearly = right;
        nearly.0[31] ^= 1;
        let wrong = KeyDigest([9; 32]);
        let mut times = [Vec::new(), Vec::new()];
        for round in 0..4000 {
            for kind in [round % 2, 1 - round % 2] {
                let given = if kind == 0 { nearly } else { wrong };
                let started = Instant::now();
                for _ in 0..200 {
                    black_box(compare(black_box(&given), black_box(&right)));
                }
                times[kind].push(started.elapsed());
            }
        }
        let median = |times: &mut Vec<std::time::Duration>| {
            times.sort_unstable();
            times[times.len() / 2].as_secs_f64()
        };
        let [nearly, wrong] = &mut times;
        median(nearly) / median(wrong)
    }

    #[test]
    fn the_time_to_compare_a_key_does_not_reveal_how_much_of_it_is_right() {
        let early_exit = timing_ratio(early_exit_eq);
        assert!(early_exit > 2.0, "the test would not notice a difference: {early_exit}");
        let constant = timing_ratio(KeyDigest::is_same);
        assert!((0.9..1.1).contains(&constant), "{constant}");
    }
}
