//! Cuts a route into one contiguous piece per pod.
//!
//! A cut costs what its two neighbours share, because both pieces compute it. Perfect balance fixes
//! one position; moving a cut by two percent of a piece costs little balance and often reaches the
//! border of two subtrees, where nothing is shared. So the duplicated prefill is at most the
//! longest shared prefix per cut, and no piece exceeds its due by more than two percent on either
//! side and one request.

use crate::route::Route;
use std::ops::Range;

/// How far a cut may move, as a share of an average piece.
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
    let mut start = range.start;
    let mut target = 0.0;
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

/// The position near `target` whose neighbours share the least; of several, the closest to it.
fn best_cut(route: &Route, range: Range<usize>, target: f64, leeway: f64) -> usize {
    let first = route.stop_at(range.clone(), target - leeway);
    let last = route.stop_at(range.clone(), target + leeway);
    let balanced = route.stop_at(range.clone(), target);
    let mut best = balanced;
    // A cut at the end of the range shares nothing but leaves an empty piece, so it is no
    // candidate.
    for position in first..=last.min(range.end.saturating_sub(1)) {
        let rank = |position: usize| {
            let shared = if position == range.start { 0 } else { route.stops()[position].shared };
            (shared, position.abs_diff(balanced))
        };
        if best == range.end || rank(position) < rank(best) {
            best = position;
        }
    }
    best
}
