//! Who can be picked, who was, and who takes over from whom.

use crate::fleet::Candidate;

/// Who can be picked, and how each scored in total: more is better, whatever the scale.
#[derive(Clone, Copy, Debug)]
pub struct CandidateSet<'a> {
    /// At least one.
    pub candidates: &'a [Candidate],
    /// One for each candidate; all zero if the profile has no scorers. Never NaN.
    pub totals: &'a [f64],
}

/// Who was picked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Choice {
    /// The position in the slate.
    pub at: usize,
    /// What was unusual about it, to be shown in the plan and its explanation.
    pub mark: Option<&'static str>,
}

impl From<usize> for Choice {
    fn from(at: usize) -> Self {
        Self { at, mark: None }
    }
}

/// A short list of positions in a slate, best first.
#[derive(Debug)]
pub struct Fallbacks<'a> {
    pub(crate) positions: &'a mut Vec<usize>,
    pub(crate) most: usize,
}

impl Fallbacks<'_> {
    /// Whether no more are wanted.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.positions.len() >= self.most
    }

    /// Adds the next best, unless enough are there or it is there already.
    pub fn push(&mut self, position: usize) {
        if !self.is_full() && !self.positions.contains(&position) {
            self.positions.push(position);
        }
    }

    /// Adds those with the highest totals after the chosen one. Equals come in a circle that starts
    /// behind the chosen one, so that no pod is everybody's second choice.
    pub fn best_of(&mut self, slate: CandidateSet<'_>, chosen: usize) {
        let (totals, given) = (slate.totals, self.positions.len());
        // What the worst of a full list has: whoever has no more is passed over with one comparison.
        let mut least = f64::NEG_INFINITY;
        for position in (chosen + 1..totals.len()).chain(0..chosen.min(totals.len())) {
            let is_full = self.is_full();
            if is_full && (given == self.most || totals[position] <= least) {
                continue;
            }
            if self.positions[..given].contains(&position) {
                continue;
            }
            if is_full {
                self.positions.pop();
            }
            let worse = |other: &usize| totals[*other] < totals[position];
            let at = self.positions[given..].iter().position(worse);
            self.positions.insert(at.map_or(self.positions.len(), |at| given + at), position);
            least = totals[self.positions[self.positions.len() - 1]];
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use wornpath_index::Index;

    use super::*;
    use crate::fleet::{Fleet, FleetPod};

    proptest! {
        #[test]
        fn fallbacks_are_the_best_others_in_a_circle_behind_the_chosen_one(
            totals in prop::collection::vec((-2..3_i8).prop_map(f64::from), 1..20),
            chosen in any::<prop::sample::Index>(),
            most in 0..6_usize,
        ) {
            let chosen = chosen.index(totals.len());
            let count = totals.len();
            let mut expected: Vec<_> = (1..count).map(|step| (chosen + step) % count).collect();
            expected.sort_by(|a, b| totals[*b].total_cmp(&totals[*a]));
            expected.truncate(most);
            let index = Index::new(wornpath_index::IndexLimits::default(), 1);
            let pods = (0..count).map(|_| {
                let facts = crate::fleet::PodFacts::serving("p", "m");
                FleetPod::new(index.add_pod().unwrap(), facts)
            });
            let fleet = Fleet::new(pods.collect());
            let candidates: Vec<_> = fleet.candidates().collect();
            let slate = CandidateSet { candidates: &candidates, totals: &totals };
            let mut positions = Vec::new();
            Fallbacks { positions: &mut positions, most }.best_of(slate, chosen);
            prop_assert_eq!(positions, expected);
        }
    }
}
