//! Token cache: the next turn of a conversation costs only the tokenization of its new text.
//!
//! A text is split into pieces of some kilobytes where splitting is proven harmless
//! ([`SplitPoints`]); each split depends only on the text before it and one character after. The
//! token ids of a piece depend only on the piece, so they are cached with it: a longer prompt
//! repeats the pieces of the shorter one, and so does any other prompt with the same beginning, or
//! the same document.
//!
//! A piece is found by its length and a keyed hash of its two ends, and its text is compared in
//! full: a collision cannot give wrong ids, it can only hide a piece. Finding the split points
//! takes longer than all of that, so the length that followed a beginning last time is tried first.
//!
//! The cache is bounded in bytes and evicts the least recently used piece. While hardly any piece
//! is used before its eviction, new ones are admitted only when they are seen a second time.

mod shard;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use shard::TokenCacheShard;
use xxhash_rust::xxh3::xxh3_64_with_secret;

use super::{AddedToken, SpecialTokens, SplitPoints, TokenSink, Tokenizer, TokenizerError};
use crate::encode_limits::EncodeLimits;
use crate::key::HashKey;

/// A piece ends after the first added token from here on…
const PIECE_MIN: usize = 1024;
/// …or else at the first proven split point from here on.
const PIECE_MAX: usize = 16 * 1024;
/// Independent shards, so that threads seldom wait for each other.
const SHARDS: usize = 16;
/// The bytes of either end that are hashed.
const END_BYTES: usize = 256;

/// Caches the token ids of texts for one tokenizer.
pub struct TokenCache {
    tokenizer: Arc<Tokenizer>,
    secret: [u8; 192],
    shards: [Mutex<TokenCacheShard>; SHARDS],
}

/// Counters and sizes of a [`TokenCache`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TokenCacheStats {
    /// Pieces found.
    pub hits: u64,
    /// Pieces that had to be tokenized.
    pub misses: u64,
    /// Pieces evicted to stay within the capacity.
    pub evictions: u64,
    /// Cached pieces.
    pub pieces: usize,
    /// Bytes of the cached pieces.
    pub bytes: usize,
}

impl TokenCache {
    /// A cache of at most about `capacity_bytes`.
    #[must_use]
    pub fn new(tokenizer: Arc<Tokenizer>, key: &HashKey, capacity_bytes: usize) -> Self {
        let shard = |_| Mutex::new(TokenCacheShard::new(capacity_bytes / SHARDS));
        Self {
            tokenizer,
            secret: key.hashing_secret(b"token memory"),
            shards: std::array::from_fn(shard),
        }
    }

    /// The tokenizer whose ids these are.
    #[must_use]
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// Appends the ids of `text` to `out`: the same ids as [`Tokenizer::encode`].
    ///
    /// # Errors
    /// If the tokenizer has no token for some of the text.
    pub fn encode(
        &self,
        text: &str,
        framing: SpecialTokens,
        out: &mut Vec<u32>,
    ) -> Result<(), TokenizerError> {
        self.encode_within(text, framing, EncodeLimits::default(), out)
    }

    /// Like [`Self::encode`], within limits. The ids of a text that exceeds them are incomplete.
    ///
    /// # Errors
    /// If the tokenizer has no token for some of the text, or tokenization was stopped.
    pub fn encode_within(
        &self,
        text: &str,
        framing: SpecialTokens,
        limits: EncodeLimits,
        out: &mut Vec<u32>,
    ) -> Result<(), TokenizerError> {
        self.tokenizer.check_length(text, limits)?;
        // A token mostly has more than three bytes: one allocation for all ids.
        out.reserve((text.len() / 3).min(limits.tokens));
        let mut sink = TokenSink::new(out, limits);
        self.tokenizer.framed(framing, &mut sink, |out| {
            let Some(points) = &self.tokenizer.split_points else {
                return self.tokenizer.encode_bare(text, out);
            };
            let mut rest = text;
            let mut added = Vec::new();
            while rest.len() >= PIECE_MIN {
                // Pieces that are cached count too.
                out.check_tokens().map_err(|why| self.tokenizer.stopped(why))?;
                let head = self.hash(&rest.as_bytes()[..END_BYTES]);
                let end = match self.get(head, rest.as_bytes(), out.ids) {
                    Some(end) => end,
                    None => match Piece::first(points, rest, &mut added) {
                        Some(piece) => self.encode_piece(head, piece, &added, out)?,
                        None => return self.tokenizer.encode_around(rest, &added, out),
                    },
                };
                rest = &rest[end..];
            }
            self.tokenizer.encode_bare(rest, out)
        })
    }

    /// Counters and sizes.
    #[must_use]
    pub fn stats(&self) -> TokenCacheStats {
        let mut sum = TokenCacheStats::default();
        for shard in &self.shards {
            let shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
            sum.hits += shard.stats.hits;
            sum.misses += shard.stats.misses;
            sum.evictions += shard.stats.evictions;
            sum.pieces += shard.stats.pieces;
            sum.bytes += shard.stats.bytes;
        }
        sum
    }

    /// The piece that followed this head last time, if `text` begins with it; returns its end.
    fn get(&self, head: u64, text: &[u8], out: &mut Vec<u32>) -> Option<usize> {
        let mut shard = self.shard(head);
        let length = shard.hint(head).filter(|length| (PIECE_MIN..=text.len()).contains(length))?;
        let text = &text[..length];
        shard.get(self.key(head, text), text, out)
    }

    /// Encodes a piece whose end had to be searched; returns that end.
    fn encode_piece(
        &self,
        head: u64,
        piece: Piece<'_>,
        added: &[AddedToken],
        out: &mut TokenSink<'_>,
    ) -> Result<usize, TokenizerError> {
        let text = piece.text.as_bytes();
        let key = self.key(head, text);
        if let Some(end) = self.shard(head).get(key, text, out.ids) {
            return Ok(end);
        }
        // Without the lock: tokenizing takes longer than everything else here.
        let start = out.ids.len();
        self.tokenizer.encode_around(&piece.text[..piece.end], added, out)?;
        self.shard(head).insert(key, text, piece.end, &out.ids[start..]);
        Ok(piece.end)
    }

    fn shard(&self, head: u64) -> MutexGuard<'_, TokenCacheShard> {
        let shard = &self.shards[(head >> 32) as usize % SHARDS];
        shard.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn key(&self, head: u64, text: &[u8]) -> TokenCacheKey {
        let tail = &text[text.len().saturating_sub(END_BYTES)..];
        TokenCacheKey { head, tail: self.hash(tail), length: text.len() }
    }

    fn hash(&self, bytes: &[u8]) -> u64 {
        xxh3_64_with_secret(bytes, &self.secret)
    }
}

/// The key of a piece.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct TokenCacheKey {
    head: u64,
    tail: u64,
    length: usize,
}

impl std::fmt::Debug for TokenCache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TokenCache").field("stats", &self.stats()).finish_non_exhaustive()
    }
}

#[derive(Clone, Copy)]
struct Piece<'a> {
    /// Its text, with the white space after it that determines a soft split point.
    text: &'a str,
    end: usize,
}

impl<'a> Piece<'a> {
    /// The first piece of `text`. `added` receives the added tokens in it, or all of `text` if
    /// there is no further split point.
    fn first(points: &SplitPoints, text: &'a str, added: &mut Vec<AddedToken>) -> Option<Self> {
        added.clear();
        if let Some(end) = points.hard_split(text, PIECE_MIN, PIECE_MAX, added) {
            return Some(Self { text: &text[..end], end });
        }
        if text.len() <= PIECE_MAX {
            return None;
        }
        // In windows that double, so that the search takes no longer than the piece that it finds:
        // a text without soft split points would be searched to its end for every piece.
        let mut from = PIECE_MAX;
        loop {
            let limit = from.saturating_mul(2).min(text.len());
            if let Some(end) = points.soft_split(text, from, limit) {
                // Added tokens between `from` and the split point were not searched yet.
                let mut at = added.last().map_or(0, |last| last.end);
                while let Some(next) = points.next_added(&text[..end], at) {
                    at = next.end;
                    added.push(next);
                }
                return Some(Self { text: &text[..=end], end });
            }
            added.clear();
            if let Some(end) = points.hard_split(text, PIECE_MIN, limit, added) {
                return Some(Self { text: &text[..end], end });
            }
            if limit == text.len() {
                return None;
            }
            from = limit;
        }
    }
}
