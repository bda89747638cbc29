//! Whether a request's answer follows from its body, so that an equal one need not be computed again.
//!
//! Engines repeat themselves at temperature zero and with a seed, as far as they can (batching changes the last digits of sums),
//! and embeddings are not sampled at all. Whoever says neither gets a new sample each time, and has asked for it. Engines keep
//! answers of the Responses interface under their own names, so each has to be its own.

use crate::line::{BatchLine, Interface};
use wornpath_execution::field;
use wornpath_planner::DedupKey;
use xxhash_rust::xxh3::xxh3_128;

/// What becomes of lines that are equal but for their owner's names.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Identical {
    /// Each is computed.
    #[default]
    Each,
    /// One is computed if its answer is deterministic, and the others get that answer.
    Once,
}

/// What a line is equal by; none if it has to be computed itself. Bodies are equal if their bytes are.
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
    fn only_what_engines_repeat_has_an_identity() {
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
    fn equal_are_those_whose_interface_and_body_are() {
        let body = r#"{"prompt":"x","seed":1}"#;
        let one = of("/v1/completions", "a", body);
        assert_eq!(one, of("/v1/completions", "b", body), "whatever they are called");
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
