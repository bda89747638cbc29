//! Hashes tokens (or text) to the chain of block hashes.
//!
//! A block's content is hashed with XXH3 under a secret derived from the cell's key, directly from
//! the caller's tokens; [`BlockHash::then`] chains the contents, from the root of a [`Scope`] on.
//! Only full blocks have a hash, because engines cache only full blocks. Nothing allocates but an
//! output buffer that is too small.
//!
//! A chain step folds a block's content into the hash of the prefix before it by one 128-bit
//! multiplication. The contents are keyed hashes already, so the step must be fast and mix well,
//! but need not resist an attacker on its own: a chain of 512 blocks is a serial dependency of 512
//! steps, and each request pays every nanosecond of a step 512 times.

use std::num::NonZeroUsize;

use hmac::Mac;
use xxhash_rust::xxh3::xxh3_64_with_secret;

use crate::key::{HashKey, field};

#[cfg(target_endian = "big")]
compile_error!("token ids are hashed as they lie in memory, which replicas share as little-endian");

/// Names a whole prefix: the block it ends with and everything before that block.
///
/// Equal hashes mean equal prefixes under one seed, up to 64-bit collisions.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
#[repr(transparent)]
pub struct BlockHash(pub u64);

/// A keyed hash of one block's own content: its tokens (or bytes) and the engine's extra keys.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
#[repr(transparent)]
pub struct ContentHash(pub u64);

impl BlockHash {
    /// The hash of the prefix that `self` names, extended by one block.
    #[inline]
    #[must_use]
    pub const fn then(self, content: ContentHash) -> Self {
        // Odd constants without structure (digits of pi). A zero factor would swallow the other
        // one, hence the additions before the product and the second use of the parent after it.
        const LEFT: u64 = 0x243F_6A88_85A3_08D3;
        const RIGHT: u64 = 0x1319_8A2E_0370_7345;
        let left = self.0 ^ LEFT;
        let right = content.0 ^ RIGHT;
        let product = (left as u128).wrapping_mul((right | 1) as u128);
        let folded = (product as u64) ^ ((product >> 64) as u64);
        Self(folded.wrapping_add(content.0.rotate_left(29)))
    }

    /// Every prefix of `contents` in order, each extending the one before it, starting from `self`.
    pub fn chain(self, contents: &[ContentHash]) -> impl Iterator<Item = BlockHash> + '_ {
        contents.iter().scan(self, |prefix, content| {
            *prefix = prefix.then(*content);
            Some(*prefix)
        })
    }
}

/// What must be equal, besides the tokens, for a cached block to be reusable.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Scope<'a> {
    /// The base model.
    pub model: &'a str,
    /// The LoRA adapter, if the request names one.
    pub lora: Option<&'a str>,
    /// The tenant's `cache_salt`, if tenants are isolated.
    pub salt: Option<&'a str>,
}

impl<'a> Scope<'a> {
    /// The base model alone: no adapter, no isolated tenant.
    #[must_use]
    pub const fn model(model: &'a str) -> Self {
        Self { model, lora: None, salt: None }
    }
}

impl HashKey {
    /// The hash from which the chains of a scope start.
    #[must_use]
    pub fn root(&self, scope: &Scope<'_>) -> BlockHash {
        let mut mac = self.mac(b"root");
        field(&mut mac, Some(scope.model.as_bytes()));
        field(&mut mac, scope.lora.map(str::as_bytes));
        field(&mut mac, scope.salt.map(str::as_bytes));
        let digest: [u8; 32] = mac.finalize().into_bytes().into();
        let [a, b, c, d, e, f, g, h, ..] = digest;
        BlockHash(u64::from_le_bytes([a, b, c, d, e, f, g, h]))
    }
}

/// Hashes token blocks of one size under one cell's key.
#[derive(Clone)]
pub struct BlockHasher {
    block_size: NonZeroUsize,
    tokens: [u8; 192],
    extra: [u8; 192],
}

impl BlockHasher {
    /// A hasher for blocks of `block_size` tokens.
    #[must_use]
    pub fn new(key: &HashKey, block_size: NonZeroUsize) -> Self {
        Self {
            block_size,
            tokens: key.hashing_secret(b"tokens"),
            extra: key.hashing_secret(b"extra keys"),
        }
    }

    /// Tokens per block.
    #[must_use]
    pub const fn block_size(&self) -> NonZeroUsize {
        self.block_size
    }

    /// The content of a block that holds nothing but `tokens`.
    #[inline]
    #[must_use]
    pub fn content(&self, tokens: &[u32]) -> ContentHash {
        ContentHash(xxh3_64_with_secret(bytemuck::cast_slice(tokens), &self.tokens))
    }

    /// The content of a block that the engine keys by more than its tokens.
    ///
    /// `extra` is an unambiguous encoding of those keys, such as the hash and the position of an
    /// image: placeholder tokens of different images are equal, their blocks are not.
    #[must_use]
    pub fn content_with_extra(&self, tokens: &[u32], extra: &[u8]) -> ContentHash {
        let extra = ContentHash(xxh3_64_with_secret(extra, &self.extra));
        ContentHash(BlockHash(self.content(tokens).0).then(extra).0)
    }

    /// Appends the content of every full block of `tokens` to `out`.
    pub fn contents(&self, tokens: &[u32], out: &mut Vec<ContentHash>) {
        out.extend(tokens.chunks_exact(self.block_size.get()).map(|block| self.content(block)));
    }

    /// Appends the hash of every full block of `tokens` to `out`, the first one following `root`.
    ///
    /// `root` is a scope's root for a whole prompt, or the hash of the block before `tokens`.
    pub fn hash_tokens(&self, tokens: &[u32], root: BlockHash, out: &mut Vec<BlockHash>) {
        let mut prefix = root;
        out.extend(tokens.chunks_exact(self.block_size.get()).map(|block| {
            prefix = prefix.then(self.content(block));
            prefix
        }));
    }
}

/// Hashes text in chunks of bytes, for a model without a tokenizer.
///
/// Chunks of the rendered text replace blocks: equal prefixes of text still have equal prefixes of
/// hashes, only the unit differs from the engine's. Token and text hashes of one cell are
/// unrelated, since each kind has its own secret.
#[derive(Clone)]
pub struct TextHasher {
    chunk_bytes: NonZeroUsize,
    secret: [u8; 192],
}

impl TextHasher {
    /// A hasher for chunks of `chunk_bytes` bytes.
    #[must_use]
    pub fn new(key: &HashKey, chunk_bytes: NonZeroUsize) -> Self {
        Self { chunk_bytes, secret: key.hashing_secret(b"text") }
    }

    /// Bytes per chunk.
    #[must_use]
    pub const fn chunk_bytes(&self) -> NonZeroUsize {
        self.chunk_bytes
    }

    fn follow(&self, prefix: BlockHash, chunk: &[u8]) -> BlockHash {
        prefix.then(ContentHash(xxh3_64_with_secret(chunk, &self.secret)))
    }

    /// Appends the hash of every full chunk of `text` to `out`, the first one following `root`.
    ///
    /// Counts bytes, not characters: a chunk may end inside a character, as text is only compared.
    pub fn hash_text(&self, text: &[u8], root: BlockHash, out: &mut Vec<BlockHash>) {
        self.begin(root).push(text, out);
    }

    /// The same for a text in pieces, without joining them.
    #[must_use]
    pub const fn begin(&self, root: BlockHash) -> TextChain<'_> {
        TextChain { hasher: self, last: root, rest: Vec::new(), bytes: 0 }
    }
}

/// The chain of a text that is hashed piece by piece.
pub struct TextChain<'a> {
    hasher: &'a TextHasher,
    last: BlockHash,
    /// The bytes behind the last full chunk.
    rest: Vec<u8>,
    bytes: usize,
}

impl TextChain<'_> {
    /// Adds a piece; appends the hash of every chunk that it completes.
    pub fn push(&mut self, mut text: &[u8], out: &mut Vec<BlockHash>) {
        let size = self.hasher.chunk_bytes.get();
        self.bytes += text.len();
        if !self.rest.is_empty() {
            let (first, after) = text.split_at(text.len().min(size - self.rest.len()));
            self.rest.extend_from_slice(first);
            text = after;
            if self.rest.len() < size {
                return;
            }
            self.last = self.hasher.follow(self.last, &self.rest);
            self.rest.clear();
            out.push(self.last);
        }
        let chunks = text.chunks_exact(size);
        self.rest.extend_from_slice(chunks.remainder());
        out.extend(chunks.map(|chunk| {
            self.last = self.hasher.follow(self.last, chunk);
            self.last
        }));
    }

    /// The bytes added so far.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        self.bytes
    }
}

#[cfg(test)]
mod tests;
