//! A pod's blocks under the engine's own hashes, with the parent of each.
//!
//! An entry has 24 bytes and keeps its number while it exists, so that a child stores its parent in
//! four. An entry whose block no tier holds any more, but which has children, stays as a *hole*: it
//! shows that the pod's prefix is broken there, keeps the alias in case the block comes back, and
//! is freed with its last child.

use std::collections::HashMap;

use wornpath_blocks::BlockHash;

use crate::alias_table::AliasHash;
use crate::aliases::Aliases;
use crate::entry::{EntryId, Flag, IN_USE, PLAIN_WITH_CHILD, SlabEntry};
use crate::event::EngineHash;
use crate::pages::EntryPages;

/// The key of the hash of aliases. An engine that knew it could choose hashes that collide, so it
/// is never shown.
#[derive(Clone, Copy)]
pub(crate) struct AliasKey(pub(crate) u64);

impl std::fmt::Debug for AliasKey {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("AliasKey")
    }
}

/// All entries of a pod.
#[derive(Debug)]
pub(crate) struct Slab {
    pages: EntryPages,
    len: usize,
    aliases: Aliases,
    /// For entries that cover several blocks: all of these but the last.
    spans: HashMap<EntryId, Box<[BlockHash]>>,
    /// The number of blocks in `spans`.
    span_blocks: usize,
    key: AliasKey,
    /// The end of the run inserted last, while it exists.
    last: Option<(EngineHash, EntryId)>,
}

impl Slab {
    pub(crate) fn new(key: AliasKey) -> Self {
        Self {
            pages: EntryPages::default(),
            len: 0,
            aliases: Aliases::default(),
            spans: HashMap::new(),
            span_blocks: 0,
            key,
            last: None,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// The number of blocks that all entries cover.
    pub(crate) fn weight(&self) -> usize {
        self.len + self.span_blocks
    }

    /// Records that an entry covers these blocks before its last one.
    pub(crate) fn set_span(&mut self, number: EntryId, parts: Box<[BlockHash]>) {
        self.get_mut(number).mark(Flag::Span);
        self.span_blocks += parts.len();
        self.spans.insert(number, parts);
    }

    /// The blocks of an entry before its last one.
    pub(crate) fn span(&self, number: EntryId) -> &[BlockHash] {
        if self.get(number).has(Flag::Span) {
            self.spans.get(&number).map_or(&[], |parts| parts)
        } else {
            &[]
        }
    }

    /// All blocks of an entry, in order.
    pub(crate) fn blocks_of(&self, number: EntryId) -> impl Iterator<Item = BlockHash> {
        self.span(number).iter().copied().chain([self.get(number).block])
    }

    #[inline]
    pub(crate) fn get(&self, number: EntryId) -> &SlabEntry {
        self.pages.get(number)
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, number: EntryId) -> &mut SlabEntry {
        self.pages.get_mut(number)
    }

    #[inline]
    pub(crate) fn find(&self, engine: EngineHash) -> Option<EntryId> {
        // The most frequent search is for the parent of the next part of a prompt.
        if let Some((last, number)) = self.last
            && last == engine
        {
            return Some(number);
        }
        let matches = |number| self.get(EntryId(number)).engine == engine;
        self.aliases.find(self.hash(engine), matches).map(EntryId)
    }

    /// Prefetches the cache lines that finding these aliases needs.
    pub(crate) fn prefetch(&self, engines: &[EngineHash]) {
        engines.iter().for_each(|engine| self.aliases.prefetch(self.hash(*engine)));
    }

    /// Whether no number is left for another entry.
    pub(crate) fn is_full(&self) -> bool {
        self.pages.is_full()
    }

    /// Inserts an entry that no tier holds yet. Its alias must be new, and the slab not full.
    pub(crate) fn insert(
        &mut self,
        engine: EngineHash,
        block: BlockHash,
        parent: EntryId,
    ) -> EntryId {
        self.insert_entry(SlabEntry { engine, block, parent, bits: IN_USE })
    }

    /// Inserts a run of new blocks, each with one copy on the GPU, up to the first known alias. The
    /// caller checks [`Self::has_numbers`]. Returns how many were inserted, and the last of them
    /// (or `parent`).
    pub(crate) fn insert_run(
        &mut self,
        engines: &[EngineHash],
        blocks: &[BlockHash],
        parent: EntryId,
    ) -> (usize, EntryId) {
        self.reserve_aliases(engines.len());
        let mut added = 0;
        let mut last = parent;
        for (engine, block) in engines.iter().zip(blocks) {
            let hash = self.hash(*engine);
            let number = self.pages.next_free();
            if !self.aliases.add_new(hash, number.0) {
                if self.find(*engine).is_some() {
                    break;
                }
                self.aliases.put(hash, number.0);
            }
            let bits = PLAIN_WITH_CHILD;
            let entry = SlabEntry { engine: *engine, block: *block, parent: last, bits };
            self.pages.put(number, entry);
            last = number;
            added += 1;
        }
        if added > 0 {
            self.last = Some((engines[added - 1], last));
            self.get_mut(last).remove_child();
            if parent != EntryId::NONE {
                self.get_mut(parent).add_child();
            }
        }
        self.len += added;
        (added, last)
    }

    /// Whether there are `more` numbers that were never used.
    pub(crate) fn has_numbers(&self, more: usize) -> bool {
        self.pages.has_numbers(more)
    }

    #[inline]
    fn insert_entry(&mut self, entry: SlabEntry) -> EntryId {
        let SlabEntry { engine, parent, .. } = entry;
        self.reserve_aliases(1);
        let number = self.pages.next_free();
        self.pages.put(number, entry);
        if parent != EntryId::NONE {
            self.get_mut(parent).add_child();
        }
        self.aliases.put(self.hash(engine), number.0);
        self.len += 1;
        number
    }

    /// Makes room for more aliases, at a cost that depends on their number alone.
    #[inline]
    fn reserve_aliases(&mut self, more: usize) {
        let Self { aliases, pages, key, .. } = self;
        aliases.reserve(more, |other| keyed_hash(*key, pages.get(EntryId(other)).engine));
    }

    #[inline]
    fn hash(&self, engine: EngineHash) -> AliasHash {
        keyed_hash(self.key, engine)
    }

    /// Removes an entry without children, also from its parent's count.
    pub(crate) fn remove(&mut self, number: EntryId) -> SlabEntry {
        let entry = *self.get(number);
        let Self { aliases, pages, key, .. } = self;
        let hash_of = |other: u32| keyed_hash(*key, pages.get(EntryId(other)).engine);
        aliases.remove(hash_of(number.0), number.0, hash_of);
        self.last = self.last.filter(|(_, last)| *last != number);
        if entry.has(Flag::Span)
            && let Some(parts) = self.spans.remove(&number)
        {
            self.span_blocks -= parts.len();
        }
        if entry.parent != EntryId::NONE {
            self.get_mut(entry.parent).remove_child();
        }
        self.pages.free(number);
        self.len -= 1;
        entry
    }

    /// Removes all entries and frees their memory.
    pub(crate) fn clear(&mut self) {
        *self = Self::new(self.key);
    }

    /// Whether no entry was inserted since it was made or cleared.
    pub(crate) fn is_unused(&self) -> bool {
        self.pages.count() == 0
    }

    /// All numbers from `start` on, also of free entries, which no tier holds.
    pub(crate) fn numbers(&self, start: u32) -> impl Iterator<Item = EntryId> + use<> {
        (start..self.pages.count() as u32).map(EntryId)
    }

    /// The bytes of entries and aliases.
    pub(crate) fn bytes(&self) -> usize {
        self.pages.bytes() + self.aliases.bytes()
    }
}

#[inline]
fn keyed_hash(key: AliasKey, engine: EngineHash) -> AliasHash {
    let product = u128::from(engine.0 ^ key.0) * 0x9E37_79B9_7F4A_7C15;
    AliasHash((product as u64) ^ ((product >> 64) as u64))
}
