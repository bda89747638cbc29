//! Requests that share a prefix: the inner nodes of the prefix forest.
//!
//! One pass over a sorted order with a stack finds them, like the intervals of a suffix array's
//! common prefixes (Abouelhoda, Kurtz, Ohlebusch 2004). Only prefixes that two or more requests
//! share are groups, so there are fewer groups than requests.

use std::ops::Range;

/// A group's number: its position in [`PromptGroups::all`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct GroupId(pub u32);

impl GroupId {
    /// The number as an array index.
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// Requests that share a prefix: the longest one that all of them have.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PromptGroup {
    /// Blocks of the shared prefix.
    pub blocks: usize,
    /// The positions of its requests in the order.
    pub positions: Range<usize>,
    /// The group of a shorter prefix that contains this group.
    pub parent: Option<GroupId>,
}

impl PromptGroup {
    /// Blocks that need not be computed because of this group, beyond the `above` blocks of its
    /// parent.
    #[must_use]
    pub fn saved_blocks(&self, above: usize) -> u64 {
        (self.blocks - above) as u64 * (self.positions.len() as u64 - 1)
    }
}

/// All groups of an order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PromptGroups {
    all: Vec<PromptGroup>,
    /// The smallest group around each position.
    by_position: Vec<Option<GroupId>>,
}

impl PromptGroups {
    /// The groups of an order; `shared` is the number of blocks that each position shares with the
    /// one before it.
    #[must_use]
    pub fn of(shared: impl ExactSizeIterator<Item = u32>) -> Self {
        let positions = shared.len();
        let mut sweep = Sweep {
            all: Vec::new(),
            open: Vec::new(),
            by_position: vec![None; positions],
            last: 0,
        };
        for (position, shared) in shared.enumerate().skip(1) {
            sweep.step(position, shared as usize);
        }
        if positions > 0 {
            sweep.close(positions, 0);
        }
        Self { all: sweep.all, by_position: sweep.by_position }
    }

    /// All groups; a parent may come after its children.
    #[must_use]
    pub fn all(&self) -> &[PromptGroup] {
        &self.all
    }

    /// The smallest group that contains a position.
    #[must_use]
    pub fn at_position(&self, position: usize) -> Option<GroupId> {
        self.by_position[position]
    }

    /// Blocks of a group's parent.
    #[must_use]
    pub fn blocks_above(&self, group: &PromptGroup) -> usize {
        group.parent.map_or(0, |parent| self.all[parent.index()].blocks)
    }

    /// The `limit` groups that save the most blocks, the best first.
    #[must_use]
    pub fn biggest(&self, limit: usize) -> Vec<GroupId> {
        let saved = |id: &GroupId| {
            let group = &self.all[id.index()];
            group.saved_blocks(self.blocks_above(group))
        };
        let mut ids: Vec<_> = (0..self.all.len() as u32).map(GroupId).collect();
        ids.sort_by_key(|id| (std::cmp::Reverse(saved(id)), self.all[id.index()].positions.start));
        ids.truncate(limit);
        ids
    }
}

struct Sweep {
    all: Vec<PromptGroup>,
    /// Groups whose end the sweep has not reached, each inside the one before it.
    open: Vec<GroupId>,
    by_position: Vec<Option<GroupId>>,
    /// Blocks shared at the previous step.
    last: usize,
}

impl Sweep {
    fn step(&mut self, position: usize, shared: usize) {
        let closed = self.close(position, shared);
        let top = self.open.last().map_or(0, |id| self.all[id.index()].blocks);
        if shared > top {
            let id = GroupId(self.all.len() as u32);
            let start = closed.map_or(position - 1, |id| self.all[id.index()].positions.start);
            let parent = self.open.last().copied();
            self.all.push(PromptGroup { blocks: shared, positions: start..position, parent });
            self.open.push(id);
        }
        if let (Some(closed), Some(parent)) = (closed, self.open.last()) {
            self.all[closed.index()].parent = Some(*parent);
        }
        if shared > 0 {
            let around = self.open.last().copied();
            self.by_position[position] = around;
            if shared >= self.last {
                self.by_position[position - 1] = around;
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
            self.all[id.index()].positions.end = end;
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
            groups.all().iter().map(|group| (group.blocks, group.positions.clone())).collect();
        assert_eq!(found, [(1, 0..4), (2, 1..4), (1, 4..6)]);
        assert_eq!(groups.all()[1].parent, Some(GroupId(0)));
        let around: Vec<_> =
            (0..6).map(|position| groups.at_position(position).unwrap().0).collect();
        assert_eq!(around, [0, 1, 1, 1, 2, 2]);
    }

    #[test]
    fn a_group_found_after_its_child_becomes_its_parent() {
        let groups = PromptGroups::of([0, 3, 1, 0].into_iter());
        let found: Vec<_> = groups
            .all()
            .iter()
            .map(|group| (group.blocks, group.positions.clone(), group.parent))
            .collect();
        assert_eq!(found, [(3, 0..2, Some(GroupId(1))), (1, 0..3, None)]);
        assert_eq!(groups.at_position(3), None);
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
