//! A set of stops as disjoint ranges of the route: a pod's queued stops, or the stops it was given.
//!
//! The queued stops are one range as long as the run follows the plan. Requests that are held back,
//! have failed or come from a lost pod split it; neighbouring ranges merge again.

use std::collections::BTreeMap;
use std::ops::Range;

/// The end of each range, by its start.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct RangeSet(BTreeMap<usize, usize>);

impl RangeSet {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn contains(&self, position: usize) -> bool {
        self.0.range(..=position).next_back().is_some_and(|(_, end)| position < *end)
    }

    pub(super) fn ranges(&self) -> impl Iterator<Item = Range<usize>> + '_ {
        self.0.iter().map(|(start, end)| *start..*end)
    }

    pub(super) fn last(&self) -> Option<Range<usize>> {
        self.0.last_key_value().map(|(start, end)| *start..*end)
    }

    /// Adds stops that the set does not contain yet.
    pub(super) fn insert(&mut self, mut range: Range<usize>) {
        if range.is_empty() {
            return;
        }
        if let Some(end) = self.0.remove(&range.end) {
            range.end = end;
        }
        if let Some((start, end)) = self.0.range(..range.start).next_back()
            && *end == range.start
        {
            range.start = *start;
        }
        self.0.insert(range.start, range.end);
    }

    /// Stops of a range that the set contains.
    pub(super) fn count_in(&self, range: &Range<usize>) -> usize {
        let around = self.0.range(..=range.start).next_back();
        let inside = self.0.range(range.start + 1..range.end);
        let both = around.into_iter().chain(inside);
        both.map(|(start, end)| (*end).min(range.end).saturating_sub((*start).max(range.start)))
            .sum()
    }

    /// The closest stops before and after a position that the set does not contain.
    pub(super) fn around(&self, position: usize) -> (Option<usize>, Option<usize>) {
        let before = self.0.range(..position).next_back().map(|(_, end)| *end - 1);
        let after = self.0.range(position..).next().map(|(start, _)| *start);
        (before, after)
    }

    /// The closest stops before and after a position that the set contains.
    pub(super) fn nearest(&self, position: usize) -> [Option<usize>; 2] {
        let before = self.0.range(..position).next_back();
        let before = before.map(|(_, end)| (*end - 1).min(position.saturating_sub(1)));
        let behind = match self.contains(position + 1) {
            true => Some(position + 1),
            false => self.0.range(position + 1..).next().map(|(start, _)| *start),
        };
        [before, behind]
    }

    /// Removes one stop, if the set contains it.
    pub(super) fn take(&mut self, position: usize) {
        self.cut_off(position, position + 1);
    }

    /// Removes and returns the stops from `start`, which the last range contains, to its end.
    pub(super) fn take_tail(&mut self, start: usize) -> Range<usize> {
        let end = self.last().map_or(start, |range| range.end);
        self.cut_off(start, end);
        start..end
    }

    fn cut_off(&mut self, start: usize, end: usize) {
        let Some((first, last)) = self.0.range(..=start).next_back().map(|(a, b)| (*a, *b)) else {
            return;
        };
        if last <= start {
            return;
        }
        self.0.remove(&first);
        if first < start {
            self.0.insert(first, start);
        }
        if end < last {
            self.0.insert(end, last);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_split_where_a_stop_goes_and_join_where_it_returns() {
        let mut queued = RangeSet::default();
        queued.insert(0..4);
        queued.insert(6..8);
        queued.take(2);
        assert_eq!(queued.ranges().collect::<Vec<_>>(), [0..2, 3..4, 6..8]);
        let counts = [0..9, 1..7, 2..3, 3..6, 8..9].map(|range| queued.count_in(&range));
        assert_eq!(counts, [5, 3, 0, 1, 0]);
        let nearest = [0, 1, 2, 3, 5, 8].map(|position| queued.nearest(position));
        let expected = [
            [None, Some(1)],
            [Some(0), Some(3)],
            [Some(1), Some(3)],
            [Some(1), Some(6)],
            [Some(3), Some(6)],
            [Some(7), None],
        ];
        assert_eq!(nearest, expected);
        queued.insert(2..3);
        queued.insert(4..6);
        assert_eq!((queued.ranges().count(), queued.last()), (1, Some(0..8)));
        assert_eq!(queued.take_tail(5), 5..8);
        assert_eq!(queued.last(), Some(0..5));
    }
}
