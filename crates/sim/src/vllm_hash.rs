//! vLLM's own block hashes, so that a simulated engine publishes the hashes that vLLM would.
//!
//! `h[i] = F((h[i-1], tokens, extra keys))` and `h[-1] = F(seed)`, where F serializes a Python
//! value (pickle protocol 5 or canonical CBOR) and hashes the bytes (SHA-256 or XXH3-128). The seed
//! is `PYTHONHASHSEED`; without one it is a constant for SHA-256 and random, thus unknowable, for
//! XXH3.
//!
//! The limit: pickle writes an object it has met before as a reference, and whether two equal
//! strings are one object is invisible from outside. Distinct objects are assumed, which is what an
//! engine gets from decoding a request.
mod cbor;
mod pickle;

use std::{fmt, num::NonZeroUsize, str::FromStr};

use sha2::{Digest, Sha256};
use xxhash_rust::xxh3::xxh3_128;

/// The seed of the SHA-256 algorithms where `PYTHONHASHSEED` is unset (vLLM since August 2026).
pub const DEFAULT_SEED: &str = "vllm-none-hash";

/// One of vLLM's `--prefix-caching-hash-algo`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum VllmAlgorithm {
    /// `sha256`: SHA-256 over pickle, vLLM's default.
    Sha256,
    /// `sha256_cbor`: SHA-256 over canonical CBOR.
    Sha256Cbor,
    /// `xxhash`: XXH3-128 over pickle.
    Xxhash,
    /// `xxhash_cbor`: XXH3-128 over canonical CBOR.
    XxhashCbor,
}

/// The name is none of vLLM's algorithms.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "unknown hash algorithm `{0}`; vLLM knows `sha256`, `sha256_cbor`, `xxhash` and `xxhash_cbor`"
)]
pub struct UnknownAlgorithm(String);

impl FromStr for VllmAlgorithm {
    type Err = UnknownAlgorithm;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        Ok(match name {
            "sha256" => Self::Sha256,
            "sha256_cbor" => Self::Sha256Cbor,
            "xxhash" => Self::Xxhash,
            "xxhash_cbor" => Self::XxhashCbor,
            other => return Err(UnknownAlgorithm(other.to_owned())),
        })
    }
}

impl VllmAlgorithm {
    fn is_cbor(self) -> bool {
        matches!(self, Self::Sha256Cbor | Self::XxhashCbor)
    }

    fn digest(self, bytes: &[u8]) -> VllmHash {
        match self {
            Self::Sha256 | Self::Sha256Cbor => VllmHash::Sha256(Sha256::digest(bytes).into()),
            Self::Xxhash | Self::XxhashCbor => VllmHash::Xxh3(xxh3_128(bytes).to_be_bytes()),
        }
    }
}

/// A block hash as vLLM computes it, in full width.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub enum VllmHash {
    /// 32 bytes.
    Sha256([u8; 32]),
    /// 16 bytes.
    Xxh3([u8; 16]),
}

impl VllmHash {
    /// The digest, as events with binary hashes carry it.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        match self {
            Self::Sha256(bytes) => bytes,
            Self::Xxh3(bytes) => bytes,
        }
    }

    /// The last 8 bytes as a number, as events with integer hashes carry it.
    #[must_use]
    pub fn truncated(&self) -> u64 {
        let (Self::Sha256([.., a, b, c, d, e, f, g, h]) | Self::Xxh3([.., a, b, c, d, e, f, g, h])) =
            *self;
        u64::from_be_bytes([a, b, c, d, e, f, g, h])
    }
}

impl fmt::Debug for VllmHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex::encode(self.as_bytes()))
    }
}

/// A Python value among a block's extra keys.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ExtraKey<'a> {
    /// A `str`: older versions put LoRA names and salts in bare.
    Text(&'a str),
    /// A `bytes`: the hash of prompt embeddings.
    Bytes(&'a [u8]),
    /// An `int`: where an image starts, relative to the block.
    Int(i64),
    /// A `tuple`: vLLM 0.32 tags its keys, as in `("cache_salt", salt)` and `("lora", name, path)`.
    Tuple(&'a [ExtraKey<'a>]),
}

/// The extra keys of a prompt's blocks, in vLLM's order: adapter, then media, then salt.
#[derive(Clone, Copy, Default, Debug)]
pub struct ExtraKeys<'a> {
    /// In every block: the LoRA adapter.
    pub every_block: &'a [ExtraKey<'a>],
    /// In the first block only, after the others: the cache salt.
    pub first_block: &'a [ExtraKey<'a>],
}

/// Computes the hashes of one engine configuration.
#[derive(Clone, Copy, Debug)]
pub struct VllmHasher {
    algorithm: VllmAlgorithm,
    none_hash: VllmHash,
}

impl VllmHasher {
    /// Hashes as an engine does whose `PYTHONHASHSEED` (or [`DEFAULT_SEED`]) is `seed`.
    #[must_use]
    pub fn new(algorithm: VllmAlgorithm, seed: &str) -> Self {
        let mut bytes = Vec::new();
        if algorithm.is_cbor() {
            cbor::text(seed, &mut bytes);
        } else {
            pickle::text(seed, &mut bytes);
        }
        Self { algorithm, none_hash: algorithm.digest(&bytes) }
    }

    /// Hashes as an engine does whose first parent is known: a random seed, revealed some other
    /// way.
    #[must_use]
    pub const fn with_none_hash(algorithm: VllmAlgorithm, none_hash: VllmHash) -> Self {
        Self { algorithm, none_hash }
    }

    /// The parent of every first block.
    #[must_use]
    pub const fn none_hash(&self) -> VllmHash {
        self.none_hash
    }

    /// One block's hash.
    #[must_use]
    pub fn block(&self, parent: &VllmHash, tokens: &[u32], extra: &[ExtraKey<'_>]) -> VllmHash {
        let mut scratch = Vec::with_capacity(64 + 5 * tokens.len());
        self.block_in(parent, tokens, extra, &mut scratch)
    }

    /// Appends the hashes of the full blocks of a prompt to `out`.
    pub fn hash_tokens(
        &self,
        tokens: &[u32],
        block_size: NonZeroUsize,
        extra: ExtraKeys<'_>,
        out: &mut Vec<VllmHash>,
    ) {
        let first: Vec<_> = [extra.every_block, extra.first_block].concat();
        let mut keys = first.as_slice();
        let mut parent = self.none_hash;
        let mut scratch = Vec::with_capacity(64 + 5 * block_size.get().min(tokens.len()));
        for block in tokens.chunks_exact(block_size.get()) {
            parent = self.block_in(&parent, block, keys, &mut scratch);
            out.push(parent);
            keys = extra.every_block;
        }
    }

    fn block_in(
        &self,
        parent: &VllmHash,
        tokens: &[u32],
        extra: &[ExtraKey<'_>],
        scratch: &mut Vec<u8>,
    ) -> VllmHash {
        scratch.clear();
        if self.algorithm.is_cbor() {
            cbor::block(parent.as_bytes(), tokens, extra, scratch);
        } else {
            pickle::block(parent.as_bytes(), tokens, extra, scratch);
        }
        self.algorithm.digest(scratch)
    }
}
