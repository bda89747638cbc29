//! Header and path rules of the proxy: which headers are forwarded, stripped or added, which paths
//! clients may use.

use hyper::header::{
    ALT_SVC, AUTHORIZATION, CONNECTION, CONTENT_LENGTH, COOKIE, EXPECT, HOST, HeaderMap,
    HeaderName, HeaderValue, PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, SET_COOKIE,
    STRICT_TRANSPORT_SECURITY, TE, TRAILER, TRANSFER_ENCODING, UPGRADE,
};
use hyper::http::request::Parts;
use wornpath_routing::{Name, PlanStep};

pub(crate) const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
pub(crate) const API_KEY: HeaderName = HeaderName::from_static("x-api-key");
const POD: HeaderName = HeaderName::from_static("x-wornpath-pod");
const REASON: HeaderName = HeaderName::from_static("x-wornpath-reason");
const AZURE_KEY: HeaderName = HeaderName::from_static("api-key");
/// Marks a response for which a step of the plan failed or had no pod, and was skipped.
pub(crate) const DEGRADED: HeaderName = HeaderName::from_static("x-wornpath-degraded");
const RANK: HeaderName = HeaderName::from_static("x-data-parallel-rank");
const CLEAR_SITE_DATA: HeaderName = HeaderName::from_static("clear-site-data");
/// vLLM's header for the priority of a request.
const PRIORITY: HeaderName = HeaderName::from_static("x-vllm-priority");
/// SGLang's header for the same.
const OTHER_PRIORITY: HeaderName = HeaderName::from_static("x-override-priority");
/// vLLM's header that names a session.
const SESSION: HeaderName = HeaderName::from_static("x-session-id");
/// Asks vLLM for the load of the whole engine.
const LOAD_REPORT: HeaderName = HeaderName::from_static("endpoint-load-metrics-format");
/// Headers that begin so replace fields of the body in SGLang.
const OVERRIDE_PREFIX: &str = "x-override-";
const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");
const PROXY_CONNECTION: HeaderName = HeaderName::from_static("proxy-connection");

/// Headers that apply to one connection only. hyper sets the framing headers anew.
const HOP_BY_HOP: [HeaderName; 9] = [
    KEEP_ALIVE,
    PROXY_CONNECTION,
    PROXY_AUTHENTICATE,
    PROXY_AUTHORIZATION,
    TE,
    TRAILER,
    TRANSFER_ENCODING,
    UPGRADE,
    EXPECT,
];

/// Removes the hop-by-hop headers, including those that `connection` lists.
pub(crate) fn strip(headers: &mut HeaderMap) {
    if headers.contains_key(CONNECTION) {
        let named: Vec<HeaderName> = headers
            .get_all(CONNECTION)
            .iter()
            .filter_map(|value| value.to_str().ok())
            .flat_map(|value| value.split(','))
            .filter_map(|name| name.trim().parse().ok())
            .collect();
        for name in named {
            headers.remove(name);
        }
        headers.remove(CONNECTION);
    }
    for name in &HOP_BY_HOP {
        headers.remove(name);
    }
}

/// Removes the headers of a request that only the gateway may send to a pod.
pub(crate) fn strip_request(headers: &mut HeaderMap) {
    strip_gateway_headers(headers);
    for name in [RANK, HOST, CONTENT_LENGTH] {
        headers.remove(name);
    }
}

/// Removes the headers that only the gateway may send to a client.
pub(crate) fn strip_gateway_headers(headers: &mut HeaderMap) {
    for name in [POD, REASON, DEGRADED] {
        headers.remove(name);
    }
}

/// Removes the headers of an engine's response that would change what a browser does with the
/// router's own origin: cookies, other addresses to connect to, and which pages may call it.
pub(crate) fn strip_response(headers: &mut HeaderMap) {
    for name in [SET_COOKIE, ALT_SVC, STRICT_TRANSPORT_SECURITY, CLEAR_SITE_DATA] {
        headers.remove(name);
    }
    let is_cors = |name: &&HeaderName| name.as_str().starts_with("access-control-");
    let cors: Vec<HeaderName> = headers.keys().filter(is_cors).cloned().collect();
    for name in cors {
        headers.remove(name);
    }
}

/// Removes the headers that identify the client.
pub(crate) fn strip_credentials(headers: &mut HeaderMap) {
    for name in [AUTHORIZATION, API_KEY, AZURE_KEY, COOKIE] {
        headers.remove(name);
    }
}

/// Removes the headers by which a client steers or observes an engine beyond its own request.
pub(crate) fn strip_engine_controls(headers: &mut HeaderMap) {
    headers.remove(LOAD_REPORT);
    let overrides: Vec<HeaderName> =
        headers.keys().filter(|name| name.as_str().starts_with(OVERRIDE_PREFIX)).cloned().collect();
    for name in overrides {
        headers.remove(name);
    }
}

/// Replaces the session that a client names; one that is no text is removed.
pub(crate) fn replace_session(headers: &mut HeaderMap, replace: impl Fn(&str) -> String) {
    let Some(given) = headers.remove(SESSION) else { return };
    let replaced = given.to_str().ok().map(replace);
    if let Some(Ok(session)) = replaced.map(|session| HeaderValue::from_str(&session)) {
        headers.insert(SESSION, session);
    }
}

/// Removes the engine priority of a client, and returns vLLM's if it is a whole number.
pub(crate) fn take_priority(headers: &mut HeaderMap) -> Option<i64> {
    headers.remove(OTHER_PRIORITY);
    whole_number(&headers.remove(PRIORITY)?)
}

fn whole_number(value: &HeaderValue) -> Option<i64> {
    value.to_str().ok()?.trim().parse().ok()
}

/// Removes an engine priority that is not a whole number, or that is given twice.
pub(crate) fn drop_malformed_priority(headers: &mut HeaderMap) {
    let given: Vec<_> = headers.get_all(PRIORITY).iter().map(whole_number).collect();
    if !matches!(given[..], [] | [Some(_)]) {
        headers.remove(PRIORITY);
    }
}

/// The headers that profiles may read: all but keys. Cookies stay, as they may name a session.
pub(crate) fn for_routing(headers: &HeaderMap) -> Vec<(String, String)> {
    const KEYS: [HeaderName; 3] = [AUTHORIZATION, API_KEY, AZURE_KEY];
    let mut shown = Vec::new();
    for (name, value) in headers {
        if !KEYS.contains(name)
            && let Ok(value) = value.to_str()
        {
            shown.push((name.as_str().to_owned(), value.to_owned()));
        }
    }
    shown
}

/// The request id of the client if it is valid, else a random one.
pub(crate) fn request_id(headers: &HeaderMap, random: impl FnOnce() -> u64) -> HeaderValue {
    let is_valid = |id: &&HeaderValue| {
        (1..=128).contains(&id.len()) && id.as_bytes().iter().all(u8::is_ascii_graphic)
    };
    if let Some(given) = headers.get(REQUEST_ID).filter(is_valid) {
        return given.clone();
    }
    let generated = format!("{:016x}", random());
    HeaderValue::from_maybe_shared(generated.into_bytes())
        .unwrap_or_else(|_| HeaderValue::from_static("unnamed"))
}

/// Adds the debug headers: the pod that answers, and why it was chosen.
pub(crate) fn reveal(headers: &mut HeaderMap, pod: &Name, step: &PlanStep, is_degraded: bool) {
    if let Ok(pod) = HeaderValue::from_str(pod.as_str()) {
        headers.insert(POD, pod);
    }
    let degraded = if is_degraded { "; an earlier step failed and was skipped" } else { "" };
    let reason = format!("{}: {}{degraded}", step.name, step.cache);
    if let Ok(reason) = HeaderValue::from_str(&reason) {
        headers.insert(REASON, reason);
    }
}

/// Refuses a path that is not in its normal form. Engines decode and normalize paths, so another
/// spelling of a path could bypass the path rules.
pub(crate) fn check_spelling(path: &str) -> Result<(), String> {
    let needless_escape = path.match_indices('%').find_map(|(at, _)| {
        let code = path.get(at..at + 3)?;
        let meant = char::from(u8::from_str_radix(&code[1..], 16).ok()?);
        let is_needless = meant.is_ascii_alphanumeric() || "-._~/".contains(meant);
        is_needless.then_some((code, meant))
    });
    if let Some((code, meant)) = needless_escape {
        return Err(format!("the path `{path}` has `{code}`; write it as `{meant}`"));
    }
    if let Some(at) = path.to_ascii_lowercase().find("%5c") {
        let code = &path[at..at + 3];
        return Err(format!("the path `{path}` has `{code}`, which some servers read as a slash"));
    }
    if path.contains("//") {
        return Err(format!("the path `{path}` has `//`; write one slash"));
    }
    // Some servers drop the parameters of a segment, which follow a semicolon.
    let is_dots = |segment: &&str| matches!(segment.split(';').next(), Some("." | ".."));
    match path.split('/').find(is_dots) {
        Some(dots) => {
            Err(format!("the path `{path}` has the segment `{dots}`; write the path that is meant"))
        }
        None => Ok(()),
    }
}

/// The length of the request line and the headers on the wire, without optional whitespace.
pub(crate) fn length(parts: &Parts) -> usize {
    let path = parts.uri.path_and_query().map_or(1, |path| path.as_str().len());
    let line = parts.method.as_str().len() + path + "  HTTP/1.1\r\n".len();
    let lengths = parts.headers.iter().map(|(name, value)| name.as_str().len() + value.len());
    lengths.fold(line + "\r\n".len(), |all, length| all + length + ": \r\n".len())
}

/// Whether clients may use a path of an engine: inference paths, but not those that manage an
/// engine.
pub(crate) fn is_client_path(path: &str) -> bool {
    const MANAGEMENT: [&str; 2] = ["/v1/load_lora_adapter", "/v1/unload_lora_adapter"];
    const INFERENCE: [&str; 11] = [
        "/tokenize",
        "/detokenize",
        "/rerank",
        "/score",
        "/pooling",
        "/classify",
        "/generate",
        "/encode",
        "/invocations",
        "/version",
        "/get_model_info",
    ];
    let is_versioned = path.starts_with("/v1/") || path.starts_with("/v2/");
    (is_versioned && !MANAGEMENT.contains(&path)) || INFERENCE.contains(&path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hop_by_hop_headers_and_forged_gateway_headers_are_not_forwarded() {
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("connection", "close, x-mine"),
            ("x-mine", "1"),
            ("te", "trailers"),
            ("upgrade", "h2c"),
            ("keep-alive", "5"),
            ("x-other", "2"),
            ("x-wornpath-pod", "forged"),
        ] {
            headers.insert(name, HeaderValue::from_static(value));
        }
        strip(&mut headers);
        strip_request(&mut headers);
        assert_eq!(headers.keys().map(HeaderName::as_str).collect::<Vec<_>>(), ["x-other"]);
    }

    #[test]
    fn the_length_of_a_head_is_its_length_on_the_wire() {
        let wire = "POST /v1/completions?a=1 HTTP/1.1\r\nhost: h\r\nx-a: 1\r\nx-a: 22\r\n\r\n";
        let request = hyper::Request::post("/v1/completions?a=1");
        let request = request.header("host", "h").header("x-a", "1").header("x-a", "22");
        assert_eq!(length(&request.body(()).unwrap().into_parts().0), wire.len());
    }

    #[test]
    fn a_path_that_is_not_in_normal_form_is_refused() {
        for path in
            ["/v1/models/a%20b", "/v1/files/", "/v1/a%25", "/v1/%", "/v1/%z", "/v1/...", "/"]
        {
            assert_eq!(check_spelling(path), Ok(()), "{path}");
        }
        for (path, quoted) in [
            ("/v1/%6coad_lora_adapter", "`%6c`; write it as `l`"),
            ("/v1/chat/%63ompletions", "`%63`"),
            ("/v1/x/%2E%2e/load_lora_adapter", "`%2E`; write it as `.`"),
            ("/v1%2Fcompletions", "`%2F`; write it as `/`"),
            ("/v1/..%5Csleep", "`%5C`, which some servers read as a slash"),
            ("/v1/..;a=b/sleep", "the segment `..;a=b`"),
            ("/v1//completions", "`//`"),
            ("//v1/completions", "`//`"),
            ("/v1/./completions", "segment `.`"),
            ("/v1/x/..", "segment `..`"),
        ] {
            let refused = check_spelling(path).unwrap_err();
            assert!(refused.contains(quoted), "{refused}");
        }
    }

    #[test]
    fn profiles_get_all_headers_but_keys() {
        let mut headers = HeaderMap::new();
        for name in ["authorization", "x-api-key", "api-key", "cookie", "user-agent", "x-mine"] {
            headers.insert(name, HeaderValue::from_static("1"));
        }
        let shown = for_routing(&headers);
        let names: Vec<_> = shown.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["cookie", "user-agent", "x-mine"]);
    }

    #[test]
    fn a_valid_request_id_is_kept_and_an_invalid_one_is_replaced() {
        let mut headers = HeaderMap::new();
        assert_eq!(request_id(&headers, || 7), "0000000000000007");
        headers.insert(REQUEST_ID, HeaderValue::from_static("mine-1"));
        assert_eq!(request_id(&headers, || 7), "mine-1");
        headers.insert(REQUEST_ID, HeaderValue::from_str(&"x".repeat(129)).unwrap());
        assert_eq!(request_id(&headers, || 7), "0000000000000007");
        headers.insert(REQUEST_ID, HeaderValue::from_static("two words"));
        assert_eq!(request_id(&headers, || 7), "0000000000000007");
    }
}
