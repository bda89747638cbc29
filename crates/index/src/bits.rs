//! Sets and clears one pod's bits in the table, block by block.
//!
//! Only the holder of the pod's ledger lock creates a [`Bits`], so a pod's bits have one writer at
//! a time; since the holder compares the pod's incarnation under that lock, no late event of an old
//! incarnation can set a bit of a new one. Each change locks one shard; the cache lines of a list
//! of changes are prefetched together before the first change.

use wornpath_blocks::BlockHash;

use crate::directory::{Directory, Numbering, ShardGuard, Tables, View};
use crate::pod::PodSlot;
use crate::sets::{Rows, Sets};
use crate::table::{
    Probe, SetId, TableKey, better_size, change, insert, is_crowded, is_sparse, locate, rebuild,
    remove,
};

/// Changes that are prefetched together: as many misses as a core keeps in flight.
const PREFETCH_DISTANCE: usize = 16;

/// The writing side of one pod's bits.
pub(crate) struct Bits<'a> {
    sets: &'a Sets,
    tables: &'a mut Tables,
    rows: Rows<'a>,
    slot: PodSlot,
    transition: Transition,
}

/// The last transition from one set to another; neighbours on a path mostly make the same one. Uses
/// are counted per transition, not per block: it acquires many uses of the new set in advance and
/// returns those of the old set at its end.
#[derive(Default)]
struct Transition {
    from: SetId,
    to: SetId,
    /// Blocks that made the transition.
    blocks: u32,
    /// Acquired uses of `to` that no block owns yet.
    spare: u32,
}

/// Uses that a transition acquires in advance.
const IN_ADVANCE: u32 = 16;

impl<'a> Bits<'a> {
    pub(crate) fn new(
        directory: &'a Directory,
        sets: &'a Sets,
        view: &'a mut View,
        slot: PodSlot,
    ) -> Self {
        let rows = Rows { directory, pages: &mut view.pages };
        Self { sets, tables: &mut view.tables, rows, slot, transition: Transition::default() }
    }

    /// Sets the pod's bit on each block; calls `already` for those that had it.
    pub(crate) fn set(&mut self, blocks: &[BlockHash], mut already: impl FnMut(BlockHash)) {
        for some in blocks.chunks(PREFETCH_DISTANCE) {
            self.prefetch(some);
            for block in some {
                if !self.set_one(*block) {
                    already(*block);
                }
            }
        }
        self.end_transition();
    }

    /// Clears the pod's bit on each block that has it.
    pub(crate) fn clear(&mut self, blocks: &[BlockHash]) {
        for some in blocks.chunks(PREFETCH_DISTANCE) {
            self.prefetch(some);
            for block in some {
                self.clear_one(*block);
            }
        }
        self.end_transition();
    }

    /// Whether the pod's bit is set on a block.
    pub(crate) fn has(&mut self, block: BlockHash) -> bool {
        let key = TableKey::of(block);
        let _guard = self.tables.lock_shard(self.rows.directory, key.shard);
        let set = locate(&self.tables[key.shard], key).set;
        set != SetId::EMPTY && self.rows.contains(set, self.slot)
    }

    fn prefetch(&self, blocks: &[BlockHash]) {
        for block in blocks {
            self.rows.directory.prefetch_shard(TableKey::of(*block).shard);
            Probe::new(self.tables, *block).prefetch_to_write();
        }
    }

    #[inline]
    fn set_one(&mut self, block: BlockHash) -> bool {
        let key = TableKey::of(block);
        let guard = self.tables.lock_shard(self.rows.directory, key.shard);
        let table = &self.tables[key.shard];
        let slot = locate(table, key);
        let old = slot.set;
        if old == SetId::EMPTY {
            insert(table, &slot, Numbering::single(self.slot));
            let len = guard.add_entry();
            if is_crowded(table, len) {
                self.resize(key.shard, guard, len);
            }
            return true;
        }
        // No transition of `set` starts at a set that contains the pod.
        if old != self.transition.from && self.rows.contains(old, self.slot) {
            return false;
        }
        let new = self.follow_transition(old, Sets::with);
        change(&self.tables[key.shard], &slot, new);
        true
    }

    #[inline]
    fn clear_one(&mut self, block: BlockHash) {
        let key = TableKey::of(block);
        let guard = self.tables.lock_shard(self.rows.directory, key.shard);
        let table = &self.tables[key.shard];
        let slot = locate(table, key);
        let old = slot.set;
        if old == SetId::EMPTY {
            return;
        }
        if old == Numbering::single(self.slot) {
            remove(table, &slot);
            let len = guard.remove_entry();
            if is_sparse(table, len) {
                self.resize(key.shard, guard, len);
            }
            return;
        }
        if old != self.transition.from && !self.rows.contains(old, self.slot) {
            return;
        }
        let new = self.follow_transition(old, Sets::without);
        change(&self.tables[key.shard], &slot, new);
    }

    /// The set that `old` becomes. The block owns one use of it, and no longer one of `old`.
    #[inline]
    fn follow_transition(
        &mut self,
        old: SetId,
        change: fn(&Sets, &mut Rows<'_>, SetId, PodSlot) -> SetId,
    ) -> SetId {
        if old != self.transition.from || self.transition.spare == 0 {
            self.begin_transition(old, change);
        }
        self.transition.spare -= 1;
        self.transition.blocks += 1;
        self.transition.to
    }

    #[cold]
    fn begin_transition(
        &mut self,
        old: SetId,
        change: fn(&Sets, &mut Rows<'_>, SetId, PodSlot) -> SetId,
    ) {
        let new = change(self.sets, &mut self.rows, old, self.slot);
        Sets::retain(&mut self.rows, new, IN_ADVANCE - 1);
        self.end_transition();
        self.transition = Transition { from: old, to: new, blocks: 0, spare: IN_ADVANCE };
    }

    fn end_transition(&mut self) {
        let Transition { from, to, blocks, spare } = std::mem::take(&mut self.transition);
        self.sets.count_shared(self.rows.directory.numbering, from, to, blocks);
        self.sets.release(&mut self.rows, from, blocks);
        self.sets.release(&mut self.rows, to, spare);
    }

    /// Rebuilds a shard's table in a fitting size. Costs O(shard), amortized O(1).
    #[cold]
    #[inline(never)]
    fn resize(&mut self, shard: usize, mut guard: ShardGuard<'_>, len: usize) {
        let old = &self.tables[shard];
        let new = rebuild(old, better_size(old.len(), len));
        self.tables.replace(self.rows.directory, shard, &mut guard, new);
    }
}
