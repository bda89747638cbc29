//! Carrying a plan out: who gets which request next, as a state machine without I/O or clock.
//!
//! A plan's order saves prefill only if a prefix is cached before the next request asks for it. Engines take
//! many requests at once, and one that comes while its prefix is still being computed computes it again.
//! So [`Run::claim`] holds back requests whose prefix is under way on that pod and gives out the next
//! that do not need it; [`Run::prefilled`] lets them go. Everything else follows from the route being
//! contiguous: an idle pod steals the far end of the longest queue ([`work_stealing`]), a lost pod's work is cut
//! again over the others, a failed request goes back to its place, and what nobody has claimed can be
//! planned anew.
//!
//! Every request is settled once: a second answer, or an answer of a pod that has lost the request, is
//! told apart by [`JobOutcome`].

mod range_set;
mod work_stealing;

use crate::cut::cut;
use crate::plan::Plan;
use crate::queue::JobId;
use crate::route::Route;
use range_set::RangeSet;
use std::ops::Range;

/// So many groups may wait for their prefixes while a pod goes on behind them. Where groups are small and answers are
/// short, fewer leave an engine half empty; how far ahead prefixes are computed is bounded by their tokens anyway.
const GROUPS_LOOKED_AT: usize = 16;

/// A group that waits is passed by only if it is at most this large. Behind a larger one, the next prefix would
/// be computed long before its turn and might be evicted by then.
const STOPS_LOOKED_AT: usize = 16;

/// A theft must shorten the run by this share at least.
const WORTH_STEALING: f64 = 0.01;

/// How much a pod can take.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RunCapacity {
    /// Requests that may be on a pod at once.
    pub requests: usize,
    /// No further request is given out while so many prompt tokens are still to be computed.
    pub prefill_tokens: usize,
}

/// Whether an answer counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum JobOutcome {
    /// It is the first of its request.
    First,
    /// The request is not on that pod, or has been settled: publish nothing.
    Stale,
}

/// A plan that does not fit a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum RunError {
    /// It would compute a request twice.
    #[error("request {} is on a pod or done; plan only what nobody has claimed", job.0)]
    NotWaiting {
        /// Which.
        job: JobId,
    },
    /// It would lose requests.
    #[error("the plan leaves out {missing} requests that nobody has claimed; plan all of them")]
    Incomplete {
        /// How many.
        missing: usize,
    },
    /// It is for another fleet.
    #[error("the plan is for {planned} pods and the run has {pods}; plan for as many")]
    OtherFleet {
        /// Pods of the plan.
        planned: usize,
        /// Pods of the run, lost ones too.
        pods: usize,
    },
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum JobState {
    Unknown,
    Waiting,
    On(u32),
    Done,
}

/// A request whose prompt is being computed.
#[derive(Clone, Copy, Debug)]
struct Computing {
    job: JobId,
    /// Where it is on the route.
    place: usize,
    /// Its leading blocks that the pod had when it was sent.
    cached: u32,
    tokens: usize,
}

#[derive(Clone, Debug)]
struct RunPod {
    /// None once it is lost.
    speed: Option<f64>,
    ahead: RangeSet,
    computing: Vec<Computing>,
    requests: usize,
    /// Milliseconds of the requests on it.
    cost: f64,
    /// The stops that it was given.
    visited: RangeSet,
}

impl RunPod {
    fn new(speed: f64) -> Self {
        Self {
            speed: Some(speed),
            ahead: RangeSet::default(),
            computing: Vec::new(),
            requests: 0,
            cost: 0.0,
            visited: RangeSet::default(),
        }
    }

    fn pending_tokens(&self) -> usize {
        self.computing.iter().map(|computing| computing.tokens).sum()
    }
}

/// A plan that is being carried out.
#[derive(Clone, Debug)]
pub struct PlanRun {
    route: Route,
    block_size: usize,
    /// Of every request by number: its place on the route, and its state.
    places: Vec<u32>,
    states: Vec<JobState>,
    pods: Vec<RunPod>,
    /// Work of lost pods while there is no other.
    orphans: RangeSet,
    unsettled: usize,
    thefts: usize,
    /// Milliseconds that a theft must save.
    worth: f64,
}

impl PlanRun {
    /// Starts a plan.
    #[must_use]
    pub fn new(plan: Plan) -> Self {
        let mut run = Self {
            route: Route::default(),
            block_size: plan.block_size(),
            places: Vec::new(),
            states: Vec::new(),
            pods: plan.speeds().all().iter().map(|speed| RunPod::new(*speed)).collect(),
            orphans: RangeSet::default(),
            unsettled: 0,
            thefts: 0,
            worth: 0.0,
        };
        run.take_over(plan);
        run
    }

    /// The next request for a pod, if it has room and there is one whose prefix it need not wait for.
    pub fn claim(&mut self, pod: usize, room: RunCapacity) -> Option<JobId> {
        let state = &self.pods[pod];
        let full = state.requests >= room.requests || state.pending_tokens() >= room.prefill_tokens;
        if state.speed.is_none() || full {
            return None;
        }
        if state.ahead.is_empty() {
            self.thefts +=
                usize::from(work_stealing::steal(&self.route, &mut self.pods, pod, self.worth));
        }
        let place = self.next_place(pod)?;
        self.pods[pod].ahead.take(place);
        Some(self.send(pod, place))
    }

    /// A request's prompt has been computed: what shares its prefix can follow.
    pub fn prefilled(&mut self, job: JobId) {
        if let JobState::On(pod) = self.state(job) {
            self.pods[pod as usize].computing.retain(|computing| computing.job != job);
        }
    }

    /// Whether the next of the route is held back until this request's prompt has been computed.
    #[must_use]
    pub fn is_awaited(&self, job: JobId) -> bool {
        let JobState::On(pod) = self.state(job) else { return false };
        let pod = &self.pods[pod as usize];
        let next = self.places[job.index()] as usize + 1;
        let waits = |computing: &Computing| {
            computing.job == job
                && self.route.stops().get(next).is_some_and(|stop| stop.shared > computing.cached)
        };
        pod.ahead.contains(next) && pod.computing.iter().any(waits)
    }

    /// A request has been answered by a pod.
    pub fn finished(&mut self, job: JobId, pod: usize) -> JobOutcome {
        if !self.leave(job, pod) {
            return JobOutcome::Stale;
        }
        self.states[job.index()] = JobState::Done;
        self.unsettled -= 1;
        JobOutcome::First
    }

    /// A request has failed on a pod and is to be tried again: it goes back to its place.
    pub fn failed(&mut self, job: JobId, pod: usize) -> JobOutcome {
        if !self.leave(job, pod) {
            return JobOutcome::Stale;
        }
        self.states[job.index()] = JobState::Waiting;
        let place = self.places[job.index()] as usize;
        self.pods[pod].visited.take(place);
        self.pods[pod].ahead.insert(place..place + 1);
        JobOutcome::First
    }

    /// A pod has gone, with all that was on it: its work is cut again over the others.
    pub fn lost(&mut self, pod: usize) {
        let state = &mut self.pods[pod];
        if state.speed.take().is_none() {
            return;
        }
        let mut work = std::mem::take(&mut state.ahead);
        state.computing.clear();
        (state.requests, state.cost, state.visited) = (0, 0.0, RangeSet::default());
        for (index, state) in self.states.iter_mut().enumerate() {
            if *state == JobState::On(pod as u32) {
                *state = JobState::Waiting;
                work.insert(self.places[index] as usize..self.places[index] as usize + 1);
            }
        }
        for range in work.ranges() {
            self.hand_out(range);
        }
    }

    /// A pod has come: it starts with what nobody has, and steals.
    pub fn joined(&mut self, speed: f64) -> usize {
        let mut pod = RunPod::new(speed);
        pod.ahead = std::mem::take(&mut self.orphans);
        self.pods.push(pod);
        self.pods.len() - 1
    }

    /// Requests that nobody has claimed, in the order of the route: what can be planned again.
    #[must_use]
    pub fn unclaimed(&self) -> Vec<JobId> {
        let jobs = self.route.stops().iter().map(|stop| stop.job);
        jobs.filter(|job| self.state(*job) == JobState::Waiting).collect()
    }

    /// Goes on with another plan for what nobody has claimed, and perhaps for new requests.
    ///
    /// # Errors
    /// If the plan would compute a request twice, leave one out, or is for another fleet.
    pub fn replan(&mut self, plan: Plan) -> Result<(), RunError> {
        let (planned, pods) = (plan.speeds().pods(), self.pods.len());
        if planned != pods {
            return Err(RunError::OtherFleet { planned, pods });
        }
        let mut waiting = 0;
        for stop in plan.route().stops() {
            match self.state(stop.job) {
                JobState::Waiting => waiting += 1,
                JobState::Unknown => {}
                _ => return Err(RunError::NotWaiting { job: stop.job }),
            }
        }
        let missing = self.unclaimed().len() - waiting;
        if missing > 0 {
            return Err(RunError::Incomplete { missing });
        }
        self.unsettled -= waiting;
        self.take_over(plan);
        Ok(())
    }

    /// Requests that are not settled yet.
    #[must_use]
    pub const fn unsettled(&self) -> usize {
        self.unsettled
    }

    /// How often an idle pod took work from another.
    #[must_use]
    pub const fn thefts(&self) -> usize {
        self.thefts
    }

    fn take_over(&mut self, plan: Plan) {
        self.orphans = RangeSet::default();
        self.unsettled += plan.route().stops().len();
        let segments = plan.segments().to_vec();
        let old = std::mem::replace(&mut self.route, plan.into_route());
        for place in 0..self.route.stops().len() {
            let index = self.route.stops()[place].job.index();
            if index >= self.states.len() {
                self.states.resize(index + 1, JobState::Unknown);
                self.places.resize(index + 1, u32::MAX);
            }
            self.states[index] = JobState::Waiting;
            self.places[index] = place as u32;
        }
        let speed: f64 = self.pods.iter().filter_map(|pod| pod.speed).sum();
        self.worth = WORTH_STEALING * self.route.cost(0..self.route.stops().len()) / speed;
        self.keep_what_is_on_pods(&old);
        for segment in segments {
            match self.pods[segment.pod].speed {
                Some(_) => self.pods[segment.pod].ahead.insert(segment.stops),
                None => self.hand_out(segment.stops),
            }
        }
    }

    /// What is on pods gets places at the end of the new route: should it fail, it has somewhere to go.
    fn keep_what_is_on_pods(&mut self, old: &Route) {
        for (place, stop) in old.stops().iter().enumerate() {
            if let JobState::On(_) = self.states[stop.job.index()] {
                self.places[stop.job.index()] = self.route.stops().len() as u32;
                self.route.push_alone(old, place, self.block_size);
            }
        }
        for pod in &mut self.pods {
            (pod.ahead, pod.visited) = (RangeSet::default(), RangeSet::default());
            for computing in &mut pod.computing {
                computing.place = self.places[computing.job.index()] as usize;
            }
        }
    }

    fn state(&self, job: JobId) -> JobState {
        self.states.get(job.index()).copied().unwrap_or(JobState::Unknown)
    }

    /// The first stop ahead of a pod that need not wait.
    fn next_place(&self, pod: usize) -> Option<usize> {
        let mut ranges = self.pods[pod].ahead.ranges().take(GROUPS_LOOKED_AT);
        ranges.find_map(|range| self.first_free(pod, range))
    }

    fn first_free(&self, pod: usize, range: Range<usize>) -> Option<usize> {
        let end = range.end.min(range.start + STOPS_LOOKED_AT);
        let mut place = range.start;
        loop {
            let Some(cached) = self.waits_for(pod, place) else { return Some(place) };
            // Whoever shares more than that with the stop before it waits as well.
            let behind = self.route.stops().get(place + 1..end)?;
            place += 1 + behind.iter().position(|stop| stop.shared <= cached)?;
        }
    }

    /// If a stop's prefix is being computed on the pod: how many blocks of it were cached before.
    fn waits_for(&self, pod: usize, place: usize) -> Option<u32> {
        let computing = self.pods[pod].computing.iter();
        let waits = |computing: &Computing| {
            let other = computing.place;
            let shared = self.route.shared_between(other.min(place), other.max(place));
            (shared > computing.cached).then_some(computing.cached)
        };
        computing.filter_map(waits).min()
    }

    fn send(&mut self, pod: usize, place: usize) -> JobId {
        let stop = self.route.stops()[place];
        let state = &mut self.pods[pod];
        // Nobody shares more with a stop than its neighbours do, and it has not been held back.
        let (before, after) = state.visited.around(place);
        let below = before.map_or(0, |before| self.route.shared_between(before, place));
        let cached = below.max(after.map_or(0, |after| self.route.shared_between(place, after)));
        state.visited.insert(place..place + 1);
        let missing = (stop.shared.saturating_sub(cached)) as usize * self.block_size;
        let tokens = stop.fresh as usize + missing;
        state.computing.push(Computing { job: stop.job, place, cached, tokens });
        state.requests += 1;
        state.cost += self.route.cost_behind(place..place + 1);
        self.states[stop.job.index()] = JobState::On(pod as u32);
        stop.job
    }

    /// Takes a request off a pod, if it is there.
    fn leave(&mut self, job: JobId, pod: usize) -> bool {
        if self.state(job) != JobState::On(pod as u32) {
            return false;
        }
        self.prefilled(job);
        let place = self.places[job.index()] as usize;
        let state = &mut self.pods[pod];
        state.requests -= 1;
        state.cost -= self.route.cost_behind(place..place + 1);
        true
    }

    /// Gives a run of stops to the pods that are there.
    fn hand_out(&mut self, range: Range<usize>) {
        let here: Vec<_> = (0..self.pods.len())
            .filter_map(|pod| self.pods[pod].speed.map(|speed| (pod, speed)))
            .collect();
        if here.is_empty() {
            return self.orphans.insert(range);
        }
        if range.len() < here.len() {
            let load = |pod: usize| work_stealing::time_left(&self.route, &self.pods[pod]);
            let least = here.iter().min_by(|one, other| load(one.0).total_cmp(&load(other.0)));
            if let Some((pod, _)) = least {
                self.pods[*pod].ahead.insert(range);
            }
            return;
        }
        let weights: Vec<_> = here.iter().map(|(_, speed)| *speed).collect();
        for ((pod, _), piece) in here.iter().zip(cut(&self.route, range, &weights)) {
            self.pods[*pod].ahead.insert(piece);
        }
    }
}
