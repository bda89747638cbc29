//! The input and the output of a picker: scored candidates, the choice, and its fallbacks.

use crate::fleet::Candidate;

/// The candidates and their total scores: more is better, whatever the scale.
#[derive(Clone, Copy, Debug)]
pub struct CandidateSet<'a> {
    /// The candidates; at least one.
    pub candidates: &'a [Candidate],
    /// The total of each candidate; all zero if the profile has no scorers. Never NaN.
    pub totals: &'a [f64],
}

/// The choice of a picker.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Choice {
    /// The position among the candidates.
    pub at: usize,
    /// What was unusual about it, to be shown in the plan and its explanation.
    pub mark: Option<&'static str>,
}

impl From<usize> for Choice {
    fn from(at: usize) -> Self {
        Self { at, mark: None }
    }
}

/// A short list of positions among the candidates, best first.
#[derive(Debug)]
pub struct Fallbacks<'a> {
    pub(crate) positions: &'a mut Vec<usize>,
    pub(crate) most: usize,
}

impl Fallbacks<'_> {
    /// Whether the list is complete.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.positions.len() >= self.most
    }

    /// Adds the next best, unless the list is complete or has it already.
    pub fn push(&mut self, position: usize) {
        if !self.is_full() && !self.positions.contains(&position) {
            self.positions.push(position);
        }
    }

    /// Adds the candidates with the highest totals after the chosen one. Ties are broken in a
    /// circle that starts behind the chosen one, so that no pod is the first fallback of all
    /// others.
    pub fn best_of(&mut self, set: CandidateSet<'_>, chosen: usize) {
        let totals = set.totals;
        let given = self.positions.len();
        // The total of the worst in a full list: one comparison rules most candidates out.
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
            let set = CandidateSet { candidates: &candidates, totals: &totals };
            let mut positions = Vec::new();
            Fallbacks { positions: &mut positions, most }.best_of(set, chosen);
            prop_assert_eq!(positions, expected);
        }
    }
}
