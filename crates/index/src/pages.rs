//! The memory of a pod's entries: pages of 64, allocated when one is needed and freed when their
//! last entry is.
//!
//! An entry keeps its number while it exists, so pages do not move. Each page has a list of its own
//! free entries, so that any page can be freed; a new entry takes the page that had room last.

use wornpath_blocks::BlockHash;

use crate::alias_table::NUMBERS;
use crate::entry::{EntryId, SlabEntry};
use crate::event::EngineHash;

/// Entries in a page: a pod grows by one page at a time, not by doubling.
const PAGE: usize = 64;

type Page = [SlabEntry; PAGE];

/// A free entry; [`SlabEntry::parent`] is the position of the next one in its page.
const FREE: SlabEntry =
    SlabEntry { engine: EngineHash(0), block: BlockHash(0), parent: EntryId::NONE, bits: 0 };

/// What is free in a page.
#[derive(Clone, Copy, Debug)]
struct PageRoom {
    used: u8,
    /// The position of the first free entry, if there is one.
    first: u8,
}

#[derive(Debug, Default)]
pub(crate) struct EntryPages {
    /// `None` for pages without memory.
    pages: Vec<Option<Box<Page>>>,
    /// Pages with memory.
    filled: usize,
    rooms: Vec<PageRoom>,
    /// Pages with free entries, each once; the last is used next.
    open: Vec<u32>,
    /// Pages without memory that are not in `open`.
    freed: Vec<u32>,
    /// The page that became empty last keeps its memory, so that a store and a removal in turn
    /// allocate nothing. It may have entries again.
    spare: Option<u32>,
}

impl EntryPages {
    #[inline]
    pub(crate) fn get(&self, number: EntryId) -> &SlabEntry {
        match &self.pages[number.position() / PAGE] {
            Some(page) => &page[number.position() % PAGE],
            None => &FREE,
        }
    }

    /// An entry in use.
    #[inline]
    pub(crate) fn get_mut(&mut self, number: EntryId) -> &mut SlabEntry {
        let page = &mut self.pages[number.position() / PAGE];
        &mut page.as_mut().expect("pages with entries have memory")[number.position() % PAGE]
    }

    /// The number of the next entry; its page has memory. There must be one.
    #[inline]
    pub(crate) fn next_free(&mut self) -> EntryId {
        if let Some(open) = self.open.last()
            && self.pages[*open as usize].is_some()
        {
            let first = self.rooms[*open as usize].first;
            return EntryId(open * PAGE as u32 + u32::from(first));
        }
        self.open_page()
    }

    /// Gives memory to a page, and returns its first number.
    #[cold]
    #[inline(never)]
    fn open_page(&mut self) -> EntryId {
        // Open pages with entries come first, so that those without stay without.
        while let Some(open) = self.open.last().copied() {
            if self.pages[open as usize].is_some() {
                return self.next_free();
            }
            self.open.pop();
            self.freed.push(open);
        }
        let page = self.freed.pop().unwrap_or(self.pages.len() as u32);
        if page as usize == self.pages.len() {
            self.pages.push(None);
            self.rooms.push(PageRoom { used: 0, first: 0 });
        }
        let mut entries = Box::new([FREE; PAGE]);
        for (next, entry) in (1..).zip(entries.iter_mut()) {
            entry.parent = EntryId(next);
        }
        self.filled += 1;
        self.pages[page as usize] = Some(entries);
        self.rooms[page as usize] = PageRoom { used: 0, first: 0 };
        self.open.push(page);
        EntryId(page * PAGE as u32)
    }

    /// Uses the entry that [`Self::next_free`] returned.
    #[inline]
    pub(crate) fn put(&mut self, number: EntryId, entry: SlabEntry) {
        let slot = self.get_mut(number);
        let next = slot.parent.0 as u8;
        *slot = entry;
        let room = &mut self.rooms[number.position() / PAGE];
        room.first = next;
        room.used += 1;
        if usize::from(room.used) == PAGE {
            self.open.pop();
        }
    }

    /// Frees an entry, and its page if that was the last one in it.
    #[inline]
    pub(crate) fn free(&mut self, number: EntryId) {
        let page = number.position() / PAGE;
        let room = self.rooms[page];
        *self.get_mut(number) = SlabEntry { parent: EntryId(room.first.into()), ..FREE };
        let first = (number.position() % PAGE) as u8;
        self.rooms[page] = PageRoom { used: room.used - 1, first };
        if usize::from(room.used) == PAGE {
            self.open.push(page as u32);
        }
        if room.used == 1
            && let Some(spare) = self.spare.replace(page as u32)
            && spare as usize != page
        {
            self.free_page(spare as usize);
        }
    }

    /// Frees the memory of a page if it has no entries.
    #[cold]
    #[inline(never)]
    fn free_page(&mut self, page: usize) {
        if self.rooms[page].used == 0 && self.pages[page].take().is_some() {
            self.filled -= 1;
        }
    }

    /// Whether no number is left for another entry.
    pub(crate) fn is_full(&self) -> bool {
        self.open.is_empty() && self.freed.is_empty() && self.count() == NUMBERS as usize
    }

    /// Whether there are `more` numbers that were never used.
    pub(crate) fn has_numbers(&self, more: usize) -> bool {
        self.count() + more <= NUMBERS as usize
    }

    /// One more than the highest number that was ever used, or a little more.
    pub(crate) fn count(&self) -> usize {
        self.pages.len() * PAGE
    }

    pub(crate) fn bytes(&self) -> usize {
        self.filled * size_of::<Page>() + self.pages.capacity() * size_of::<Option<Box<Page>>>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entry::IN_USE;

    fn add(pages: &mut EntryPages, engine: u64) -> EntryId {
        let number = pages.next_free();
        let entry = SlabEntry { engine: EngineHash(engine), bits: IN_USE, ..FREE };
        pages.put(number, entry);
        number
    }

    #[test]
    fn numbers_stay_while_pages_come_and_go() {
        let mut pages = EntryPages::default();
        let mut held: Vec<(EntryId, u64)> = Vec::new();
        let mut state = 3u64;
        for at in 0..40_000_u64 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            // The number of entries rises to about 2,000 and falls again.
            let grows = at / 4_000 % 2 == 0;
            if held.is_empty() || (state >> 33) % 4 < if grows { 3 } else { 1 } {
                let number = add(&mut pages, at);
                assert!(held.iter().all(|(other, _)| *other != number));
                held.push((number, at));
            } else {
                let gone = held.swap_remove((state >> 40) as usize % held.len());
                pages.free(gone.0);
                assert!(!pages.get(gone.0).is_used());
            }
        }
        assert!(held.iter().all(|(number, engine)| pages.get(*number).engine.0 == *engine));
        let used = (0..pages.count() as u32).filter(|it| pages.get(EntryId(*it)).is_used());
        assert_eq!(used.count(), held.len());
        held.drain(..).for_each(|(number, _)| pages.free(number));
        assert_eq!(pages.filled, 1, "the spare one");
        let numbers = pages.count();
        (0..numbers as u64).for_each(|engine| _ = add(&mut pages, engine));
        assert_eq!(pages.count(), numbers, "freed numbers are used again");
    }
}
