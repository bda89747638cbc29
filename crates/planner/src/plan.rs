//! The plan: which pod computes which requests in which order, and the expected duration.
//!
//! The forest's depth-first order is cut into one contiguous piece per pod, in proportion to the
//! pods' speeds. Inside its piece each pod computes siblings with long answers first.

use crate::forest::Forest;
use crate::ordering::longest_first;
use crate::queue::{JobId, Queue};
use crate::rates::PlannerRates;
use crate::rates::Speeds;
use crate::route::Route;
use std::ops::Range;
use std::time::Duration;

/// A contiguous run of the route, for one pod.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Segment {
    /// The pod that computes it, by its position in the plan's [`Speeds`].
    pub pod: usize,
    /// Its positions on the route.
    pub stops: Range<usize>,
}

/// A plan for a queue.
#[derive(Clone, PartialEq, Debug)]
pub struct Plan {
    route: Route,
    segments: Vec<Segment>,
    finish: Duration,
    copies: Vec<(JobId, JobId)>,
    speeds: Speeds,
    least_tokens: u64,
    planned_tokens: u64,
    block_size: usize,
}

impl Plan {
    /// Plans a whole queue.
    #[must_use]
    pub fn new(queue: &Queue, speeds: &Speeds, rates: &PlannerRates) -> Self {
        Self::of_forest(queue, Forest::of(queue), speeds, rates)
    }

    /// Plans a forest made from this queue.
    #[must_use]
    pub fn of_forest(queue: &Queue, forest: Forest, speeds: &Speeds, rates: &PlannerRates) -> Self {
        let by_prefix = depth_first_route(queue, &forest, rates);
        let pieces = cut_by_speed(&by_prefix, speeds);
        let finish = finish(&by_prefix, &pieces, speeds);
        // The costs of the first route are no longer needed, and there may be millions of them.
        let by_prefix = by_prefix.into_stops();
        let mut route = Route::with_capacity(by_prefix.len());
        let mut segments = Vec::new();
        for (pod, stops) in pieces.into_iter().enumerate().filter(|(_, piece)| !piece.is_empty()) {
            for (job, shared) in longest_first(queue, &by_prefix[stops.clone()]) {
                route.push(queue, rates, job, shared);
            }
            segments.push(Segment { pod, stops });
        }
        let planned = segments.iter().map(|segment| planned_tokens(queue, &route, segment)).sum();
        Self {
            route,
            segments,
            finish,
            least_tokens: forest.least_tokens(queue),
            planned_tokens: planned,
            speeds: speeds.clone(),
            block_size: queue.block_size().get(),
            copies: forest.into_copies(),
        }
    }

    /// All requests in the planned order, pod after pod.
    #[must_use]
    pub const fn route(&self) -> &Route {
        &self.route
    }

    /// The segments in the order of the route: one per pod, without empty ones.
    #[must_use]
    pub fn segments(&self) -> &[Segment] {
        &self.segments
    }

    /// Requests that take the answer of another: the copy, and the request that is computed.
    #[must_use]
    pub fn copies(&self) -> &[(JobId, JobId)] {
        &self.copies
    }

    /// The speeds that the plan was made for.
    #[must_use]
    pub const fn speeds(&self) -> &Speeds {
        &self.speeds
    }

    /// The requests of a pod in order.
    pub fn jobs_of(&self, pod: usize) -> impl Iterator<Item = JobId> + '_ {
        let own = self.segments.iter().filter(move |segment| segment.pod == pod);
        own.flat_map(|segment| &self.route.stops()[segment.stops.clone()]).map(|stop| stop.job)
    }

    /// The fewest prompt tokens that any plan could compute.
    #[must_use]
    pub const fn least_tokens(&self) -> u64 {
        self.least_tokens
    }

    /// Prompt tokens that this plan computes where a pod's cache holds the longest prompt: the
    /// fewest possible, plus what the cuts between segments share.
    #[must_use]
    pub const fn planned_tokens(&self) -> u64 {
        self.planned_tokens
    }

    /// When the last pod is expected to finish, from the start of the run.
    #[must_use]
    pub const fn finish(&self) -> Duration {
        self.finish
    }

    pub(crate) fn into_route(self) -> Route {
        self.route
    }

    /// Tokens per block.
    pub(crate) const fn block_size(&self) -> usize {
        self.block_size
    }

    /// Gives the segments of pod `i` to pod `pods[i]`, for every `i`.
    pub(crate) fn rename_pods(&mut self, pods: &[usize]) {
        for segment in &mut self.segments {
            segment.pod = pods[segment.pod];
        }
    }
}

fn depth_first_route(queue: &Queue, forest: &Forest, rates: &PlannerRates) -> Route {
    let mut route = Route::with_capacity(forest.order().len());
    for (job, shared) in forest.order().iter().zip(forest.shared()) {
        route.push(queue, rates, *job, *shared);
    }
    route
}

/// The stops of each pod, so that all pods finish at about the same time.
fn cut_by_speed(route: &Route, speeds: &Speeds) -> Vec<Range<usize>> {
    let stops = 0..route.stops().len();
    let speeds = speeds.all();
    // Milliseconds until all pods finish, if they finish together.
    let finish = route.cost_behind(stops.clone()) / speeds.iter().sum::<f64>();
    let weights: Vec<_> = speeds.iter().map(|speed| finish * speed).collect();
    cut(route, stops, &weights)
}

fn finish(route: &Route, pieces: &[Range<usize>], speeds: &Speeds) -> Duration {
    let busy =
        pieces.iter().zip(speeds.all()).map(|(piece, speed)| route.cost(piece.clone()) / speed);
    Duration::from_secs_f64(busy.fold(0.0, f64::max) / 1e3)
}

fn planned_tokens(queue: &Queue, route: &Route, segment: &Segment) -> u64 {
    let stops = &route.stops()[segment.stops.clone()];
    let first = stops.first().map_or(0, |stop| queue.prompt_tokens(stop.job) as u64);
    first + stops.iter().skip(1).map(|stop| u64::from(stop.fresh)).sum::<u64>()
}

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
