//! One pod's bits in the map: setting and clearing them, block by block.
//!
//! Only the holder of the pod's ledger makes a [`Bits`], so a pod's bits have one writer at a time,
//! and whoever compares the pod's incarnation under that lock knows that no late event of an old
//! incarnation can set a bit of a new one. Each change locks one shard; the lines that a list of
//! changes needs are brought into the cache together before the first is made.

use std::hint::black_box;

use wornpath_blocks::BlockHash;

use crate::directory::{Directory, ShardState, View};
use crate::pod::PodSlot;
use crate::sets::{Numbering, Rows, Sets};
use crate::table::{Place, Probe, SHARDS, SetId, Table, better_size, locate, rebuild, write};

/// How many changes are looked ahead: as many misses as a core keeps in flight.
const AHEAD: usize = 16;

/// The writing side of one pod's bits.
pub(crate) struct Bits<'a> {
    sets: &'a Sets,
    tables: &'a [Table; SHARDS],
    rows: Rows<'a>,
    slot: PodSlot,
    /// The last step from one set to another; neighbours on a path mostly take the same. It holds a
    /// use of the set it leads to, lest that be recycled under it.
    step: Option<(SetId, SetId)>,
}

impl<'a> Bits<'a> {
    pub(crate) fn new(
        directory: &'a Directory,
        sets: &'a Sets,
        view: &'a mut View,
        slot: PodSlot,
    ) -> Self {
        let rows = Rows { directory, pages: &mut view.pages };
        Self { sets, tables: &*view.tables, rows, slot, step: None }
    }

    /// Sets the pod's bit on each block, and tells `already` of those that had it.
    pub(crate) fn set(&mut self, blocks: &[BlockHash], mut already: impl FnMut(BlockHash)) {
        for some in blocks.chunks(AHEAD) {
            self.touch(some);
            for block in some {
                if !self.set_one(*block) {
                    already(*block);
                }
            }
        }
        self.forget_step();
    }

    /// Clears the pod's bit on each block; one that does not have it stays as it is.
    pub(crate) fn clear(&mut self, blocks: &[BlockHash]) {
        for some in blocks.chunks(AHEAD) {
            self.touch(some);
            for block in some {
                self.clear_one(*block);
            }
        }
        self.forget_step();
    }

    fn touch(&self, blocks: &[BlockHash]) {
        let peek = |block: &BlockHash| Probe::new(self.tables, *block).peek();
        black_box(blocks.iter().map(peek).fold(0, |sum, seen| sum ^ seen));
    }

    #[inline]
    fn set_one(&mut self, block: BlockHash) -> bool {
        let place = Place::of(block);
        let directory = self.rows.directory;
        let mut shard = directory.shard(place.shard);
        let spot = loop {
            match locate(&shard.table, place) {
                Some(spot) => break spot,
                None => resize(directory, place.shard, &mut shard),
            }
        };
        let old = spot.set;
        if old == SetId::EMPTY {
            write(&shard.table, &spot, Numbering::single(self.slot));
            shard.len += 1;
            if better_size(&shard.table, shard.len).is_some() {
                resize(directory, place.shard, &mut shard);
            }
            return true;
        }
        if self.rows.contains(old, self.slot) {
            return false;
        }
        let new = self.take_step(old, Sets::with);
        write(&shard.table, &spot, new);
        drop(shard);
        self.sets.release(&mut self.rows, old);
        true
    }

    #[inline]
    fn clear_one(&mut self, block: BlockHash) {
        let place = Place::of(block);
        let directory = self.rows.directory;
        let mut shard = directory.shard(place.shard);
        let Some(spot) = locate(&shard.table, place) else { return };
        let old = spot.set;
        if old == Numbering::single(self.slot) {
            write(&shard.table, &spot, SetId::EMPTY);
            shard.len -= 1;
            if better_size(&shard.table, shard.len).is_some() {
                resize(directory, place.shard, &mut shard);
            }
            return;
        }
        if !self.rows.contains(old, self.slot) {
            return;
        }
        let new = self.take_step(old, Sets::without);
        write(&shard.table, &spot, new);
        drop(shard);
        self.sets.release(&mut self.rows, old);
    }

    /// The set that `old` becomes; one use of it is the caller's.
    fn take_step(
        &mut self,
        old: SetId,
        change: fn(&Sets, &mut Rows<'_>, SetId, PodSlot) -> SetId,
    ) -> SetId {
        if let Some((from, to)) = self.step
            && from == old
        {
            Sets::retain(&mut self.rows, to);
            return to;
        }
        let new = change(self.sets, &mut self.rows, old, self.slot);
        self.forget_step();
        Sets::retain(&mut self.rows, new);
        self.step = Some((old, new));
        new
    }

    fn forget_step(&mut self) {
        if let Some((_, to)) = self.step.take() {
            self.sets.release(&mut self.rows, to);
        }
    }
}

/// Rebuilds a shard's table when its size no longer fits. Costs O(the shard), amortized O(1).
#[cold]
fn resize(directory: &Directory, shard: usize, state: &mut ShardState) {
    if let Some(buckets) = better_size(&state.table, state.len) {
        let table = rebuild(&state.table, buckets);
        directory.replace_table(shard, state, table);
    }
}
