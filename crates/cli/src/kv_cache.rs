//! The size of a KV cache, as the metrics of vLLM state it.

/// The KV cache as vLLM's metrics describe it.
pub(crate) struct CacheConfig {
    blocks: usize,
    pub(crate) block_size: usize,
}

impl CacheConfig {
    /// Tokens that the cache can hold.
    pub(crate) const fn tokens(&self) -> usize {
        self.blocks.saturating_mul(self.block_size)
    }

    pub(crate) fn parse(page: &str) -> Option<Self> {
        let line = page.lines().find(|line| line.starts_with("vllm:cache_config_info{"))?;
        let label = |name: &str| {
            let (_, rest) = line.split_once(&format!("{name}=\""))?;
            rest.split('"').next()?.parse().ok()
        };
        Some(Self { blocks: label("num_gpu_blocks")?, block_size: label("block_size")? })
    }
}
