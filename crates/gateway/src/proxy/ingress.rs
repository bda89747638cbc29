//! Takes a request in: who it is from, what it may bring, its body within the limit.

use crate::observe::request_trace::TraceContext;
use crate::proxy::error_response::ErrorResponse;
use crate::proxy::headers;
use crate::routes::is_path;
use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use hyper::body::{Body, Incoming};
use hyper::header::{AUTHORIZATION, CONTENT_ENCODING, HeaderMap, HeaderValue};
use hyper::http::uri::PathAndQuery;
use hyper::{Method, Request, StatusCode};
use sha2::{Digest, Sha256};
use wornpath_config::{Credentials, KeyDigest, Settings, TenantSettings};
use wornpath_execution::{StepCall, spend_coop_budget};

/// A request that may be answered.
pub(crate) struct Ingress<'a> {
    pub(crate) tenant: Option<&'a TenantSettings>,
    pub(crate) call: StepCall,
    /// The headers that profiles may look at, also those that pods do not get.
    pub(crate) shown: Vec<(String, String)>,
}

/// Checks the head, and only then reads the body.
pub(crate) async fn take_in(
    request: Request<Incoming>,
    id: HeaderValue,
    settings: &Settings,
) -> Result<Ingress<'_>, ErrorResponse> {
    let (mut parts, body) = request.into_parts();
    let (most, found) = (settings.limits.head_bytes, headers::length(&parts));
    if found > most {
        // What is read at once may be more than the limit, and whole.
        let message = format!(
            "request line and headers too large: {found} bytes (limit {most}, `limits.head`)"
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
    headers::plain(path.path()).map_err(ErrorResponse::bad)?;
    if !headers::is_for_clients(path.path()) && !is_named(path.path(), settings) {
        let path = path.path();
        let message =
            format!("`{path}` is not forwarded to engines; add a route with this path to allow it");
        return Err(ErrorResponse::new(StatusCode::NOT_FOUND, message));
    }
    let body = match tokio::time::timeout(settings.limits.body_time, whole(body, settings)).await {
        Ok(body) => body?,
        Err(_) => {
            let message = format!(
                "timeout reading the body: not complete after {:?}",
                settings.limits.body_time
            );
            return Err(ErrorResponse::new(StatusCode::REQUEST_TIMEOUT, message));
        }
    };
    headers::strip(&mut parts.headers);
    headers::strip_request(&mut parts.headers);
    parts.headers.insert(headers::REQUEST_ID, id);
    TraceContext::drop_malformed(&mut parts.headers);
    let shown = headers::for_routing(&parts.headers);
    if settings.upstream_credentials == Credentials::None {
        headers::strip_credentials(&mut parts.headers);
    }
    let call = StepCall { method: parts.method, path, headers: parts.headers, body };
    Ok(Ingress { tenant, call, shown })
}

/// Whether the configuration names the path.
fn is_named(path: &str, settings: &Settings) -> bool {
    let patterns = settings.routes.iter().filter_map(|route| route.path.as_deref());
    patterns.into_iter().any(|pattern| is_path(pattern, path))
}

/// Whose request it is. All keys are compared, each in constant time, so that the time tells nothing.
pub fn tenant<'a>(
    headers: &HeaderMap,
    settings: &'a Settings,
) -> Result<Option<&'a TenantSettings>, ErrorResponse> {
    if settings.tenants.is_empty() {
        return Ok(None);
    }
    let given = headers
        .get(AUTHORIZATION)
        .and_then(|value| value.to_str().ok())
        .and_then(|value| value.split_once(' '))
        .and_then(|(scheme, key)| scheme.eq_ignore_ascii_case("bearer").then_some(key))
        .or_else(|| headers.get(headers::API_KEY).and_then(|value| value.to_str().ok()));
    let Some(given) = given else {
        let message = "missing API key; send it as `authorization: Bearer …`".to_owned();
        return Err(ErrorResponse::new(StatusCode::UNAUTHORIZED, message));
    };
    let digest = KeyDigest(Sha256::digest(given.trim().as_bytes()).into());
    let mut found = None;
    for tenant in &settings.tenants {
        if is_equal(&digest, &tenant.key) {
            found = Some(tenant);
        }
    }
    let unknown = || ErrorResponse::new(StatusCode::UNAUTHORIZED, "invalid API key".to_owned());
    found.map_or_else(|| Err(unknown()), |tenant| Ok(Some(tenant)))
}

fn is_equal(one: &KeyDigest, other: &KeyDigest) -> bool {
    one.0.iter().zip(&other.0).fold(0, |differs, (one, other)| differs | (one ^ other)) == 0
}

/// The body, never more than the limit in memory. One that came in one piece is not copied.
async fn whole(mut body: Incoming, settings: &Settings) -> Result<Bytes, ErrorResponse> {
    let most = settings.limits.body_bytes;
    let too_large = || {
        let message = format!("body too large: more than {most} bytes (`limits.body`)");
        ErrorResponse::new(StatusCode::PAYLOAD_TOO_LARGE, message)
    };
    let expected = body.size_hint().lower();
    if expected > most as u64 {
        return Err(too_large());
    }
    let (mut first, mut all) = (Bytes::new(), BytesMut::new());
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| {
            ErrorResponse::bad(format!("connection closed before the end of the body: {error}"))
        })?;
        let Ok(data) = frame.into_data() else { continue };
        spend_coop_budget(data.len()).await;
        if first.len() + all.len() + data.len() > most {
            return Err(too_large());
        }
        if first.is_empty() && all.is_empty() {
            first = data;
            continue;
        }
        if all.is_empty() {
            all.reserve((expected as usize).max(first.len() + data.len()));
            all.extend_from_slice(&std::mem::take(&mut first));
        }
        all.extend_from_slice(&data);
    }
    Ok(if all.is_empty() { first } else { all.freeze() })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::disallowed_methods, reason = "time is what is tested")]
    use super::*;
    use std::hint::black_box;
    use std::time::Instant;

    type Compare = fn(&KeyDigest, &KeyDigest) -> bool;

    fn until_they_differ(one: &KeyDigest, other: &KeyDigest) -> bool {
        one.0.iter().zip(&other.0).all(|(one, other)| black_box(one) == black_box(other))
    }

    /// How many times longer a key that is nearly right takes than one that is all wrong, in the median.
    fn told_apart(compare: Compare) -> f64 {
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
    fn how_long_a_key_is_compared_does_not_tell_how_much_of_it_is_right() {
        let careless = told_apart(until_they_differ);
        assert!(careless > 2.0, "the test would not notice a difference: {careless}");
        let ours = told_apart(is_equal);
        assert!((0.9..1.1).contains(&ours), "{ours}");
    }
}
