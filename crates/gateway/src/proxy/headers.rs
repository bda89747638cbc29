//! Headers: what goes on, what stays, what is added.

use hyper::header::{
    AUTHORIZATION, CONNECTION, CONTENT_LENGTH, COOKIE, EXPECT, HOST, HeaderMap, HeaderName,
    HeaderValue, PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, TE, TRAILER, TRANSFER_ENCODING, UPGRADE,
};
use hyper::http::request::Parts;
use wornpath_routing::{Name, PlanStep};

pub(crate) const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
pub(crate) const API_KEY: HeaderName = HeaderName::from_static("x-api-key");
const POD: HeaderName = HeaderName::from_static("x-wornpath-pod");
const REASON: HeaderName = HeaderName::from_static("x-wornpath-reason");
const AZURE_KEY: HeaderName = HeaderName::from_static("api-key");
/// Which answers came without a step that failed or that nobody could take.
pub(crate) const DEGRADED: HeaderName = HeaderName::from_static("x-wornpath-degraded");
const RANK: HeaderName = HeaderName::from_static("x-data-parallel-rank");
const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");
const PROXY_CONNECTION: HeaderName = HeaderName::from_static("proxy-connection");

/// Headers that concern one connection only. The length is hyper's to say.
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

/// Takes out what concerns one connection only, and what that connection names besides.
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

/// Takes out of a request what only this gateway says to a pod.
pub(crate) fn strip_request(headers: &mut HeaderMap) {
    strip_ours(headers);
    for name in [RANK, HOST, CONTENT_LENGTH] {
        headers.remove(name);
    }
}

/// Takes out what only this gateway says to a client.
pub(crate) fn strip_ours(headers: &mut HeaderMap) {
    for name in [POD, REASON, DEGRADED] {
        headers.remove(name);
    }
}

/// Takes out what tells who the client is.
pub(crate) fn strip_credentials(headers: &mut HeaderMap) {
    for name in [AUTHORIZATION, API_KEY, AZURE_KEY, COOKIE] {
        headers.remove(name);
    }
}

/// What profiles may look at: everything but keys. A session may be named by a cookie.
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

/// The client's name for the request if it can be used, else one of ours.
pub(crate) fn request_id(headers: &HeaderMap, random: impl FnOnce() -> u64) -> HeaderValue {
    let is_usable = |id: &&HeaderValue| {
        (1..=128).contains(&id.len()) && id.as_bytes().iter().all(u8::is_ascii_graphic)
    };
    if let Some(given) = headers.get(REQUEST_ID).filter(is_usable) {
        return given.clone();
    }
    let ours = format!("{:016x}", random());
    HeaderValue::from_maybe_shared(ours.into_bytes())
        .unwrap_or_else(|_| HeaderValue::from_static("unnamed"))
}

/// Who answers, and why.
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

/// Refuses a path that is not written in the one way in which rules for paths are. Engines decode and tidy paths, so
/// that another spelling would be served by what the rules were never asked about.
pub(crate) fn plain(path: &str) -> Result<(), String> {
    let disguise = path.match_indices('%').find_map(|(at, _)| {
        let code = path.get(at..at + 3)?;
        let meant = char::from(u8::from_str_radix(&code[1..], 16).ok()?);
        let is_needless = meant.is_ascii_alphanumeric() || "-._~/".contains(meant);
        is_needless.then_some((code, meant))
    });
    if let Some((code, meant)) = disguise {
        return Err(format!("the path `{path}` has `{code}`; write it as `{meant}`"));
    }
    if path.contains("//") {
        return Err(format!("the path `{path}` has `//`; write one slash"));
    }
    match path.split('/').find(|segment| matches!(*segment, "." | "..")) {
        Some(dots) => {
            Err(format!("the path `{path}` has the segment `{dots}`; write the path that is meant"))
        }
        None => Ok(()),
    }
}

/// How long a request's line and headers were, but for spaces that mean nothing.
pub(crate) fn length(parts: &Parts) -> usize {
    let path = parts.uri.path_and_query().map_or(1, |path| path.as_str().len());
    let line = parts.method.as_str().len() + path + "  HTTP/1.1\r\n".len();
    let lengths = parts.headers.iter().map(|(name, value)| name.as_str().len() + value.len());
    lengths.fold(line + "\r\n".len(), |all, length| all + length + ": \r\n".len())
}

/// Whether clients may ask engines for a path: for answers to prompts, not for what operates an engine.
pub(crate) fn is_for_clients(path: &str) -> bool {
    const OPERATING: [&str; 2] = ["/v1/load_lora_adapter", "/v1/unload_lora_adapter"];
    const ANSWERING: [&str; 11] = [
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
    (is_versioned && !OPERATING.contains(&path)) || ANSWERING.contains(&path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_concerns_one_connection_does_not_go_on() {
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
    fn a_head_is_as_long_as_it_was_on_the_wire() {
        let wire = "POST /v1/completions?a=1 HTTP/1.1\r\nhost: h\r\nx-a: 1\r\nx-a: 22\r\n\r\n";
        let request = hyper::Request::post("/v1/completions?a=1");
        let request = request.header("host", "h").header("x-a", "1").header("x-a", "22");
        assert_eq!(length(&request.body(()).unwrap().into_parts().0), wire.len());
    }

    #[test]
    fn a_path_has_one_spelling() {
        for path in
            ["/v1/models/a%20b", "/v1/files/", "/v1/a%25", "/v1/%", "/v1/%z", "/v1/...", "/"]
        {
            assert_eq!(plain(path), Ok(()), "{path}");
        }
        for (path, named) in [
            ("/v1/%6coad_lora_adapter", "`%6c`; write it as `l`"),
            ("/v1/chat/%63ompletions", "`%63`"),
            ("/v1/x/%2E%2e/load_lora_adapter", "`%2E`; write it as `.`"),
            ("/v1%2Fcompletions", "`%2F`; write it as `/`"),
            ("/v1//completions", "`//`"),
            ("//v1/completions", "`//`"),
            ("/v1/./completions", "segment `.`"),
            ("/v1/x/..", "segment `..`"),
        ] {
            let refused = plain(path).unwrap_err();
            assert!(refused.contains(named), "{refused}");
        }
    }

    #[test]
    fn profiles_see_everything_but_keys() {
        let mut headers = HeaderMap::new();
        for name in ["authorization", "x-api-key", "api-key", "cookie", "user-agent", "x-mine"] {
            headers.insert(name, HeaderValue::from_static("1"));
        }
        let shown = for_routing(&headers);
        let names: Vec<_> = shown.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["cookie", "user-agent", "x-mine"]);
    }

    #[test]
    fn a_request_keeps_its_name_unless_it_cannot_be_one() {
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
