//! Tokenization memory: a conversation's next turn costs its new text.
//!
//! A text is cut into pieces of some kilobytes where cutting is proven harmless ([`Cuts`]), each cut
//! depending only on the text before it and one character after. A piece's token ids depend on
//! nothing but the piece, so they are remembered by its hash: a grown prompt repeats the pieces of
//! the shorter one, and so does any other prompt with the same beginning, or the same document.
//!
//! Only hashes and ids are kept, no text: 128 bits, keyed by the cell's secret, stand for a piece.
//! Memory is bounded in bytes; the least recently used pieces go first.
use std::sync::{Arc, Mutex, PoisonError};

use hashbrown::HashTable;
use xxhash_rust::xxh3::xxh3_128_with_secret;

use super::{Added, Cuts, Framing, Tokenizer, TokenizerError};
use crate::key::HashKey;

/// A piece ends after the first added token from here on…
const PIECE_MIN: usize = 1024;
/// …or else at the first proven cut from here on.
const PIECE_MAX: usize = 16 * 1024;
/// Independent parts, so that threads seldom wait for each other.
const SHARDS: usize = 16;
/// What a piece costs besides its ids.
const OVERHEAD: usize = 64;

/// Remembers the token ids of texts one tokenizer has seen.
pub struct TokenMemory {
    tokenizer: Arc<Tokenizer>,
    secret: [u8; 192],
    shards: [Mutex<Shard>; SHARDS],
}

/// What a [`TokenMemory`] holds and did.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct MemoryStats {
    /// Pieces found.
    pub hits: u64,
    /// Pieces that had to be tokenized.
    pub misses: u64,
    /// Pieces dropped to stay within the capacity.
    pub evictions: u64,
    /// Pieces held.
    pub pieces: usize,
    /// Bytes they take.
    pub bytes: usize,
}

impl TokenMemory {
    /// A memory of at most about `capacity_bytes`.
    #[must_use]
    pub fn new(tokenizer: Arc<Tokenizer>, key: &HashKey, capacity_bytes: usize) -> Self {
        let shard = |_| Mutex::new(Shard::new(capacity_bytes / SHARDS));
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

    /// Appends the ids of `text` to `out`: the very ids of [`Tokenizer::encode`].
    ///
    /// # Errors
    /// If the tokenizer has no token for some of the text.
    pub fn encode(
        &self,
        text: &str,
        framing: Framing,
        out: &mut Vec<u32>,
    ) -> Result<(), TokenizerError> {
        self.tokenizer.framed(framing, out, |out| {
            let Some(cuts) = &self.tokenizer.cuts else {
                return self.tokenizer.encode_bare(text, out);
            };
            let mut rest = text;
            let mut added = Vec::new();
            while let Some(piece) = Piece::first(cuts, rest, &mut added) {
                self.encode_piece(rest, piece, &added, out)?;
                rest = &rest[piece.end..];
            }
            self.tokenizer.encode_bare(rest, out)
        })
    }

    /// Counters and sizes.
    #[must_use]
    pub fn stats(&self) -> MemoryStats {
        let mut sum = MemoryStats::default();
        for shard in &self.shards {
            let shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
            sum.hits += shard.stats.hits;
            sum.misses += shard.stats.misses;
            sum.evictions += shard.stats.evictions;
            sum.pieces += shard.table.len();
            sum.bytes += shard.stats.bytes;
        }
        sum
    }

    /// The first piece of `text`, in which `added` are the added tokens.
    fn encode_piece(
        &self,
        text: &str,
        piece: Piece,
        added: &[Added],
        out: &mut Vec<u32>,
    ) -> Result<(), TokenizerError> {
        let key = xxh3_128_with_secret(&text.as_bytes()[..piece.key_end], &self.secret);
        let shard = &self.shards[(key >> 64) as usize % SHARDS];
        if shard.lock().unwrap_or_else(PoisonError::into_inner).recall(key, out) {
            return Ok(());
        }
        // Not under the lock: tokenizing takes longer than everything else here.
        let start = out.len();
        self.tokenizer.encode_around(&text[..piece.end], added, out)?;
        shard.lock().unwrap_or_else(PoisonError::into_inner).remember(key, &out[start..]);
        Ok(())
    }
}

impl std::fmt::Debug for TokenMemory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TokenMemory").field("stats", &self.stats()).finish_non_exhaustive()
    }
}

#[derive(Clone, Copy)]
struct Piece {
    end: usize,
    /// Past the white space that makes a soft cut known.
    key_end: usize,
}

impl Piece {
    /// The first piece of `text`, unless its end is not in sight, and the added tokens in it.
    fn first(cuts: &Cuts, text: &str, added: &mut Vec<Added>) -> Option<Self> {
        added.clear();
        if text.len() < PIECE_MIN {
            return None;
        }
        if let Some(end) = cuts.hard_cut(text, PIECE_MIN, PIECE_MAX, added) {
            return Some(Self { end, key_end: end });
        }
        if let Some(end) = cuts.soft_cut(text, PIECE_MAX) {
            // Added tokens from the limit to the cut were not looked for yet.
            let mut at = added.last().map_or(0, |last| last.end);
            while let Some(next) = cuts.next_added(&text[..end], at) {
                at = next.end;
                added.push(next);
            }
            return Some(Self { end, key_end: end + 1 });
        }
        added.clear();
        let end = cuts.hard_cut(text, PIECE_MIN, text.len(), added)?;
        Some(Self { end, key_end: end })
    }
}

/// No entry: the end of a list.
const NONE: u32 = u32::MAX;

struct Entry {
    key: u128,
    ids: Box<[u32]>,
    newer: u32,
    older: u32,
}

/// A map from keys to ids, with its entries also in a list by last use.
struct Shard {
    table: HashTable<u32>,
    entries: Vec<Entry>,
    free: Vec<u32>,
    newest: u32,
    oldest: u32,
    capacity: usize,
    stats: MemoryStats,
}

impl Shard {
    fn new(capacity: usize) -> Self {
        Self {
            table: HashTable::new(),
            entries: Vec::new(),
            free: Vec::new(),
            newest: NONE,
            oldest: NONE,
            capacity,
            stats: MemoryStats::default(),
        }
    }

    fn recall(&mut self, key: u128, out: &mut Vec<u32>) -> bool {
        let Some(&at) = self.table.find(key as u64, |&at| self.entries[at as usize].key == key)
        else {
            self.stats.misses += 1;
            return false;
        };
        self.stats.hits += 1;
        out.extend_from_slice(&self.entries[at as usize].ids);
        self.unlink(at);
        self.link_newest(at);
        true
    }

    fn remember(&mut self, key: u128, ids: &[u32]) {
        let cost = cost(ids);
        let known = self.table.find(key as u64, |&at| self.entries[at as usize].key == key);
        // Another thread may have been quicker; a piece beyond the capacity is not worth all others.
        if known.is_some() || cost > self.capacity {
            return;
        }
        while self.stats.bytes + cost > self.capacity && self.oldest != NONE {
            self.evict(self.oldest);
        }
        let entry = Entry { key, ids: ids.into(), newer: NONE, older: NONE };
        let at = match self.free.pop() {
            Some(at) => {
                self.entries[at as usize] = entry;
                at
            }
            None => {
                self.entries.push(entry);
                (self.entries.len() - 1) as u32
            }
        };
        self.stats.bytes += cost;
        self.table.insert_unique(key as u64, at, |&at| self.entries[at as usize].key as u64);
        self.link_newest(at);
    }

    fn evict(&mut self, at: u32) {
        self.unlink(at);
        let key = self.entries[at as usize].key;
        if let Ok(found) = self.table.find_entry(key as u64, |&other| other == at) {
            found.remove();
        }
        let ids = std::mem::take(&mut self.entries[at as usize].ids);
        self.stats.bytes -= cost(&ids);
        self.stats.evictions += 1;
        self.free.push(at);
    }

    fn unlink(&mut self, at: u32) {
        let Entry { newer, older, .. } = self.entries[at as usize];
        match self.entries.get_mut(newer as usize) {
            Some(entry) => entry.older = older,
            None => self.newest = older,
        }
        match self.entries.get_mut(older as usize) {
            Some(entry) => entry.newer = newer,
            None => self.oldest = newer,
        }
    }

    fn link_newest(&mut self, at: u32) {
        let before = std::mem::replace(&mut self.newest, at);
        self.entries[at as usize].newer = NONE;
        self.entries[at as usize].older = before;
        match self.entries.get_mut(before as usize) {
            Some(entry) => entry.newer = at,
            None => self.oldest = at,
        }
    }
}

fn cost(ids: &[u32]) -> usize {
    size_of_val(ids) + size_of::<Entry>() + OVERHEAD
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shard(room: usize) -> Shard {
        Shard::new(room * cost(&[1]))
    }

    fn recall(shard: &mut Shard, key: u128) -> Option<Vec<u32>> {
        let mut out = Vec::new();
        shard.recall(key, &mut out).then_some(out)
    }

    #[test]
    fn the_least_recently_used_piece_goes_first() {
        let mut shard = shard(3);
        for key in 0..3 {
            shard.remember(key, &[key as u32]);
        }
        assert_eq!(recall(&mut shard, 0), Some(vec![0]));
        shard.remember(3, &[3]);
        assert_eq!(recall(&mut shard, 1), None);
        assert_eq!(
            [0, 2, 3].map(|key| recall(&mut shard, key)),
            [0, 2, 3].map(|id| Some(vec![id]))
        );
        assert_eq!((shard.stats.evictions, shard.table.len()), (1, 3));
    }

    #[test]
    fn memory_stays_within_its_capacity_and_slots_are_used_again() {
        let mut shard = shard(8);
        for key in 0..1000_u128 {
            shard.remember(key << 7, &vec![1; key as usize % 40]);
            assert!(shard.stats.bytes <= shard.capacity);
            let held: usize =
                shard.table.iter().map(|&at| cost(&shard.entries[at as usize].ids)).sum();
            assert_eq!(held, shard.stats.bytes);
        }
        assert!(shard.entries.len() <= 9, "{}", shard.entries.len());
    }

    #[test]
    fn a_piece_larger_than_everything_is_not_kept() {
        let mut shard = shard(2);
        shard.remember(1, &[1]);
        shard.remember(2, &vec![7; 1000]);
        assert_eq!(recall(&mut shard, 2), None);
        assert_eq!(recall(&mut shard, 1), Some(vec![1]));
    }
}
