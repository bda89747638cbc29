//! Who shares what: the inner nodes of the prefix forest.
//!
//! Read off a sorted order in one pass with a stack, as the intervals of a suffix array's common prefixes are
//! (Abouelhoda, Kurtz, Ohlebusch 2004). Only prefixes that two or more requests share are groups, so there are
//! fewer groups than requests.

use std::ops::Range;

/// A group's number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct GroupId(pub u32);

impl GroupId {
    /// As an index.
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// Requests that share a prefix, which is as long as all of them allow.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PromptGroup {
    /// Blocks that all of them share.
    pub blocks: usize,
    /// Their places in the order.
    pub places: Range<usize>,
    /// The group of a shorter prefix in which this one lies.
    pub parent: Option<GroupId>,
}

impl PromptGroup {
    /// Blocks that need not be computed because of this group, beyond those of its parent, `above` blocks.
    #[must_use]
    pub fn saved_blocks(&self, above: usize) -> u64 {
        (self.blocks - above) as u64 * (self.places.len() as u64 - 1)
    }
}

/// All groups of an order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PromptGroups {
    all: Vec<PromptGroup>,
    /// The smallest group around each place.
    of_place: Vec<Option<GroupId>>,
}

impl PromptGroups {
    /// The groups of an order in which each place shares so many blocks with the one before it.
    #[must_use]
    pub fn of(shared: impl ExactSizeIterator<Item = u32>) -> Self {
        let places = shared.len();
        let mut sweep =
            Sweep { all: Vec::new(), open: Vec::new(), of_place: vec![None; places], last: 0 };
        for (place, shared) in shared.enumerate().skip(1) {
            sweep.step(place, shared as usize);
        }
        if places > 0 {
            sweep.close(places, 0);
        }
        Self { all: sweep.all, of_place: sweep.of_place }
    }

    /// All groups; a parent may come after its children.
    #[must_use]
    pub fn all(&self) -> &[PromptGroup] {
        &self.all
    }

    /// The smallest group around a place.
    #[must_use]
    pub fn of_place(&self, place: usize) -> Option<GroupId> {
        self.of_place[place]
    }

    /// Blocks of a group's parent.
    #[must_use]
    pub fn blocks_above(&self, group: &PromptGroup) -> usize {
        group.parent.map_or(0, |parent| self.all[parent.index()].blocks)
    }

    /// The `most` groups that save the most blocks, the best first.
    #[must_use]
    pub fn biggest(&self, most: usize) -> Vec<GroupId> {
        let saved = |id: &GroupId| {
            let group = &self.all[id.index()];
            group.saved_blocks(self.blocks_above(group))
        };
        let mut ids: Vec<_> = (0..self.all.len() as u32).map(GroupId).collect();
        ids.sort_by_key(|id| (std::cmp::Reverse(saved(id)), self.all[id.index()].places.start));
        ids.truncate(most);
        ids
    }
}

struct Sweep {
    all: Vec<PromptGroup>,
    /// Groups whose end has not been seen, each inside the one before it.
    open: Vec<GroupId>,
    of_place: Vec<Option<GroupId>>,
    /// Blocks shared at the step before.
    last: usize,
}

impl Sweep {
    fn step(&mut self, place: usize, shared: usize) {
        let closed = self.close(place, shared);
        let top = self.open.last().map_or(0, |id| self.all[id.index()].blocks);
        if shared > top {
            let id = GroupId(self.all.len() as u32);
            let start = closed.map_or(place - 1, |id| self.all[id.index()].places.start);
            let parent = self.open.last().copied();
            self.all.push(PromptGroup { blocks: shared, places: start..place, parent });
            self.open.push(id);
        }
        if let (Some(closed), Some(parent)) = (closed, self.open.last()) {
            self.all[closed.index()].parent = Some(*parent);
        }
        if shared > 0 {
            let around = self.open.last().copied();
            self.of_place[place] = around;
            if shared >= self.last {
                self.of_place[place - 1] = around;
            }
        }
        self.last = shared;
    }

    /// Ends the groups that share more than `shared` blocks; the last of them is the outermost.
    fn close(&mut self, end: usize, shared: usize) -> Option<GroupId> {
        let mut closed = None;
        while let Some(id) = self.open.last().copied() {
            if self.all[id.index()].blocks <= shared {
                break;
            }
            self.open.pop();
            self.all[id.index()].places.end = end;
            closed = Some(id);
        }
        closed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_nest_as_prefixes_do() {
        // a, ab, abc, abd, x, xy: what neighbours share, in blocks.
        let groups = PromptGroups::of([0, 1, 2, 2, 0, 1].into_iter());
        let found: Vec<_> =
            groups.all().iter().map(|group| (group.blocks, group.places.clone())).collect();
        assert_eq!(found, [(1, 0..4), (2, 1..4), (1, 4..6)]);
        assert_eq!(groups.all()[1].parent, Some(GroupId(0)));
        let around: Vec<_> = (0..6).map(|place| groups.of_place(place).unwrap().0).collect();
        assert_eq!(around, [0, 1, 1, 1, 2, 2]);
    }

    #[test]
    fn a_group_found_after_its_child_becomes_its_parent() {
        let groups = PromptGroups::of([0, 3, 1, 0].into_iter());
        let found: Vec<_> = groups
            .all()
            .iter()
            .map(|group| (group.blocks, group.places.clone(), group.parent))
            .collect();
        assert_eq!(found, [(3, 0..2, Some(GroupId(1))), (1, 0..3, None)]);
        assert_eq!(groups.of_place(3), None);
        assert_eq!(groups.biggest(1), [GroupId(0)], "two blocks once; then one block twice");
    }

    #[test]
    fn what_groups_save_is_what_neighbours_share() {
        let shared = [0_u32, 4, 4, 2, 7, 7, 0, 0, 3, 5, 1];
        let groups = PromptGroups::of(shared.into_iter());
        let saved: u64 =
            groups.all().iter().map(|group| group.saved_blocks(groups.blocks_above(group))).sum();
        assert_eq!(saved, shared.iter().map(|shared| u64::from(*shared)).sum::<u64>());
    }
}
