//! Prompt → tokens → blocks → chained hashes.
//!
//! An engine caches the key/value vectors of a prompt in blocks of a fixed number of tokens, and
//! can reuse a block only together with its whole prefix. So a block is named by a hash of that
//! prefix: [`BlockHash`] `h[i] = H(h[i-1], content[i])`, starting from a seed that contains
//! whatever else must be equal for a reuse to be correct (model, LoRA adapter, tenant).
//!
//! Tokenizers and chat templates are behind the feature `text`, on by default.
#![forbid(unsafe_code)]

#[cfg(feature = "text")]
pub mod chat;
mod encode_limits;
mod engine_rules;
mod hasher;
mod key;
#[cfg(feature = "text")]
mod tokenizer;

pub use encode_limits::EncodeLimits;
pub use engine_rules::EngineRules;
pub use hasher::{BlockHash, BlockHasher, ContentHash, Scope, TextChain, TextHasher};
pub use key::HashKey;
#[cfg(feature = "text")]
pub use tokenizer::{
    EncodeStop, SpecialTokens, TokenCache, TokenCacheStats, Tokenizer, TokenizerError,
    TokenizerLibrary, set_yield_hook,
};
