//! The paths that isolated tenants may use, as a table: what is not in it is refused.

use super::fields::{
    ANY, CHAT, CHAT_OPTIONS, COMPLETIONS, COUNT_TOKENS, FieldTable, GENERATION, POOLING, RESPONSES,
    SCORING, TOKENIZE,
};

/// What isolation does with requests to a path.
#[derive(Clone, Copy, Debug)]
pub(super) enum PathRule {
    /// Engines apply the `cache_salt` of the body, or keep nothing of it in a cache. The body is a
    /// JSON object with fields of these tables.
    Json(&'static [&'static FieldTable]),
    /// Engines do not keep tenants apart there. A sentence says why, another what to do.
    Refused { why: &'static str, cure: &'static str },
}

/// The rule of a path; none if the path is unknown.
pub(super) fn rule(path: &str) -> Option<PathRule> {
    let is_match = |pattern: &str| match pattern.strip_suffix('*') {
        Some(folder) => path.starts_with(folder),
        None => path == pattern,
    };
    PATHS.iter().find(|(pattern, _)| is_match(pattern)).map(|(_, rule)| *rule)
}

const NO_SALT: &str = "engines ignore `cache_salt` there";

const EMBEDDING: PathRule = PathRule::Json(&[&ANY, &POOLING, &CHAT_OPTIONS]);
const SCORE: PathRule = PathRule::Json(&[&ANY, &SCORING]);
const CHATS: PathRule = PathRule::Json(&[&ANY, &GENERATION, &CHAT_OPTIONS, &CHAT]);
const AUDIO: PathRule =
    PathRule::Refused { why: NO_SALT, cure: "send the audio to `/v1/chat/completions`" };

/// A path that ends in `*` stands for all paths that begin so. The first match applies.
static PATHS: &[(&str, PathRule)] = &[
    ("/v1/chat/completions", CHATS),
    ("/v1/chat/completions/batch", CHATS),
    ("/v1/completions", PathRule::Json(&[&ANY, &GENERATION, &COMPLETIONS])),
    ("/v1/responses", PathRule::Json(&[&ANY, &GENERATION, &RESPONSES])),
    (
        "/v1/responses/*",
        PathRule::Refused {
            why: "engines keep responses for all tenants alike",
            cure: "send the whole conversation to `/v1/responses`",
        },
    ),
    ("/v1/embeddings", EMBEDDING),
    ("/v1/classify", EMBEDDING),
    ("/classify", EMBEDDING),
    ("/pooling", EMBEDDING),
    ("/v1/rerank", SCORE),
    ("/v2/rerank", SCORE),
    ("/rerank", SCORE),
    ("/v1/score", SCORE),
    ("/score", SCORE),
    (
        "/invocations",
        PathRule::Json(&[
            &ANY,
            &GENERATION,
            &COMPLETIONS,
            &CHAT_OPTIONS,
            &CHAT,
            &POOLING,
            &SCORING,
        ]),
    ),
    // No prompt stays in a cache.
    ("/tokenize", PathRule::Json(&[&ANY, &TOKENIZE, &CHAT_OPTIONS])),
    ("/v1/tokenize", PathRule::Json(&[&ANY, &TOKENIZE, &CHAT_OPTIONS])),
    ("/detokenize", PathRule::Json(&[&ANY, &TOKENIZE])),
    ("/v1/detokenize", PathRule::Json(&[&ANY, &TOKENIZE])),
    ("/v1/messages/count_tokens", PathRule::Json(&[&ANY, &CHAT_OPTIONS, &COUNT_TOKENS])),
    // No body.
    ("/version", PathRule::Json(&[])),
    ("/get_model_info", PathRule::Json(&[])),
    ("/v1/messages", PathRule::Refused { why: NO_SALT, cure: "use `/v1/chat/completions`" }),
    ("/v2/embed", PathRule::Refused { why: NO_SALT, cure: "use `/v1/embeddings`" }),
    ("/encode", PathRule::Refused { why: NO_SALT, cure: "use `/v1/embeddings`" }),
    (
        "/generate",
        PathRule::Refused {
            why: "not every engine applies `cache_salt` there",
            cure: "use `/v1/completions`",
        },
    ),
    ("/v1/audio/*", AUDIO),
    ("/v1/realtime", AUDIO),
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dialect::Api;

    #[test]
    fn every_path_of_a_dialect_has_a_rule() {
        for api in Api::all() {
            for path in api.dialect().paths() {
                assert!(rule(path).is_some(), "{path}");
            }
        }
    }

    #[test]
    fn a_path_below_a_known_one_is_another_path() {
        assert!(matches!(rule("/v1/responses"), Some(PathRule::Json(_))));
        assert!(matches!(rule("/v1/responses/1/cancel"), Some(PathRule::Refused { .. })));
        assert!(rule("/v1/chat/completions/").is_none() && rule("/v1/new").is_none());
    }
}
