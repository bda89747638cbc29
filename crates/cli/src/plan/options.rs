//! What engines say of their caches when they are asked.

use crate::batch::Service;
use crate::server::{CertificateArguments, Server};
use anyhow::{Context, ensure};
use std::num::NonZeroUsize;

/// An engine that was asked.
pub(super) struct PlanOptions {
    url: String,
    /// Tokens that its cache holds, if it says so.
    pub(super) kv_tokens: Option<usize>,
}

impl PlanOptions {
    /// What it said, in a sentence.
    pub(super) fn told(&self, engine: &str) -> String {
        match self.kv_tokens {
            Some(tokens) => format!("{}: its cache holds {tokens} tokens", self.url),
            None => format!("{}: says nothing of its cache; taken to be as {engine}", self.url),
        }
    }
}

/// Asks engines at these addresses. Blocks must have the size that prompts are cut into.
pub(super) fn ask(
    urls: &[String],
    certificates: &CertificateArguments,
    block_size: NonZeroUsize,
) -> anyhow::Result<Vec<PlanOptions>> {
    if urls.is_empty() {
        return Ok(Vec::new());
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let one = |url: &String| {
        let mut page = Vec::new();
        runtime
            .block_on(async {
                let server = Server::at("the engine", ("--pod", url), certificates)?;
                Service::of(server, None).copy("/metrics", &mut page).await
            })
            .with_context(|| format!("--pod {url} cannot be asked"))?;
        let Some((blocks, size)) = cache(&String::from_utf8_lossy(&page)) else {
            return Ok(PlanOptions { url: url.clone(), kv_tokens: None });
        };
        ensure!(
            size == block_size.get(),
            "--pod {url} has blocks of {size} tokens, and --block-size is {block_size}; give --block-size {size}"
        );
        Ok(PlanOptions { url: url.clone(), kv_tokens: Some(blocks * size) })
    };
    urls.iter().map(one).collect()
}

/// Blocks of a cache and tokens of a block, as vLLM's metrics have them.
fn cache(page: &str) -> Option<(usize, usize)> {
    let line = page.lines().find(|line| line.starts_with("vllm:cache_config_info{"))?;
    let label = |name: &str| {
        let (_, rest) = line.split_once(&format!("{name}=\""))?;
        rest.split('"').next()?.parse().ok()
    };
    Some((label("num_gpu_blocks")?, label("block_size")?))
}
