//! A set of stops as disjoint ranges of the route: those ahead of a pod, or those it was given.
//!
//! Ahead, that is one range as long as all goes as planned. Requests that are held back, have failed or come from a
//! lost pod make more of them, and neighbours grow together again.

use std::collections::BTreeMap;
use std::ops::Range;

/// Ranges by their starts.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct RangeSet(BTreeMap<usize, usize>);

impl RangeSet {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn contains(&self, place: usize) -> bool {
        self.0.range(..=place).next_back().is_some_and(|(_, end)| place < *end)
    }

    pub(super) fn ranges(&self) -> impl Iterator<Item = Range<usize>> + '_ {
        self.0.iter().map(|(start, end)| *start..*end)
    }

    pub(super) fn last(&self) -> Option<Range<usize>> {
        self.0.last_key_value().map(|(start, end)| *start..*end)
    }

    /// Adds stops that are not there yet.
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

    /// The closest stops before and after a place, which is not there itself.
    pub(super) fn around(&self, place: usize) -> (Option<usize>, Option<usize>) {
        let before = self.0.range(..place).next_back().map(|(_, end)| *end - 1);
        let after = self.0.range(place..).next().map(|(start, _)| *start);
        (before, after)
    }

    /// Takes one stop out, if it is there.
    pub(super) fn take(&mut self, place: usize) {
        self.cut_off(place, place + 1);
    }

    /// Takes the stops from `start` to the end of the last range, which holds it.
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
        let mut ahead = RangeSet::default();
        ahead.insert(0..4);
        ahead.insert(6..8);
        ahead.take(2);
        assert_eq!(ahead.ranges().collect::<Vec<_>>(), [0..2, 3..4, 6..8]);
        ahead.insert(2..3);
        ahead.insert(4..6);
        assert_eq!((ahead.ranges().count(), ahead.last()), (1, Some(0..8)));
        assert_eq!(ahead.take_tail(5), 5..8);
        assert_eq!(ahead.last(), Some(0..5));
    }
}
