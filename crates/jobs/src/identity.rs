//! Whether a request is deterministic, so that an identical one need not be computed again.
//!
//! Engines repeat themselves at temperature zero and with a seed, as far as they can (batching
//! changes the last digits of sums), and embeddings are not sampled at all. A request with neither
//! wants a new sample each time. Engines store responses of the Responses API under ids of their
//! own, so those are never shared.

use crate::line::{BatchLine, Interface};
use wornpath_execution::field;
use wornpath_planner::DedupKey;
use xxhash_rust::xxh3::xxh3_128;

/// What happens to lines that are identical except for their `custom_id`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Identical {
    /// Each is computed.
    #[default]
    Each,
    /// One is computed if it is deterministic, and the others get its response.
    Once,
}

/// The deduplication key of a line; none if it must be computed itself. Bodies are identical if
/// their bytes are.
pub(crate) fn identity(line: &BatchLine, text: &[u8]) -> Option<DedupKey> {
    let is_deterministic = match line.interface {
        Interface::Embeddings => true,
        Interface::Responses => false,
        Interface::Chat | Interface::Completions => {
            line.body["temperature"].as_f64() == Some(0.0) || line.body["seed"].is_i64()
        }
    };
    let body = match line.custom_id {
        Some(_) => field(text, "body").ok().flatten()?,
        None => text.trim_ascii(),
    };
    let mut all = line.interface.path().as_bytes().to_vec();
    all.push(b' ');
    all.extend_from_slice(body);
    is_deterministic.then(|| DedupKey(xxh3_128(&all)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::line::LineForm;

    fn of(url: &str, id: &str, body: &str) -> Option<DedupKey> {
        let text = format!("{{\"custom_id\":\"{id}\",\"url\":\"{url}\",\"body\":{body}}}");
        let line = BatchLine::parse(text.as_bytes(), LineForm::Free).unwrap();
        identity(&line, text.as_bytes())
    }

    #[test]
    fn only_deterministic_requests_have_a_key() {
        let chat = |body: &str| of("/v1/chat/completions", "a", body);
        assert_eq!(chat(r#"{"messages":[]}"#), None);
        assert_eq!(chat(r#"{"messages":[],"temperature":0.7}"#), None);
        assert_eq!(chat(r#"{"messages":[],"temperature":"0"}"#), None);
        assert_eq!(chat(r#"{"messages":[],"seed":null}"#), None);
        assert!(chat(r#"{"messages":[],"temperature":0}"#).is_some());
        assert!(chat(r#"{"messages":[],"temperature":0.0}"#).is_some());
        assert!(chat(r#"{"messages":[],"seed":7,"temperature":1}"#).is_some());
        assert!(of("/v1/embeddings", "a", r#"{"input":"x"}"#).is_some());
        assert_eq!(of("/v1/responses", "a", r#"{"input":"x","temperature":0}"#), None);
    }

    #[test]
    fn lines_are_identical_if_their_api_and_body_are() {
        let body = r#"{"prompt":"x","seed":1}"#;
        let one = of("/v1/completions", "a", body);
        assert_eq!(one, of("/v1/completions", "b", body), "whatever their ids");
        assert_ne!(one, of("/v1/chat/completions", "a", body));
        for other in [
            r#"{"prompt":"x","seed":2}"#,
            r#"{"prompt":"x","seed":1,"model":"m"}"#,
            r#"{"prompt":"x","seed":1,"cache_salt":"s"}"#,
            r#"{"seed":1,"prompt":"x"}"#,
        ] {
            assert_ne!(one, of("/v1/completions", "a", other), "{other}");
        }
        let alone = BatchLine::parse(body.as_bytes(), LineForm::Free).unwrap();
        assert_eq!(one, identity(&alone, format!("{body} ").as_bytes()));
    }
}
