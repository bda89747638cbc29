//! Prompt → tokens → blocks → chained hashes.
//!
//! An engine caches the key/value vectors of a prompt in blocks of a fixed number of tokens, and can
//! reuse a block only together with everything before it. So a block is named by a hash of its whole
//! prefix: [`BlockHash`] `h[i] = H(h[i-1], content[i])`, started from a seed that holds whatever else
//! must be equal for a reuse to be right (model, LoRA adapter, tenant).
#![forbid(unsafe_code)]

mod chain;
pub mod chat;
mod hasher;
mod key;
mod tokenizer;
pub mod vllm;

pub use chain::{BlockHash, ContentHash};
pub use hasher::{BlockHasher, TextHasher};
pub use key::{HashKey, Scope};
pub use tokenizer::{Engine, Framing, MemoryStats, TokenMemory, Tokenizer, TokenizerError};
