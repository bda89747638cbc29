//! One pod's bits in the map: setting and clearing them, block by block.
//!
//! Only the holder of the pod's ledger makes a [`PodBits`], so a pod's bits have one writer at a time,
//! and whoever compares the pod's incarnation under that lock knows that no late event of an old
//! incarnation can set a bit of a new one. Each change locks one shard; the lines that a list of
//! changes needs are brought into the cache together before the first is made.

use wornpath_blocks::BlockHash;

use crate::directory::{Directory, ShardGuard, Tables, View};
use crate::pod::PodSlot;
use crate::sets::{Numbering, Rows, Sets};
use crate::table::{
    Probe, SetId, TableKey, better_size, change, insert, is_crowded, is_deserted, locate, rebuild,
    remove,
};

/// How many changes are looked ahead: as many misses as a core keeps in flight.
const AHEAD: usize = 16;

/// The writing side of one pod's bits.
pub(crate) struct Bits<'a> {
    sets: &'a Sets,
    tables: &'a mut Tables,
    rows: Rows<'a>,
    slot: PodSlot,
    step: BitStep,
}

/// The last step from one set to another; neighbours on a path mostly take the same. Uses are counted
/// by the step, not by the block: it takes many of the set it leads to in advance, and gives those of
/// the set it leads from back at its end.
#[derive(Default)]
struct BitStep {
    from: SetId,
    to: SetId,
    taken: u32,
    /// Uses of `to` that no block has yet.
    ahead: u32,
}

/// Uses that are taken in advance.
const IN_ADVANCE: u32 = 16;

impl<'a> Bits<'a> {
    pub(crate) fn new(
        directory: &'a Directory,
        sets: &'a Sets,
        view: &'a mut View,
        slot: PodSlot,
    ) -> Self {
        let rows = Rows { directory, pages: &mut view.pages };
        Self { sets, tables: &mut view.tables, rows, slot, step: BitStep::default() }
    }

    /// Sets the pod's bit on each block, and tells `already` of those that had it.
    pub(crate) fn set(&mut self, blocks: &[BlockHash], mut already: impl FnMut(BlockHash)) {
        for some in blocks.chunks(AHEAD) {
            self.prefetch(some);
            for block in some {
                if !self.set_one(*block) {
                    already(*block);
                }
            }
        }
        self.end_step();
    }

    /// Clears the pod's bit on each block; one that does not have it stays as it is.
    pub(crate) fn clear(&mut self, blocks: &[BlockHash]) {
        for some in blocks.chunks(AHEAD) {
            self.prefetch(some);
            for block in some {
                self.clear_one(*block);
            }
        }
        self.end_step();
    }

    /// Whether the pod's bit is set on a block.
    pub(crate) fn has(&mut self, block: BlockHash) -> bool {
        let place = TableKey::of(block);
        let _turn = self.tables.turn(self.rows.directory, place.shard);
        let set = locate(&self.tables[place.shard], place).set;
        set != SetId::EMPTY && self.rows.contains(set, self.slot)
    }

    fn prefetch(&self, blocks: &[BlockHash]) {
        for block in blocks {
            self.rows.directory.prefetch_turn(TableKey::of(*block).shard);
            Probe::new(self.tables, *block).prefetch_to_write();
        }
    }

    #[inline]
    fn set_one(&mut self, block: BlockHash) -> bool {
        let place = TableKey::of(block);
        let turn = self.tables.turn(self.rows.directory, place.shard);
        let table = &self.tables[place.shard];
        let spot = locate(table, place);
        let old = spot.set;
        if old == SetId::EMPTY {
            insert(table, &spot, Numbering::single(self.slot));
            let len = turn.one_more();
            if is_crowded(table, len) {
                self.resize(place.shard, turn, len);
            }
            return true;
        }
        // A step is never taken from a set with the pod in it.
        if old != self.step.from && self.rows.contains(old, self.slot) {
            return false;
        }
        let new = self.take_step(old, Sets::with);
        change(&self.tables[place.shard], &spot, new);
        true
    }

    #[inline]
    fn clear_one(&mut self, block: BlockHash) {
        let place = TableKey::of(block);
        let turn = self.tables.turn(self.rows.directory, place.shard);
        let table = &self.tables[place.shard];
        let spot = locate(table, place);
        let old = spot.set;
        if old == SetId::EMPTY {
            return;
        }
        if old == Numbering::single(self.slot) {
            remove(table, &spot);
            let len = turn.one_less();
            if is_deserted(table, len) {
                self.resize(place.shard, turn, len);
            }
            return;
        }
        if old != self.step.from && !self.rows.contains(old, self.slot) {
            return;
        }
        let new = self.take_step(old, Sets::without);
        change(&self.tables[place.shard], &spot, new);
    }

    /// The set that `old` becomes. One use of it is the block's, and one of `old` no longer is.
    #[inline]
    fn take_step(
        &mut self,
        old: SetId,
        change: fn(&Sets, &mut Rows<'_>, SetId, PodSlot) -> SetId,
    ) -> SetId {
        if old != self.step.from || self.step.ahead == 0 {
            self.begin_step(old, change);
        }
        self.step.ahead -= 1;
        self.step.taken += 1;
        self.step.to
    }

    #[cold]
    fn begin_step(
        &mut self,
        old: SetId,
        change: fn(&Sets, &mut Rows<'_>, SetId, PodSlot) -> SetId,
    ) {
        let new = change(self.sets, &mut self.rows, old, self.slot);
        Sets::retain(&mut self.rows, new, IN_ADVANCE - 1);
        self.end_step();
        self.step = BitStep { from: old, to: new, taken: 0, ahead: IN_ADVANCE };
    }

    fn end_step(&mut self) {
        let BitStep { from, to, taken, ahead } = std::mem::take(&mut self.step);
        self.sets.release(&mut self.rows, from, taken);
        self.sets.release(&mut self.rows, to, ahead);
    }

    /// Rebuilds a shard's table whose size no longer fits. Costs O(the shard), amortized O(1).
    #[cold]
    #[inline(never)]
    fn resize(&mut self, shard: usize, mut turn: ShardGuard<'_>, len: usize) {
        let old = &self.tables[shard];
        let new = rebuild(old, better_size(old.len(), len));
        self.tables.replace(self.rows.directory, shard, &mut turn, new);
    }
}
