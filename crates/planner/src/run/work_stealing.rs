//! Work stealing: an idle pod takes the far end of the longest queue.
//!
//! Predictions of output lengths are wrong, and pods are slower than they say; what evens it out is taking
//! work while there is some. The far end is what the victim would come to last, and a contiguous piece keeps
//! its prefixes together. The theft is cut where both would end soonest, counting the prefix that the thief
//! has to compute again, and does not happen unless it saves more time than it costs.

use super::{RangeSet, RunPod};
use crate::route::Route;
use std::ops::Range;

/// How far around the balance a cut is looked for, as a share of what is stolen.
const LEEWAY: f64 = 0.25;

/// Time must be saved so many times over for what is computed twice: other queues need the engines too.
const DUPLICATE_PRICE: f64 = 8.0;

/// Milliseconds until a pod is through with what it has. Requests on it are taken to be half done.
pub(super) fn time_left(route: &Route, pod: &RunPod) -> f64 {
    let ahead: f64 = pod.ahead.ranges().map(|range| route.cost_behind(range)).sum();
    (ahead + pod.cost / 2.0) / pod.speed.unwrap_or(f64::MIN_POSITIVE)
}

/// Moves work to a pod that has none ahead; says whether there was any worth it.
pub(super) fn steal(route: &Route, pods: &mut [RunPod], thief: usize, worth: f64) -> bool {
    let others = (0..pods.len()).filter(|pod| *pod != thief && !pods[*pod].ahead.is_empty());
    let busiest = others
        .map(|pod| (time_left(route, &pods[pod]), pod))
        .max_by(|one, other| one.0.total_cmp(&other.0).then(other.1.cmp(&one.1)));
    let Some((before, victim)) = busiest else { return false };
    let Some((cut, saved)) = best_cut(route, &pods[victim], &pods[thief], before) else {
        return false;
    };
    if saved < worth {
        return false;
    }
    let stolen = pods[victim].ahead.take_tail(cut);
    pods[thief].ahead.insert(stolen);
    // It may have been there long ago: what it held of this may be gone.
    pods[thief].visited = RangeSet::default();
    true
}

/// Where to cut the last range ahead of the victim.
fn best_cut(route: &Route, victim: &RunPod, thief: &RunPod, before: f64) -> Option<(usize, f64)> {
    let range = victim.ahead.last()?;
    let (fast, slow) = (thief.speed?, victim.speed?);
    let own = time_left(route, thief);
    let end = |cut: usize| {
        let left = before - route.cost_behind(cut..range.end) / slow;
        let stolen = route.cost(cut..range.end) / fast;
        left.max(own + stolen)
    };
    // Both end together if `before - cost / slow = own + cost / fast`.
    let share = ((before - own) / (1.0 / slow + 1.0 / fast)).max(0.0);
    let whole = route.cost_behind(range.clone());
    let from = |cost: f64| route.stop_at(range.clone(), (whole - cost).max(0.0));
    let window: Range<usize> = from(share * (1.0 + LEEWAY))..from(share * (1.0 - LEEWAY)) + 1;
    let places = window.start..window.end.min(range.end);
    let best = places.min_by(|one, other| end(*one).total_cmp(&end(*other)))?;
    let saved = before - end(best);
    (saved > DUPLICATE_PRICE * route.prefix_cost(best) / fast).then_some((best, saved))
}
