//! A pod's blocks under the engine's own hashes, with the parent of each.
//!
//! An entry has 24 bytes and keeps its number while it exists, so that a child stores its parent in
//! four. An entry whose block no tier holds any more, but which has children, stays as a *hole*: it
//! shows that the pod's prefix is broken there, keeps the alias in case the block comes back, and
//! is freed with its last child.

use std::collections::HashMap;

use wornpath_blocks::BlockHash;

use crate::alias_table::{AliasHash, AliasTable, NUMBERS};
use crate::event::{EngineHash, Tier};

/// Number of an entry.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct EntryId(u32);

impl EntryId {
    /// No entry.
    pub(crate) const NONE: EntryId = EntryId(u32::MAX);

    /// The number as an array index.
    pub(crate) fn position(self) -> usize {
        self.0 as usize
    }
}

/// Entries in a page: a pod grows by one page at a time, not by doubling.
const PAGE: usize = 64;

const CHILDREN_SHIFT: u32 = 12;
const MAX_CHILDREN: u32 = u32::MAX >> CHILDREN_SHIFT;
const TIERS: u32 = 0xf;
const SEEN_SHIFT: u32 = 4;

/// Properties of an entry.
#[derive(Clone, Copy)]
pub(crate) enum Flag {
    /// [`crate::replicas`] stores more about its copies.
    Extra = 1 << 8,
    /// It covers several blocks of the index.
    Span = 1 << 9,
    /// Its parent is unknown.
    Unlinked = 1 << 10,
}

/// Set in every used entry.
const IN_USE: u32 = 1 << 11;

/// An entry with one copy on the GPU and one child.
const PLAIN_WITH_CHILD: u32 = IN_USE | 1 << Tier::Gpu as u32 | 1 << CHILDREN_SHIFT;

/// One block of one pod.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SlabEntry {
    pub(crate) engine: EngineHash,
    pub(crate) block: BlockHash,
    /// Its parent; in a free entry, the next free entry.
    pub(crate) parent: EntryId,
    /// children (20 bits, sticky at the top) · flags · seen in a snapshot (4) · tiers (4)
    bits: u32,
}

impl SlabEntry {
    /// Whether it represents a block, held or not.
    pub(crate) fn is_used(&self) -> bool {
        self.bits & IN_USE != 0
    }

    pub(crate) fn is_held(&self) -> bool {
        self.bits & TIERS != 0
    }

    pub(crate) fn is_held_in(&self, tier: Tier) -> bool {
        self.bits & 1 << tier as u32 != 0
    }

    pub(crate) fn set_held(&mut self, tier: Tier, held: bool) {
        let bit = 1 << tier as u32;
        self.bits = if held { self.bits | bit } else { self.bits & !bit };
    }

    /// Whether its only copy is on the GPU.
    pub(crate) fn is_plain(&self) -> bool {
        self.bits & TIERS == 1 << Tier::Gpu as u32
    }

    pub(crate) fn has(&self, flag: Flag) -> bool {
        self.bits & flag as u32 != 0
    }

    pub(crate) fn mark(&mut self, flag: Flag) {
        self.bits |= flag as u32;
    }

    /// Records that a snapshot lists a copy on `tier`; `true` for the first one.
    pub(crate) fn mark_seen(&mut self, tier: Tier) -> bool {
        let before = self.bits;
        self.bits |= 1 << (tier as u32 + SEEN_SHIFT);
        self.bits != before
    }

    /// The tiers that hold it but that the snapshot did not list; resets what the snapshot listed.
    pub(crate) fn take_unseen(&mut self) -> impl Iterator<Item = Tier> + use<> {
        let unseen = self.bits & !(self.bits >> SEEN_SHIFT) & TIERS;
        self.bits &= !(TIERS << SEEN_SHIFT);
        Tier::ALL.into_iter().filter(move |tier| unseen & 1 << *tier as u32 != 0)
    }

    pub(crate) fn has_children(&self) -> bool {
        self.bits >> CHILDREN_SHIFT != 0
    }

    /// Whether it is not held, but has children.
    pub(crate) fn is_hole(&self) -> bool {
        self.is_used() && !self.is_held() && self.has_children()
    }

    fn add_child(&mut self) {
        if self.bits >> CHILDREN_SHIFT < MAX_CHILDREN {
            self.bits += 1 << CHILDREN_SHIFT;
        }
    }

    fn remove_child(&mut self) {
        if self.bits >> CHILDREN_SHIFT < MAX_CHILDREN {
            self.bits -= 1 << CHILDREN_SHIFT;
        }
    }
}

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
    #[expect(clippy::vec_box, reason = "pages are large and must not move when the list grows")]
    pages: Vec<Box<[SlabEntry; PAGE]>>,
    used: u32,
    free: EntryId,
    len: usize,
    aliases: AliasTable,
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
            pages: Vec::new(),
            used: 0,
            free: EntryId::NONE,
            len: 0,
            aliases: AliasTable::default(),
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
        &self.pages[number.0 as usize / PAGE][number.0 as usize % PAGE]
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, number: EntryId) -> &mut SlabEntry {
        &mut self.pages[number.0 as usize / PAGE][number.0 as usize % PAGE]
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
        self.free == EntryId::NONE && self.used == NUMBERS
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
        while !self.aliases.has_capacity(engines.len()) {
            self.grow_aliases();
        }
        let mut added = 0;
        let mut last = parent;
        for (engine, block) in engines.iter().zip(blocks) {
            let hash = self.hash(*engine);
            let number = self.next_free();
            if !self.aliases.add_new(hash, number.0) {
                if self.find(*engine).is_some() {
                    break;
                }
                self.aliases.put(hash, number.0);
            }
            self.take(number);
            *self.get_mut(number) =
                SlabEntry { engine: *engine, block: *block, parent: last, bits: PLAIN_WITH_CHILD };
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
        self.used as usize + more <= NUMBERS as usize
    }

    #[inline]
    fn insert_entry(&mut self, entry: SlabEntry) -> EntryId {
        let SlabEntry { engine, parent, .. } = entry;
        if !self.aliases.has_capacity(1) {
            self.grow_aliases();
        }
        let number = self.next_free();
        self.take(number);
        *self.get_mut(number) = entry;
        if parent != EntryId::NONE {
            self.get_mut(parent).add_child();
        }
        self.aliases.put(self.hash(engine), number.0);
        self.len += 1;
        number
    }

    #[cold]
    #[inline(never)]
    fn grow_aliases(&mut self) {
        let Self { aliases, pages, key, .. } = self;
        let mut larger = aliases.larger();
        let mut number = 0;
        for page in pages {
            for entry in page.iter() {
                if entry.is_used() {
                    larger.put(keyed_hash(*key, entry.engine), number);
                }
                number += 1;
            }
        }
        *aliases = larger;
    }

    #[inline]
    fn hash(&self, engine: EngineHash) -> AliasHash {
        keyed_hash(self.key, engine)
    }

    /// The number of the next entry; its page exists.
    #[inline]
    fn next_free(&mut self) -> EntryId {
        if self.free != EntryId::NONE {
            return self.free;
        }
        if self.used as usize == self.pages.len() * PAGE {
            self.add_page();
        }
        EntryId(self.used)
    }

    /// Marks the number that [`Self::next_free`] returned as used.
    #[inline]
    fn take(&mut self, number: EntryId) {
        if self.free == number {
            self.free = self.get(number).parent;
        } else {
            self.used += 1;
        }
    }

    #[cold]
    #[inline(never)]
    fn add_page(&mut self) {
        let nothing = SlabEntry {
            engine: EngineHash(0),
            block: BlockHash(0),
            parent: EntryId::NONE,
            bits: 0,
        };
        self.pages.push(Box::new([nothing; PAGE]));
    }

    /// Removes an entry without children, also from its parent's count.
    pub(crate) fn remove(&mut self, number: EntryId) -> SlabEntry {
        let entry = *self.get(number);
        let Self { aliases, pages, key, .. } = self;
        let hash_of = |other: u32| {
            keyed_hash(*key, pages[other as usize / PAGE][other as usize % PAGE].engine)
        };
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
        let free = self.free;
        let slot = self.get_mut(number);
        slot.bits = 0;
        slot.parent = free;
        self.free = number;
        self.len -= 1;
        entry
    }

    /// Removes all entries and frees their memory.
    pub(crate) fn clear(&mut self) {
        *self = Self::new(self.key);
    }

    /// Whether no entry was inserted since it was made or cleared.
    pub(crate) fn is_unused(&self) -> bool {
        self.used == 0
    }

    /// All numbers from `start` that were ever used; no tier holds a free entry.
    pub(crate) fn numbers(&self, start: u32) -> impl Iterator<Item = EntryId> + use<> {
        (start..self.used).map(EntryId)
    }

    /// The bytes of entries and aliases.
    pub(crate) fn bytes(&self) -> usize {
        self.pages.len() * size_of::<[SlabEntry; PAGE]>() + self.aliases.bytes()
    }
}

#[inline]
fn keyed_hash(key: AliasKey, engine: EngineHash) -> AliasHash {
    let product = u128::from(engine.0 ^ key.0) * 0x9E37_79B9_7F4A_7C15;
    AliasHash((product as u64) ^ ((product >> 64) as u64))
}
