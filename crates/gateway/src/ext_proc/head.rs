//! Heads of requests and responses, between the protocol's form and ours, and the headers that data
//! planes, pickers and engines agree on.

use super::header_changes::HeaderChanges;
use super::{bare, proto};
use hyper::header::{
    CONNECTION, CONTENT_LENGTH, HOST, HeaderMap, HeaderName, HeaderValue, TRANSFER_ENCODING,
};
use hyper::http::request::Parts;
use hyper::{Request, StatusCode};

/// Where a request goes: an address, or a list of them in the order of retries.
pub(super) const DESTINATION: &str = "x-gateway-destination-endpoint";
/// The score of every candidate, in metadata.
pub(super) const SCORES: &str = "x-gateway-destination-endpoint-scores";
/// The pod that computes the prompt, for the sidecar of the pod that answers.
pub(super) const PREFILLER: &str = "x-prefiller-host-port";
/// Why a request was dropped.
pub(super) const DROPPED_REASON: &str = "x-llm-d-request-dropped-reason";
/// The pods that may serve a request of a conformance test, as a subset is written.
pub(super) const TEST_SELECTION: &str = "test-epp-endpoint-selection";
/// The pod that the picker chose, for a conformance test.
pub(super) const TEST_SELECTED: &str = "x-conformance-test-selected-endpoint";
/// The pod that the data plane says has served, for a conformance test.
pub(super) const TEST_SERVED: &str = "x-conformance-test-served-endpoint";
/// The data-parallel rank that is to answer.
pub(super) const RANK: &str = "x-data-parallel-rank";

pub(super) const OBJECTIVE: &str = "x-llm-d-inference-objective";
pub(super) const FAIRNESS: &str = "x-llm-d-inference-fairness-id";
pub(super) const MODEL_REWRITE: &str = "x-llm-d-model-name-rewrite";

/// Headers of requests by their present name, and by the former names that clients may still send.
const ALIASES: [(&str, &[&str]); 5] = [
    (OBJECTIVE, &["x-gateway-inference-objective"]),
    (FAIRNESS, &["x-gateway-inference-fairness-id"]),
    (MODEL_REWRITE, &["x-gateway-model-name-rewrite"]),
    ("x-llm-d-slo-ttft-ms", &["x-gateway-slo-ttft-ms", "x-slo-ttft-ms"]),
    ("x-llm-d-slo-tpot-ms", &["x-gateway-slo-tpot-ms", "x-slo-tpot-ms"]),
];

/// Headers of one connection, which the data plane sets for its own.
const OF_DATA_PLANE: [HeaderName; 9] = [
    CONNECTION,
    CONTENT_LENGTH,
    HOST,
    TRANSFER_ENCODING,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    HeaderName::from_static("te"),
    HeaderName::from_static("upgrade"),
    HeaderName::from_static("expect"),
];

/// Why a head cannot be read.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the head is no HTTP head: {0}")]
pub(super) struct HeadError(String);

fn bytes_of(header: &proto::HeaderValue) -> &[u8] {
    // Data planes write raw values; only tests of others write text.
    if header.raw_value.is_empty() { header.value.as_bytes() } else { &header.raw_value }
}

fn headers_of(map: Option<&proto::HeaderMap>) -> &[proto::HeaderValue] {
    map.map_or(&[], |map| &map.headers)
}

fn text_of<'a>(map: Option<&'a proto::HeaderMap>, name: &str) -> Option<&'a str> {
    let header = headers_of(map).iter().find(|header| header.key == name)?;
    std::str::from_utf8(bytes_of(header)).ok()
}

/// The headers of a map, without pseudo headers. One that HTTP does not allow is left out.
fn header_map(map: Option<&proto::HeaderMap>) -> HeaderMap {
    let all = headers_of(map);
    let mut headers = HeaderMap::with_capacity(all.len() + ALIASES.len());
    for header in all.iter().filter(|header| !header.key.starts_with(':')) {
        let name = HeaderName::from_bytes(header.key.as_bytes());
        let value = HeaderValue::from_bytes(bytes_of(header));
        if let (Ok(name), Ok(value)) = (name, value) {
            headers.append(name, value);
        }
    }
    headers
}

/// The head of a request.
pub(super) fn request(head: &proto::HttpHeaders) -> Result<Parts, HeadError> {
    let map = head.headers.as_ref();
    let [usual_method, usual_path] =
        if bare::is_pathless(head) { ["POST", bare::CHAT] } else { ["GET", "/"] };
    let method = text_of(map, ":method").unwrap_or(usual_method);
    let path = text_of(map, ":path").unwrap_or(usual_path);
    let request = Request::builder().method(method).uri(path).body(());
    let (mut parts, ()) =
        request.map_err(|error| HeadError(format!("`{method} {path}`: {error}")))?.into_parts();
    parts.headers = header_map(map);
    Ok(parts)
}

/// The status and the headers of a response.
pub(super) fn response(head: &proto::HttpHeaders) -> (StatusCode, HeaderMap) {
    let map = head.headers.as_ref();
    let status = text_of(map, ":status").and_then(|status| status.parse().ok());
    (status.unwrap_or(StatusCode::BAD_GATEWAY), header_map(map))
}

/// Adds headers under their present names where a request has only a former one. Profiles read
/// headers by name, and need to know one name only.
pub(super) fn add_present_names(headers: &mut HeaderMap) {
    for (present, former) in ALIASES {
        if headers.contains_key(present) {
            continue;
        }
        if let Some(value) = former.iter().find_map(|former| headers.get(*former)).cloned() {
            headers.insert(HeaderName::from_static(present), value);
        }
    }
}

/// The declared length of a body.
pub(super) fn length(headers: &HeaderMap) -> Option<u64> {
    headers.get(CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

/// What must change so that headers `before` become `after`, apart from those of the connection.
pub(super) fn changes(before: &HeaderMap, after: &HeaderMap) -> HeaderChanges {
    let mut changes = HeaderChanges::default();
    let is_ours = |name: &&HeaderName| !OF_DATA_PLANE.contains(name);
    for name in before.keys().filter(is_ours).filter(|name| !after.contains_key(*name)) {
        changes.remove(name.as_str());
    }
    let is_changed = |name: &&HeaderName| !after.get_all(*name).iter().eq(before.get_all(*name));
    for name in after.keys().filter(is_ours).filter(is_changed) {
        if let Some(value) = after.get(name) {
            changes.set(name.as_str(), value.as_bytes().to_vec());
        }
    }
    changes
}
