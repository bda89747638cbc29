//! Work stealing: an idle pod takes the far end of the longest queue.
//!
//! Predicted output lengths are wrong, and pods are slower than they say; stealing evens that out
//! while there is work left. The far end is what the victim would reach last, and a contiguous
//! piece keeps its prefixes together. The cut is placed where both pods would finish soonest,
//! counting the prefix that the thief computes again; a steal that costs more time than it saves
//! does not happen.

use super::{RangeSet, RunPod};
use crate::route::Route;
use std::ops::Range;

/// How far around the balanced cut to search, as a share of what is stolen.
const LEEWAY: f64 = 0.25;

/// A steal must save this many times the time that it spends on computing a prefix twice: other
/// queues need the engines too.
const DUPLICATE_PRICE: f64 = 8.0;

/// Where a steal cuts the victim's last range, and the milliseconds that it saves.
struct Steal {
    cut: usize,
    saved: f64,
}

/// Milliseconds until a pod has finished its work. Requests on the pod are assumed to be half done.
pub(super) fn time_left(route: &Route, pod: &RunPod) -> f64 {
    let queued: f64 = pod.queued.ranges().map(|range| route.cost_behind(range)).sum();
    (queued + pod.cost / 2.0) / pod.speed.unwrap_or(f64::MIN_POSITIVE)
}

/// Moves work to a pod that has none queued; `false` if no steal saves `min_gain` milliseconds.
pub(super) fn steal(route: &Route, pods: &mut [RunPod], thief: usize, min_gain: f64) -> bool {
    let others = (0..pods.len()).filter(|pod| *pod != thief && !pods[*pod].queued.is_empty());
    let busiest = others
        .map(|pod| (time_left(route, &pods[pod]), pod))
        .max_by(|one, other| one.0.total_cmp(&other.0).then(other.1.cmp(&one.1)));
    let Some((before, victim)) = busiest else { return false };
    let Some(steal) = best_steal(route, &pods[victim], &pods[thief], before) else {
        return false;
    };
    if steal.saved < min_gain {
        return false;
    }
    let stolen = pods[victim].queued.take_tail(steal.cut);
    pods[thief].queued.insert(stolen);
    // The thief may have computed these prefixes long ago: they may be evicted by now.
    pods[thief].sent = RangeSet::default();
    true
}

/// Where to cut the victim's last queued range; `before` is the victim's time left.
fn best_steal(route: &Route, victim: &RunPod, thief: &RunPod, before: f64) -> Option<Steal> {
    let range = victim.queued.last()?;
    let thief_speed = thief.speed?;
    let victim_speed = victim.speed?;
    let own = time_left(route, thief);
    let end = |cut: usize| {
        let left = before - route.cost_behind(cut..range.end) / victim_speed;
        let stolen = route.cost(cut..range.end) / thief_speed;
        left.max(own + stolen)
    };
    // Both end together if `before - cost / victim_speed = own + cost / thief_speed`.
    let share = ((before - own) / (1.0 / victim_speed + 1.0 / thief_speed)).max(0.0);
    let whole = route.cost_behind(range.clone());
    let from = |cost: f64| route.stop_at(range.clone(), (whole - cost).max(0.0));
    let window: Range<usize> = from(share * (1.0 + LEEWAY))..from(share * (1.0 - LEEWAY)) + 1;
    let candidates = window.start..window.end.min(range.end);
    let cut = candidates.min_by(|one, other| end(*one).total_cmp(&end(*other)))?;
    let saved = before - end(cut);
    let price = DUPLICATE_PRICE * route.prefix_cost(cut) / thief_speed;
    (saved > price).then_some(Steal { cut, saved })
}
