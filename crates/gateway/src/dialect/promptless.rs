//! APIs whose prompts do not stay in a prefix cache, and the paths that no dialect names.
//!
//! Such requests are routed without a cache lookup.

use super::Dialect;

/// OpenAI's embeddings API.
pub(super) struct Embeddings;

/// The rerank API of Jina and Cohere.
pub(super) struct Rerank;

/// The tokenizer API of vLLM.
pub(super) struct Tokenize;

/// Any other path of an engine.
pub(super) struct Other;

impl Dialect for Embeddings {
    fn name(&self) -> &'static str {
        "embeddings"
    }

    fn paths(&self) -> &'static [&'static str] {
        &["/v1/embeddings"]
    }
}

impl Dialect for Rerank {
    fn name(&self) -> &'static str {
        "rerank"
    }

    fn paths(&self) -> &'static [&'static str] {
        &["/v1/rerank", "/rerank"]
    }
}

impl Dialect for Tokenize {
    fn name(&self) -> &'static str {
        "tokenize"
    }

    fn paths(&self) -> &'static [&'static str] {
        &["/tokenize"]
    }
}

impl Dialect for Other {
    fn name(&self) -> &'static str {
        "other"
    }

    fn paths(&self) -> &'static [&'static str] {
        &[]
    }

    fn is_known(&self) -> bool {
        false
    }
}
