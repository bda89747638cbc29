//! A shard of the token cache: a bounded map of pieces with least-recently-used eviction.

use hashbrown::HashTable;

use super::{TokenCacheKey, TokenCacheStats};

/// Slots for the last length of a beginning; a new one replaces the one in its slot.
const HINTS: usize = 512;
/// The bytes of a piece besides its text, its ids and its entry.
const OVERHEAD: usize = 64;
/// How many pieces in a row may be evicted unused before new ones are admitted on trial only.
const TRUST: u32 = 64;
/// How many unused pieces one used piece compensates. So a fifth must be used for new ones to be
/// admitted at once.
const PER_USE: u32 = 4;
/// On trial, one piece in this many is admitted at first sight, to learn whether it is used.
const SAMPLE: u64 = 64;
/// Slots for pieces that were seen and not admitted; a new one replaces the one in its slot.
const SEEN: usize = 1024;
/// No entry: the end of the list.
const NONE: u32 = u32::MAX;

struct TokenCacheEntry {
    key: TokenCacheKey,
    /// The ids, then the text, in one allocation.
    ids_and_text: Vec<u32>,
    ids: usize,
    /// The end of the piece, at most one character before the end of its text.
    end: usize,
    is_used: bool,
    newer: u32,
    older: u32,
}

/// A map from keys to pieces, with its entries also in a list by last use.
///
/// Inserting a piece moves twice its length through the processor's caches, which costs a good part
/// of its tokenization. Where pieces are evicted unused, because no prompt repeats them, new ones
/// are admitted when they are seen a second time.
pub(super) struct TokenCacheShard {
    table: HashTable<u32>,
    entries: Vec<TokenCacheEntry>,
    free: Vec<u32>,
    newest: u32,
    oldest: u32,
    hints: Box<[(u64, usize)]>,
    /// The allocation of the piece evicted last: a full cache needs no new allocation.
    spare: Vec<u32>,
    /// Zero once too many pieces were evicted unused.
    trust: u32,
    seen: Box<[u64]>,
    capacity: usize,
    pub(super) stats: TokenCacheStats,
}

impl TokenCacheShard {
    pub(super) fn new(capacity: usize) -> Self {
        Self {
            table: HashTable::new(),
            entries: Vec::new(),
            free: Vec::new(),
            newest: NONE,
            oldest: NONE,
            hints: vec![(0, 0); HINTS].into(),
            spare: Vec::new(),
            trust: TRUST,
            seen: vec![0; SEEN].into(),
            capacity,
            stats: TokenCacheStats::default(),
        }
    }

    /// The length of the piece that began like this last time.
    pub(super) fn hint(&self, head: u64) -> Option<usize> {
        let (known, length) = self.hints[head as usize % HINTS];
        (known == head && length > 0).then_some(length)
    }

    /// Appends the piece's ids and returns its end, if it is cached.
    pub(super) fn get(
        &mut self,
        key: TokenCacheKey,
        text: &[u8],
        out: &mut Vec<u32>,
    ) -> Option<usize> {
        let at = self.find(key)?;
        let entry = &mut self.entries[at as usize];
        let (ids, own_text) = entry.ids_and_text.split_at(entry.ids);
        if bytemuck::cast_slice::<u32, u8>(own_text)[..key.length] != *text {
            return None;
        }
        let end = entry.end;
        out.extend_from_slice(ids);
        if !std::mem::replace(&mut entry.is_used, true) {
            self.trust = (self.trust + PER_USE).min(TRUST);
        }
        self.stats.hits += 1;
        self.hints[key.head as usize % HINTS] = (key.head, key.length);
        self.unlink(at);
        self.link_newest(at);
        Some(end)
    }

    /// Admits a piece that is likely to be used, replaces one with the same key, and evicts the
    /// oldest pieces for it.
    pub(super) fn insert(&mut self, key: TokenCacheKey, text: &[u8], end: usize, ids: &[u32]) {
        self.stats.misses += 1;
        if let Some(at) = self.find(key) {
            self.evict(at);
        }
        if !self.is_admitted(key) {
            return;
        }
        let words = ids.len() + text.len() / size_of::<u32>() + 1;
        // A piece beyond the capacity would evict all others.
        if cost(words) > self.capacity {
            return;
        }
        while self.stats.bytes + cost(words) > self.capacity && self.oldest != NONE {
            self.evict(self.oldest);
        }
        let mut ids_and_text = std::mem::take(&mut self.spare);
        if ids_and_text.capacity() < words
            || cost(ids_and_text.capacity()) + self.stats.bytes > self.capacity
        {
            ids_and_text = Vec::with_capacity(words);
        }
        join(ids, text, &mut ids_and_text);
        self.stats.bytes += cost(ids_and_text.capacity());
        let entry = TokenCacheEntry {
            key,
            ids_and_text,
            ids: ids.len(),
            end,
            is_used: false,
            newer: NONE,
            older: NONE,
        };
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
        self.stats.pieces += 1;
        self.hints[key.head as usize % HINTS] = (key.head, key.length);
        self.table.insert_unique(key.slot(), at, |&at| self.entries[at as usize].key.slot());
        self.link_newest(at);
    }

    fn is_admitted(&mut self, key: TokenCacheKey) -> bool {
        let slot = key.slot();
        let seen = &mut self.seen[slot as usize % SEEN];
        self.trust > 0
            || std::mem::replace(seen, slot) == slot
            || self.stats.misses.is_multiple_of(SAMPLE)
    }

    fn find(&self, key: TokenCacheKey) -> Option<u32> {
        self.table.find(key.slot(), |&at| self.entries[at as usize].key == key).copied()
    }

    fn evict(&mut self, at: u32) {
        self.unlink(at);
        let slot = self.entries[at as usize].key.slot();
        if let Ok(found) = self.table.find_entry(slot, |&other| other == at) {
            found.remove();
        }
        let entry = &mut self.entries[at as usize];
        if !entry.is_used {
            self.trust = self.trust.saturating_sub(1);
        }
        self.stats.bytes -= cost(entry.ids_and_text.capacity());
        self.stats.pieces -= 1;
        self.stats.evictions += 1;
        self.spare = std::mem::take(&mut entry.ids_and_text);
        self.free.push(at);
    }

    fn unlink(&mut self, at: u32) {
        let TokenCacheEntry { newer, older, .. } = self.entries[at as usize];
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

/// The bytes of a piece of `words` words.
fn cost(words: usize) -> usize {
    words * size_of::<u32>() + size_of::<TokenCacheEntry>() + OVERHEAD
}

fn join(ids: &[u32], text: &[u8], out: &mut Vec<u32>) {
    let (words, rest) = text.as_chunks::<4>();
    out.clear();
    out.extend_from_slice(ids);
    out.extend(words.iter().map(|word| u32::from_ne_bytes(*word)));
    let mut last = [0; 4];
    last[..rest.len()].copy_from_slice(rest);
    out.push(u32::from_ne_bytes(last));
}

impl TokenCacheKey {
    /// Its hash in the table.
    fn slot(self) -> u64 {
        self.head ^ self.tail.rotate_left(32) ^ self.length as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One id and five bytes of text.
    const PIECE: usize = 3 * 4 + size_of::<TokenCacheEntry>() + OVERHEAD;

    fn key(number: u64) -> TokenCacheKey {
        TokenCacheKey { head: number, tail: number << 9, length: 5 }
    }

    fn insert(shard: &mut TokenCacheShard, number: u64, ids: &[u32]) {
        shard.insert(key(number), format!("{number:05}").as_bytes(), 4, ids);
    }

    fn get(shard: &mut TokenCacheShard, number: u64) -> Option<Vec<u32>> {
        let mut out = Vec::new();
        let end = shard.get(key(number), format!("{number:05}").as_bytes(), &mut out);
        end.map(|end| {
            assert_eq!(end, 4);
            out
        })
    }

    #[test]
    fn the_least_recently_used_piece_is_evicted_first() {
        let mut shard = TokenCacheShard::new(3 * PIECE);
        for number in 0..3 {
            insert(&mut shard, number, &[number as u32]);
        }
        assert_eq!(get(&mut shard, 0), Some(vec![0]));
        insert(&mut shard, 3, &[3]);
        assert_eq!(get(&mut shard, 1), None);
        assert_eq!([0, 2, 3].map(|n| get(&mut shard, n)), [0, 2, 3].map(|id| Some(vec![id])));
        assert_eq!((shard.stats.evictions, shard.stats.pieces), (1, 3));
    }

    #[test]
    fn a_shard_stays_within_its_capacity_and_reuses_entries() {
        let mut shard = TokenCacheShard::new(8 * PIECE);
        for number in 0..1000 {
            insert(&mut shard, number, &vec![1; number as usize % 40]);
            let entries = shard.table.iter().map(|&at| &shard.entries[at as usize]);
            let held: usize = entries.map(|entry| cost(entry.ids_and_text.capacity())).sum();
            assert_eq!((held, shard.table.len()), (shard.stats.bytes, shard.stats.pieces));
            assert!(held <= shard.capacity);
        }
        assert!(shard.entries.len() <= 9, "{}", shard.entries.len());
    }

    #[test]
    fn without_repetition_only_pieces_seen_twice_are_admitted() {
        let mut shard = TokenCacheShard::new(16 * PIECE);
        let mut fresh = 0..u64::MAX;
        let mut flood = |shard: &mut TokenCacheShard, pieces: usize| {
            let kept = fresh.by_ref().take(pieces).filter(|&number| {
                insert(shard, number, &[1]);
                shard.find(key(number)).is_some()
            });
            kept.count()
        };
        assert_eq!(flood(&mut shard, 16 + TRUST as usize), 16 + TRUST as usize);
        assert_eq!(flood(&mut shard, 800), 800 / SAMPLE as usize, "only on trial");
        let known = 90_000;
        for _ in 0..2 {
            insert(&mut shard, known, &[7]);
        }
        assert_eq!(get(&mut shard, known), Some(vec![7]), "the piece was seen twice");
        assert_eq!(flood(&mut shard, 4), 4, "a used piece lets some more in at once");

        for number in 91_000..91_100 {
            insert(&mut shard, number, &[2]);
            insert(&mut shard, number, &[2]);
            assert!(get(&mut shard, number).is_some());
        }
        assert_eq!(flood(&mut shard, TRUST as usize), TRUST as usize, "pieces repeat again");
    }

    #[test]
    fn a_piece_larger_than_the_capacity_is_not_admitted() {
        let mut shard = TokenCacheShard::new(2 * PIECE);
        insert(&mut shard, 1, &[1]);
        insert(&mut shard, 2, &vec![7; 1000]);
        assert_eq!(get(&mut shard, 2), None);
        assert_eq!(get(&mut shard, 1), Some(vec![1]));
    }

    #[test]
    fn a_text_with_the_key_of_another_is_not_found_and_replaces_it() {
        let mut shard = TokenCacheShard::new(9 * PIECE);
        let mut out = Vec::new();
        shard.insert(key(1), b"first", 5, &[1]);
        assert_eq!(shard.get(key(1), b"other", &mut out), None);
        shard.insert(key(1), b"other", 5, &[2]);
        assert_eq!(shard.get(key(1), b"first", &mut out), None);
        assert_eq!(shard.get(key(1), b"other", &mut out), Some(5));
        assert_eq!((out, shard.stats.pieces), (vec![2], 1));
    }

    #[test]
    fn the_last_length_of_a_beginning_is_stored() {
        let mut shard = TokenCacheShard::new(9 * PIECE);
        assert_eq!(shard.hint(0), None);
        shard.insert(key(7), b"first", 5, &[1]);
        assert_eq!(shard.hint(7), Some(5));
        assert_eq!(shard.hint(7 + HINTS as u64), None);
    }
}
