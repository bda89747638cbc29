//! The plan: which pod computes which requests in which order, and the expected duration.
//!
//! The forest's depth-first order is cut into one contiguous piece per pod, in proportion to the
//! pods' speeds. Inside its piece each pod computes siblings with long answers first. Where engines
//! read a prefix once for all sequences of a step, the plan also says which requests decode
//! together, and costs count that. Where requests have deadlines, all of this is done for one class
//! of urgency after the other.

use crate::composition::compose;
use crate::decode::{DecodeGroup, DecodeRates};
use crate::forest::Forest;
use crate::ordering::Ordering;
use crate::queue::{JobId, Queue};
use crate::rates::PlannerRates;
use crate::rates::Speeds;
use crate::route::Route;
use crate::urgency::{UrgencyClass, classes, selected};
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

/// Requests that run before those of the next class.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PlanClass {
    /// When those of its requests that are due must be finished; none if all of them can wait.
    pub deadline: Option<Duration>,
    /// Their positions on the route.
    pub stops: Range<usize>,
    /// When all of them are expected to be finished.
    pub finish: Duration,
}

impl PlanClass {
    /// Whether it is expected to be late.
    #[must_use]
    pub fn is_late(&self) -> bool {
        self.deadline.is_some_and(|deadline| self.finish > deadline)
    }
}

/// A plan for a queue.
#[derive(Clone, PartialEq, Debug)]
pub struct Plan {
    route: Route,
    segments: Vec<Segment>,
    classes: Vec<PlanClass>,
    decode_groups: Vec<DecodeGroup>,
    decode_rates: Option<DecodeRates>,
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
        let mut draft = Draft {
            queue,
            forest: &forest,
            rates,
            speeds,
            loads: vec![0.0; speeds.pods()],
            route: Route::with_capacity(forest.order().len()),
            segments: Vec::new(),
            classes: Vec::new(),
            decode_groups: Vec::new(),
        };
        for class in classes(queue, &forest, rates, speeds) {
            draft.add(&class);
        }
        let Draft { mut route, segments, classes, decode_groups, .. } = draft;
        route.decode_apart(queue, rates, &decode_groups);
        let planned = segments.iter().map(|segment| planned_tokens(queue, &route, segment)).sum();
        Self {
            route,
            segments,
            classes,
            decode_groups,
            decode_rates: rates.decode_rates,
            least_tokens: forest.least_tokens(queue),
            planned_tokens: planned,
            speeds: speeds.clone(),
            block_size: queue.block_size().get(),
            copies: forest.into_copies(),
        }
    }

    /// All requests in the planned order, class after class and pod after pod.
    #[must_use]
    pub const fn route(&self) -> &Route {
        &self.route
    }

    /// The segments in the order of the route: one per class and pod, without empty ones.
    #[must_use]
    pub fn segments(&self) -> &[Segment] {
        &self.segments
    }

    /// Requests that decode together apart from all others, in the order of the route.
    #[must_use]
    pub fn decode_groups(&self) -> &[DecodeGroup] {
        &self.decode_groups
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
    pub fn finish(&self) -> Duration {
        self.classes.iter().map(|class| class.finish).max().unwrap_or_default()
    }

    /// The classes, the most urgent first; one if nothing has a deadline.
    #[must_use]
    pub fn classes(&self) -> &[PlanClass] {
        &self.classes
    }

    /// The times that decide which requests decode together.
    pub(crate) const fn decode_rates(&self) -> Option<DecodeRates> {
        self.decode_rates
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

/// A plan in the making.
struct Draft<'a> {
    queue: &'a Queue,
    forest: &'a Forest,
    rates: &'a PlannerRates,
    speeds: &'a Speeds,
    /// Milliseconds of work that each pod has so far, at speed one.
    loads: Vec<f64>,
    route: Route,
    segments: Vec<Segment>,
    classes: Vec<PlanClass>,
    decode_groups: Vec<DecodeGroup>,
}

impl Draft<'_> {
    /// Adds a class behind those so far.
    fn add(&mut self, class: &UrgencyClass) {
        let queue = self.queue;
        let rates = self.rates;
        let by_prefix = self.depth_first_route(&class.positions);
        let pieces = self.cut(&by_prefix);
        let mut finish = 0.0_f64;
        for ((load, speed), piece) in self.loads.iter_mut().zip(self.speeds.all()).zip(&pieces) {
            *load += by_prefix.cost(piece.clone());
            if !piece.is_empty() {
                finish = finish.max(*load / speed);
            }
        }
        // The costs of the first route are no longer needed, and there may be millions of them.
        let by_prefix = by_prefix.into_stops();
        let offset = self.route.stops().len();
        for (pod, piece) in pieces.into_iter().enumerate().filter(|(_, piece)| !piece.is_empty()) {
            let own = &by_prefix[piece.clone()];
            // A cut may have left too few of a group.
            let composed = compose(queue, own, rates, 1);
            let order = Ordering { queue, apart: &composed, deadline: class.deadline };
            let order = order.of(own);
            for (at, shared) in &order {
                self.route.push(queue, rates, own[*at].job, *shared);
            }
            let stops = offset + piece.start..offset + piece.end;
            self.decode_groups.extend(reordered(composed, &order, stops.start));
            self.segments.push(Segment { pod, stops });
        }
        self.classes.push(PlanClass {
            deadline: class.deadline,
            stops: offset..self.route.stops().len(),
            finish: Duration::from_secs_f64(finish / 1e3),
        });
    }

    fn depth_first_route(&self, positions: &[u32]) -> Route {
        let mut route = Route::with_capacity(positions.len());
        for (position, shared) in selected(self.forest, positions) {
            route.push(self.queue, self.rates, self.forest.order()[position], shared);
        }
        let groups = compose(self.queue, route.stops(), self.rates, self.speeds.pods());
        route.decode_apart(self.queue, self.rates, &groups);
        route
    }

    /// The stops of each pod, so that all pods finish at about the same time.
    fn cut(&self, route: &Route) -> Vec<Range<usize>> {
        let stops = 0..route.stops().len();
        let speeds = self.speeds.all();
        let work = self.loads.iter().sum::<f64>() + route.cost_behind(stops.clone());
        // Milliseconds until all pods finish, if they finish together.
        let finish = work / speeds.iter().sum::<f64>();
        let missing = |(speed, load): (&f64, &f64)| (finish * speed - load).max(0.0);
        let weights: Vec<_> = speeds.iter().zip(&self.loads).map(missing).collect();
        cut(route, stops, &weights)
    }
}

/// Groups of a piece of the route, at their stops in its final order, which begins at `start`.
fn reordered(groups: Vec<DecodeGroup>, order: &[(usize, u32)], start: usize) -> Vec<DecodeGroup> {
    if groups.is_empty() {
        return groups;
    }
    let mut position_of = vec![0; order.len()];
    for (position, (at, _)) in order.iter().enumerate() {
        position_of[*at] = position;
    }
    let moved = groups.into_iter().map(|group| {
        // The stops of a group stay together.
        let first = position_of[group.stops.clone()].iter().min().map_or(0, |first| start + first);
        DecodeGroup { stops: first..first + group.stops.len(), ..group }
    });
    let mut moved: Vec<_> = moved.collect();
    moved.sort_unstable_by_key(|group| group.stops.start);
    moved
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
