//! The plan: which pod computes which requests in which order, and what that is expected to take.

use crate::cut::cut;
use crate::deadline::Deadlines;
use crate::forest::Forest;
use crate::ordering::longest_first;
use crate::queue::{JobId, Queue};
use crate::rates::PlannerRates;
use crate::route::Route;
use crate::speeds::Speeds;
use std::ops::Range;
use std::time::Duration;

/// A contiguous run of the route, for one pod.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Segment {
    /// Whose it is.
    pub pod: usize,
    /// Which class it belongs to.
    pub class: usize,
    /// Which stops.
    pub stops: Range<usize>,
}

/// Requests that are computed together because their deadlines allow it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Class {
    /// The earliest deadline in it.
    pub deadline: Option<Duration>,
    /// Which stops.
    pub stops: Range<usize>,
    /// When all of it is expected to be done.
    pub finish: Duration,
}

impl Class {
    /// Whether it is expected to be done too late, whatever the order.
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
    classes: Vec<Class>,
    copies: Vec<(JobId, JobId)>,
    speeds: Speeds,
    least_tokens: u64,
    planned_tokens: u64,
    block_size: usize,
}

impl Plan {
    /// Plans all of a queue.
    #[must_use]
    pub fn new(queue: &Queue, speeds: &Speeds, rates: &PlannerRates) -> Self {
        Self::of_forest(queue, Forest::of(queue), speeds, rates)
    }

    /// Plans a forest that has been made from this queue.
    #[must_use]
    pub fn of_forest(queue: &Queue, forest: Forest, speeds: &Speeds, rates: &PlannerRates) -> Self {
        let deadlines = Deadlines::of(queue, &forest);
        let mut draft = Draft {
            queue,
            forest: &forest,
            deadlines: &deadlines,
            rates,
            speeds,
            loads: vec![0.0; speeds.pods()],
            route: Route::with_room(forest.order().len()),
            segments: Vec::new(),
            classes: Vec::new(),
        };
        draft.fill();
        let Draft { route, segments, classes, .. } = draft;
        let least_tokens = forest.least_tokens(queue);
        let planned = segments.iter().map(|segment| planned_tokens(queue, &route, segment)).sum();
        Self {
            route,
            segments,
            classes,
            least_tokens,
            planned_tokens: planned,
            speeds: speeds.clone(),
            block_size: queue.block_size().get(),
            copies: forest.into_copies(),
        }
    }

    /// All requests in the planned order, pod after pod and class after class.
    #[must_use]
    pub const fn route(&self) -> &Route {
        &self.route
    }

    /// The segments in the order of the route: for each class one per pod, empty ones left out.
    #[must_use]
    pub fn segments(&self) -> &[Segment] {
        &self.segments
    }

    /// The classes, most urgent first.
    #[must_use]
    pub fn classes(&self) -> &[Class] {
        &self.classes
    }

    /// Requests that take the answer of another: the copy and the one that is computed.
    #[must_use]
    pub fn copies(&self) -> &[(JobId, JobId)] {
        &self.copies
    }

    /// The speeds that it was made for.
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

    /// Prompt tokens that this plan computes where a pod's cache holds the longest prompt: the fewest
    /// possible, and what the cuts between segments share.
    #[must_use]
    pub const fn planned_tokens(&self) -> u64 {
        self.planned_tokens
    }

    /// When everything is expected to be done.
    #[must_use]
    pub fn finish(&self) -> Duration {
        self.classes.iter().map(|class| class.finish).max().unwrap_or_default()
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

fn planned_tokens(queue: &Queue, route: &Route, segment: &Segment) -> u64 {
    let stops = &route.stops()[segment.stops.clone()];
    let first = stops.first().map_or(0, |stop| queue.prompt_tokens(stop.job) as u64);
    first + stops.iter().skip(1).map(|stop| u64::from(stop.fresh)).sum::<u64>()
}

/// A plan in the making.
struct Draft<'a> {
    queue: &'a Queue,
    forest: &'a Forest,
    deadlines: &'a Deadlines,
    rates: &'a PlannerRates,
    speeds: &'a Speeds,
    /// Milliseconds of work that each pod has so far, at speed one.
    loads: Vec<f64>,
    route: Route,
    segments: Vec<Segment>,
    classes: Vec<Class>,
}

/// A class that may still grow.
struct Trial {
    route: Route,
    pieces: Vec<Range<usize>>,
    loads: Vec<f64>,
    finish: Duration,
}

impl Draft<'_> {
    fn fill(&mut self) {
        let all = &self.deadlines.all;
        let mut first = 0;
        while first < all.len() {
            let mut trial = self.trial(first..first + 1);
            let mut end = first + 1;
            let on_time = |trial: &Trial| all[first].is_none_or(|limit| trial.finish <= limit);
            // A class that is late on its own gets no company that would make it later.
            while end < all.len() && all[first].is_some() && on_time(&trial) {
                let larger = self.trial(first..end + 1);
                if !on_time(&larger) {
                    break;
                }
                (trial, end) = (larger, end + 1);
            }
            self.accept(trial, all[first]);
            first = end;
        }
    }

    /// The requests of some deadlines, in order and cut, behind what has been accepted.
    fn trial(&self, deadlines: Range<usize>) -> Trial {
        let mut route = Route::with_room(0);
        for (place, shared) in self.deadlines.select(self.forest, deadlines) {
            route.push(self.queue, self.rates, self.forest.order()[place], shared);
        }
        let stops = 0..route.stops().len();
        let speeds = self.speeds.all();
        let work = self.loads.iter().sum::<f64>() + route.cost_behind(stops.clone());
        let level = work / speeds.iter().sum::<f64>();
        let missing = |(speed, load): (&f64, &f64)| (level * speed - load).max(0.0);
        let weights: Vec<_> = speeds.iter().zip(&self.loads).map(missing).collect();
        let pieces = cut(&route, stops, &weights);
        let new = self.loads.iter().zip(&pieces);
        let loads: Vec<_> = new.map(|(load, piece)| load + route.cost(piece.clone())).collect();
        let ends = loads.iter().zip(speeds).zip(&pieces);
        let busy =
            ends.filter(|(_, piece)| !piece.is_empty()).map(|((load, speed), _)| load / speed);
        let finish = Duration::from_secs_f64(busy.fold(0.0, f64::max) / 1e3);
        Trial { route, pieces, loads, finish }
    }

    fn accept(&mut self, trial: Trial, deadline: Option<Duration>) {
        let Trial { route, pieces, loads, finish } = trial;
        let offset = self.route.stops().len();
        let class = self.classes.len();
        let moved = |range: Range<usize>| range.start + offset..range.end + offset;
        // Its costs are not needed any more, and there may be millions.
        let route = route.into_stops();
        let stops = moved(0..route.len());
        for (pod, piece) in pieces.into_iter().enumerate().filter(|(_, piece)| !piece.is_empty()) {
            for (job, shared) in longest_first(self.queue, &route[piece.clone()]) {
                self.route.push(self.queue, self.rates, job, shared);
            }
            self.segments.push(Segment { pod, class, stops: moved(piece) });
        }
        self.classes.push(Class { deadline, stops, finish });
        self.loads = loads;
    }
}
