//! Cutting a route into one contiguous piece per pod.
//!
//! A cut costs what its two neighbours share, because both pieces compute it. Balance asks for a certain place;
//! moving a cut by two percent of a piece costs little balance and often finds the border of two subtrees,
//! where nothing is shared. So duplicated prefill is at most the longest shared prefix per cut, and no
//! piece is longer than its due by more than two percent on either side and one request.

use crate::route::Route;
use std::ops::Range;

/// How far a cut may be moved, as a share of an average piece.
const LEEWAY: f64 = 0.02;

/// Cuts `range` into pieces whose costs are in proportion to `weights`, one for each.
///
/// Pieces may be empty. Weights are zero or more; if all are zero they count as equal.
pub(crate) fn cut(route: &Route, range: Range<usize>, weights: &[f64]) -> Vec<Range<usize>> {
    let whole = route.cost_behind(range.clone());
    let sum: f64 = weights.iter().sum();
    let due = |weight: f64| match sum > 0.0 {
        true => whole * weight / sum,
        false => whole / weights.len() as f64,
    };
    let leeway = LEEWAY * whole / weights.len() as f64;
    let mut pieces = Vec::with_capacity(weights.len());
    let (mut start, mut target) = (range.start, 0.0);
    for (piece, weight) in weights.iter().enumerate() {
        target += due(*weight);
        let end = match piece + 1 == weights.len() {
            true => range.end,
            false => best_cut(route, range.clone(), target, leeway).max(start),
        };
        pieces.push(start..end);
        start = end;
    }
    pieces
}

/// Where the least is shared close to `target`; of several such places the closest.
fn best_cut(route: &Route, range: Range<usize>, target: f64, leeway: f64) -> usize {
    let first = route.stop_at(range.clone(), target - leeway);
    let last = route.stop_at(range.clone(), target + leeway);
    let balanced = route.stop_at(range.clone(), target);
    let mut best = balanced;
    // A cut at the end of the range shares nothing, but leaves an empty piece: not a place to look for.
    for place in first..=last.min(range.end.saturating_sub(1)) {
        let rank = |place: usize| {
            let shared = if place == range.start { 0 } else { route.stops()[place].shared };
            (shared, place.abs_diff(balanced))
        };
        if best == range.end || rank(place) < rank(best) {
            best = place;
        }
    }
    best
}
