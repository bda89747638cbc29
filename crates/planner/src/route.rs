//! Requests in the order of computation, with the cost of each behind the one before it.
//!
//! Cutting, stealing and running work on a [`Route`]. It is small (28 bytes a request) and needs no
//! hashes, so a run can continue after the chains of its queue are dropped.

use crate::decode::DecodeGroup;
use crate::forest::fresh_tokens;
use crate::queue::{JobId, Queue};
use crate::rates::PlannerRates;
use std::ops::Range;

/// One request of a route.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RouteStop {
    /// The request computed at this stop.
    pub job: JobId,
    /// Blocks that the request shares with the stop before it.
    pub shared: u32,
    /// Prompt tokens to compute if the request runs right behind that stop on the same pod.
    pub fresh: u32,
    /// Expected tokens of the answer.
    pub output: u32,
}

/// Requests in the order of computation.
#[derive(Clone, PartialEq, Debug)]
pub struct Route {
    stops: Vec<RouteStop>,
    /// Milliseconds of all stops before each one; the last element is the total.
    costs: Vec<f64>,
    /// Milliseconds that prefill of the part shared with the previous stop would add.
    prefix_costs: Vec<f32>,
}

impl Route {
    /// An empty route that can take `stops` without growing.
    pub(crate) fn with_capacity(stops: usize) -> Self {
        let mut costs = Vec::with_capacity(stops + 1);
        costs.push(0.0);
        let prefix_costs = Vec::with_capacity(stops);
        Self { stops: Vec::with_capacity(stops), costs, prefix_costs }
    }

    /// Appends a request that shares `shared` blocks with the last.
    pub(crate) fn push(&mut self, queue: &Queue, rates: &PlannerRates, job: JobId, shared: u32) {
        let fresh = fresh_tokens(queue, job, shared as usize);
        let output = queue.output_tokens(job) as u32;
        self.stops.push(RouteStop { job, shared, fresh: fresh as u32, output });
        let cost = rates.request(queue, job, shared as usize);
        let before = self.costs.last().copied().unwrap_or(0.0);
        self.costs.push(before + cost);
        self.prefix_costs.push(rates.prefill(0, queue.prompt_tokens(job) - fresh) as f32);
    }

    /// Gives the stops of groups that decode apart their shares of that time.
    pub(crate) fn decode_apart(
        &mut self,
        queue: &Queue,
        rates: &PlannerRates,
        groups: &[DecodeGroup],
    ) {
        let mut saved = 0.0;
        let mut next = 0;
        for (position, stop) in self.stops.iter().enumerate() {
            while groups.get(next).is_some_and(|group| group.stops.end <= position) {
                next += 1;
            }
            if let Some(group) = groups.get(next).filter(|it| it.stops.start <= position) {
                let prompt = queue.prompt_tokens(stop.job);
                let among = rates.decode(prompt, queue.output_tokens(stop.job));
                saved += among * (1.0 - group.share);
            }
            self.costs[position + 1] -= saved;
        }
    }

    pub(crate) fn into_stops(self) -> Vec<RouteStop> {
        self.stops
    }

    /// The stops in order.
    #[must_use]
    pub fn stops(&self) -> &[RouteStop] {
        &self.stops
    }

    /// Milliseconds of a run of stops of which the first finds nothing cached.
    #[must_use]
    pub fn cost(&self, range: Range<usize>) -> f64 {
        match range.is_empty() {
            true => 0.0,
            false => self.cost_behind(range.clone()) + self.prefix_cost(range.start),
        }
    }

    /// Milliseconds of a run of stops right behind the stop before it.
    #[must_use]
    pub fn cost_behind(&self, range: Range<usize>) -> f64 {
        self.costs[range.end] - self.costs[range.start]
    }

    /// Milliseconds that a cut before this stop adds: the shared part is computed twice.
    #[must_use]
    pub fn prefix_cost(&self, stop: usize) -> f64 {
        f64::from(self.prefix_costs[stop])
    }

    /// The first stop of `range` with at least `cost` milliseconds of the range before it.
    pub(crate) fn stop_at(&self, range: Range<usize>, cost: f64) -> usize {
        let target = self.costs[range.start] + cost;
        let within = &self.costs[range.start..range.end];
        range.start + within.partition_point(|before| *before < target)
    }

    /// A lower bound of the leading blocks that two stops share; `one` comes before `other`.
    pub(crate) fn shared_between(&self, one: usize, other: usize) -> u32 {
        let mut least = u32::MAX;
        for stop in &self.stops[one + 1..=other] {
            least = least.min(stop.shared);
            if least == 0 {
                break;
            }
        }
        least
    }
}
