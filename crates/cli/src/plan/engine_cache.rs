//! The KV cache sizes that engines report for `plan --pod`.

use crate::http::{Endpoint, HttpClient, TlsArguments};
use crate::kv_cache::CacheConfig;
use anyhow::{Context, ensure};
use std::num::NonZeroUsize;

/// What one engine reports of its cache.
pub(super) struct EngineCache {
    url: String,
    /// Tokens that its cache holds, if it reports them.
    pub(super) kv_tokens: Option<usize>,
}

impl EngineCache {
    /// The report in a sentence.
    pub(super) fn describe(&self, engine: &str) -> String {
        match self.kv_tokens {
            Some(tokens) => format!("{}: KV cache of {tokens} tokens", self.url),
            None => format!("{}: reports no KV cache size; assumed as of {engine}", self.url),
        }
    }
}

/// Reads the metrics of the engines. Their blocks must have the size that prompts are cut into.
pub(super) fn read_caches(
    urls: &[String],
    tls: &TlsArguments,
    block_size: NonZeroUsize,
) -> anyhow::Result<Vec<EngineCache>> {
    if urls.is_empty() {
        return Ok(Vec::new());
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let read = |url: &String| {
        let endpoint = Endpoint::new("the engine", "--pod", url, tls)?;
        let engine = HttpClient::new(endpoint, None)?;
        let page = runtime
            .block_on(engine.get_text("/metrics"))
            .with_context(|| format!("cannot read the metrics of --pod {url}"))?;
        let Some(cache) = CacheConfig::parse(&page) else {
            return Ok(EngineCache { url: url.clone(), kv_tokens: None });
        };
        let size = cache.block_size;
        ensure!(
            size == block_size.get(),
            "--pod {url} has blocks of {size} tokens, and --block-size is {block_size}; give --block-size {size}"
        );
        Ok(EngineCache { url: url.clone(), kv_tokens: Some(cache.tokens()) })
    };
    urls.iter().map(read).collect()
}
