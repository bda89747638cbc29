//! Prompt → tokens → blocks → chained hashes.
//!
//! An engine caches the key/value vectors of a prompt in blocks of a fixed number of tokens, and can
//! reuse a block only together with everything before it. So a block is named by a hash of its whole
//! prefix: [`BlockHash`] `h[i] = H(h[i-1], content[i])`, started from a seed that holds whatever else
//! must be equal for a reuse to be right (model, LoRA adapter, tenant).
//!
//! Tokenizers and chat templates are the feature `text`, on by default.
#![forbid(unsafe_code)]

mod chain;
#[cfg(feature = "text")]
pub mod chat;
mod hasher;
mod key;
#[cfg(feature = "text")]
mod tokenizer;
#[cfg(feature = "text")]
mod yield_hook;

pub use chain::{BlockHash, ContentHash};
pub use hasher::{BlockHasher, TextChain, TextHasher};
pub use key::{HashKey, Scope};
#[cfg(feature = "text")]
pub use tokenizer::{
    Framing, TokenCache, TokenCacheStats, Tokenizer, TokenizerError, TokenizerLibrary,
};
#[cfg(feature = "text")]
pub use yield_hook::pause_with;
