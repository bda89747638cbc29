//! The search for the smallest count that meets the objectives, whatever happens in between.

use std::collections::BTreeMap;

/// What the search asks of a count.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Tried {
    /// It meets the objectives.
    Met,
    /// It misses them.
    Missed,
}

/// The result of a search.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Found {
    /// The smallest count that meets the objectives.
    pub least: usize,
    /// The largest count that was tried and missed them; zero if none. Above `least`, more was
    /// worse.
    pub largest_miss: usize,
}

/// A search over counts from 1 to `most`.
#[derive(Clone, Debug)]
pub struct CountSearch {
    most: usize,
    tried: BTreeMap<usize, Tried>,
}

impl CountSearch {
    /// A search that has tried nothing.
    ///
    /// # Panics
    /// If `most` is zero.
    #[must_use]
    pub fn up_to(most: usize) -> Self {
        assert!(most > 0, "a search needs a count");
        Self { most, tried: BTreeMap::new() }
    }

    /// The smallest count that meets the objectives, or none up to the limit. `bisected` tries the
    /// counts of the bisection, `checked` those that are tried only because they might meet them
    /// against expectation.
    ///
    /// # Errors
    /// Those of the callbacks.
    pub fn run<E>(
        &mut self,
        mut bisected: impl FnMut(usize) -> Result<Tried, E>,
        mut checked: impl FnMut(usize) -> Result<Tried, E>,
    ) -> Result<Option<Found>, E> {
        let mut missed = 0;
        let mut met = None;
        // Doubling first: an overloaded fleet is cheaper to try than a large one.
        let mut count = 1;
        while met.is_none() && missed < self.most {
            match self.attempt(count, &mut bisected)? {
                Tried::Met => met = Some(count),
                Tried::Missed => missed = count,
            }
            count = (2 * count).min(self.most);
        }
        while let Some(above) = met
            && above - missed > 1
        {
            let middle = missed.midpoint(above);
            match self.attempt(middle, &mut bisected)? {
                Tried::Met => met = Some(middle),
                Tried::Missed => missed = middle,
            }
        }
        let end = met.unwrap_or(self.most + 1);
        let mut least = met;
        for count in 1..end {
            if self.attempt(count, &mut checked)? == Tried::Met {
                least = Some(count);
                break;
            }
        }
        let largest_miss = || self.tried.iter().rev().find(|(_, tried)| **tried == Tried::Missed);
        Ok(least.map(|least| Found {
            least,
            largest_miss: largest_miss().map_or(0, |(count, _)| *count),
        }))
    }

    fn attempt<E>(
        &mut self,
        count: usize,
        attempt: &mut impl FnMut(usize) -> Result<Tried, E>,
    ) -> Result<Tried, E> {
        if let Some(known) = self.tried.get(&count) {
            return Ok(*known);
        }
        let result = attempt(count)?;
        self.tried.insert(count, result);
        Ok(result)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::convert::Infallible;

    fn run(meets: &[bool]) -> (Option<usize>, usize) {
        let mut bisected = 0;
        let tried = |count: usize| match meets[count - 1] {
            true => Tried::Met,
            false => Tried::Missed,
        };
        let mut search = CountSearch::up_to(meets.len());
        let found = search.run::<Infallible>(
            |count| {
                bisected += 1;
                Ok(tried(count))
            },
            |count| Ok(tried(count)),
        );
        (found.unwrap().map(|found| found.least), bisected)
    }

    proptest! {
        #[test]
        fn the_answer_is_the_first_count_that_meets_the_objectives_whatever_the_others_do(
            meets in proptest::collection::vec(any::<bool>(), 1..80)
        ) {
            let first = meets.iter().position(|met| *met).map(|at| at + 1);
            prop_assert_eq!(run(&meets).0, first);
        }

        #[test]
        fn where_more_is_never_worse_the_bisection_tries_few_counts(
            most in 1_usize..256, first in 1_usize..300
        ) {
            let meets: Vec<bool> = (1..=most).map(|count| count >= first).collect();
            let (least, bisected) = run(&meets);
            prop_assert_eq!(least, (first <= most).then_some(first));
            prop_assert!(bisected <= 18, "{} counts", bisected);
        }
    }
}
