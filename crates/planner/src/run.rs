//! Runs a plan: decides which request each pod gets next. A state machine without I/O or clock.
//!
//! A plan's order saves prefill only if a prefix is cached before the next request asks for it.
//! Engines take many requests at once, and a request that arrives while its prefix is still being
//! computed computes the prefix again. So [`PlanRun::claim`] holds back requests whose prefix is
//! being computed on that pod and hands out the next one that does not need it;
//! [`PlanRun::prefilled`] releases them. It also holds back requests that would decode beside others
//! with which they are better not mixed ([`admission`]), and requests that a pod's cache cannot hold
//! beside the prefixes that others wait for ([`residency`]). The rest follows from the route being contiguous: an idle
//! pod steals the far end of the longest queue ([`work_stealing`]), the work of a lost pod is cut
//! again over the others, and a failed request returns to its position.
//!
//! Each request is settled once: [`JobOutcome`] marks a second answer, or the answer of a pod that
//! has lost the request, as stale.

mod admission;
mod range_set;
mod residency;
mod work_stealing;

use crate::plan::Plan;
use crate::plan::cut;
use crate::queue::JobId;
use crate::route::Route;
use admission::{Admission, Candidate, OnPod};
use range_set::RangeSet;
use residency::Residency;
use std::ops::Range;

/// How many groups may wait for their prefixes while a pod continues behind them. Where groups are
/// small and answers are short, fewer leave an engine half empty; their tokens bound how far ahead
/// prefixes are computed anyway.
const MAX_GROUPS_SCANNED: usize = 16;

/// A pod skips a waiting group only if the group is at most this large. Behind a larger one, the
/// next prefix would be computed long before it is used and might be evicted by then.
const MAX_STOPS_SCANNED: usize = 16;

/// A steal must shorten the run by at least this share.
const MIN_STEAL_GAIN: f64 = 0.01;

/// How much work a pod accepts at once.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RunCapacity {
    /// Requests that may be on a pod at once.
    pub requests: usize,
    /// While this many prompt tokens are still to be computed, the pod gets no further request.
    pub prefill_tokens: usize,
}

/// Whether an answer counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum JobOutcome {
    /// The first answer to its request.
    First,
    /// The request is not on that pod, or is already settled: publish nothing.
    Stale,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum JobState {
    /// Not part of the plan.
    Unplanned,
    Waiting,
    /// On the pod of this number.
    On(u32),
    Done,
}

/// A request whose prompt is being computed.
#[derive(Clone, Copy, Debug)]
struct Prefill {
    job: JobId,
    /// Its position on the route.
    position: usize,
    /// Its leading blocks that the pod held when the request was sent.
    cached: u32,
    tokens: usize,
}

#[derive(Clone, Debug)]
struct RunPod {
    /// `None` once the pod is lost.
    speed: Option<f64>,
    /// Stops that the pod has not been given yet.
    queued: RangeSet,
    prefills: Vec<Prefill>,
    requests: usize,
    /// Milliseconds of the requests on the pod.
    cost: f64,
    /// Stops that the pod was given.
    sent: RangeSet,
    /// The requests on the pod, as they decode together.
    decoding: OnPod,
    /// What its cache must hold.
    resident: Residency,
    /// Tokens that its cache can hold, if that is known.
    kv_tokens: Option<usize>,
}

impl RunPod {
    fn new(speed: f64) -> Self {
        Self {
            speed: Some(speed),
            queued: RangeSet::default(),
            prefills: Vec::new(),
            requests: 0,
            cost: 0.0,
            sent: RangeSet::default(),
            decoding: OnPod::default(),
            resident: Residency::default(),
            kv_tokens: None,
        }
    }

    fn pending_tokens(&self) -> usize {
        self.prefills.iter().map(|prefill| prefill.tokens).sum()
    }
}

/// A plan in progress.
#[derive(Clone, Debug)]
pub struct PlanRun {
    route: Route,
    admission: Admission,
    block_size: usize,
    /// By request number: its position on the route.
    positions: Vec<u32>,
    /// By request number.
    states: Vec<JobState>,
    pods: Vec<RunPod>,
    /// Work of lost pods while no pod is left to take it.
    orphans: RangeSet,
    unsettled: usize,
    steals: usize,
    /// Milliseconds that a steal must save.
    min_steal_gain: f64,
}

impl PlanRun {
    /// Starts a plan.
    #[must_use]
    pub fn new(plan: Plan) -> Self {
        let mut pods: Vec<_> =
            plan.speeds().all().iter().map(|speed| RunPod::new(*speed)).collect();
        for segment in plan.segments() {
            pods[segment.pod].queued.insert(segment.stops.clone());
        }
        for pod in &mut pods {
            pod.kv_tokens = plan.decode_rates().map(|rates| rates.kv_tokens);
        }
        let speed: f64 = plan.speeds().all().iter().sum();
        let block_size = plan.block_size();
        let admission = Admission::new(plan.decode_rates(), plan.decode_groups().to_vec());
        let route = plan.into_route();
        let stops = route.stops();
        let jobs = stops.iter().map(|stop| stop.job.index() + 1).max().unwrap_or(0);
        let mut positions = vec![u32::MAX; jobs];
        let mut states = vec![JobState::Unplanned; jobs];
        for (position, stop) in stops.iter().enumerate() {
            positions[stop.job.index()] = position as u32;
            states[stop.job.index()] = JobState::Waiting;
        }
        Self {
            unsettled: stops.len(),
            min_steal_gain: MIN_STEAL_GAIN * route.cost(0..stops.len()) / speed,
            route,
            admission,
            block_size,
            positions,
            states,
            pods,
            orphans: RangeSet::default(),
            steals: 0,
        }
    }

    /// The next request for a pod, if the pod has capacity and a request need not wait for its
    /// prefix.
    pub fn claim(&mut self, pod: usize, capacity: RunCapacity) -> Option<JobId> {
        let state = &self.pods[pod];
        let is_full = state.requests >= capacity.requests
            || state.pending_tokens() >= capacity.prefill_tokens;
        if state.speed.is_none() || is_full {
            return None;
        }
        if state.queued.is_empty() {
            let gain = self.min_steal_gain;
            let has_stolen = work_stealing::steal(&self.route, &mut self.pods, pod, gain);
            self.steals += usize::from(has_stolen);
            if has_stolen {
                (0..self.pods.len()).for_each(|pod| self.recount(pod));
            }
        }
        let position = self.next_position(pod)?;
        let state = &self.pods[pod];
        let next = Candidate {
            position,
            prompt_tokens: self.prompt_tokens(position),
            queued: &state.queued,
            most: capacity.requests,
        };
        if !self.admission.allows(&state.decoding, &next) || !self.fits(pod, position) {
            return None;
        }
        self.pods[pod].queued.take(position);
        Some(self.send(pod, position))
    }

    /// A pod has reported the tokens that its cache can hold.
    pub fn set_kv_tokens(&mut self, pod: usize, tokens: usize) {
        self.pods[pod].kv_tokens = Some(tokens);
    }

    /// Tokens that a pod's cache must hold for the requests on it and for those that wait for their
    /// prefixes.
    #[must_use]
    pub fn resident_tokens(&self, pod: usize) -> usize {
        self.pods[pod].resident.tokens()
    }

    /// A request's prompt has been computed: requests that share its prefix can follow.
    pub fn prefilled(&mut self, job: JobId) {
        if let JobState::On(pod) = self.state(job) {
            self.pods[pod as usize].prefills.retain(|prefill| prefill.job != job);
        }
    }

    /// Whether the next stop of the route is held back until this request's prompt is computed.
    #[must_use]
    pub fn is_awaited(&self, job: JobId) -> bool {
        let JobState::On(pod) = self.state(job) else { return false };
        let pod = &self.pods[pod as usize];
        let next = self.positions[job.index()] as usize + 1;
        let holds_next_back = |prefill: &Prefill| {
            prefill.job == job
                && self.route.stops().get(next).is_some_and(|stop| stop.shared > prefill.cached)
        };
        pod.queued.contains(next) && pod.prefills.iter().any(holds_next_back)
    }

    /// A pod has answered a request.
    pub fn finished(&mut self, job: JobId, pod: usize) -> JobOutcome {
        if !self.remove_from_pod(job, pod) {
            return JobOutcome::Stale;
        }
        self.states[job.index()] = JobState::Done;
        self.unsettled -= 1;
        JobOutcome::First
    }

    /// A request has failed on a pod and is to be retried: it returns to its position.
    pub fn failed(&mut self, job: JobId, pod: usize) -> JobOutcome {
        if !self.remove_from_pod(job, pod) {
            return JobOutcome::Stale;
        }
        self.states[job.index()] = JobState::Waiting;
        let position = self.positions[job.index()] as usize;
        self.pods[pod].sent.take(position);
        self.pods[pod].queued.insert(position..position + 1);
        JobOutcome::First
    }

    /// A pod is lost with every request on it: its work is cut again over the other pods.
    pub fn lost(&mut self, pod: usize) {
        let state = &mut self.pods[pod];
        if state.speed.take().is_none() {
            return;
        }
        let mut work = std::mem::take(&mut state.queued);
        state.prefills.clear();
        state.requests = 0;
        state.cost = 0.0;
        state.sent = RangeSet::default();
        state.decoding = OnPod::default();
        state.resident = Residency::default();
        for (index, state) in self.states.iter_mut().enumerate() {
            if *state == JobState::On(pod as u32) {
                *state = JobState::Waiting;
                let position = self.positions[index] as usize;
                work.insert(position..position + 1);
            }
        }
        for range in work.ranges() {
            self.distribute(range);
        }
    }

    /// A pod has joined: it starts with work that no pod has, and steals. Returns its number.
    pub fn add_pod(&mut self, speed: f64) -> usize {
        let mut pod = RunPod::new(speed);
        pod.queued = std::mem::take(&mut self.orphans);
        self.pods.push(pod);
        self.pods.len() - 1
    }

    /// Requests that are not settled yet.
    #[must_use]
    pub const fn unsettled(&self) -> usize {
        self.unsettled
    }

    /// How often an idle pod stole work from another.
    #[must_use]
    pub const fn steals(&self) -> usize {
        self.steals
    }

    fn state(&self, job: JobId) -> JobState {
        self.states.get(job.index()).copied().unwrap_or(JobState::Unplanned)
    }

    /// The prompt tokens of a stop, to within a block.
    fn prompt_tokens(&self, position: usize) -> usize {
        let stop = self.route.stops()[position];
        stop.fresh as usize + stop.shared as usize * self.block_size
    }

    /// The tokens of a stop's prompt and its expected answer.
    fn context(&self, position: usize) -> usize {
        self.prompt_tokens(position) + self.route.stops()[position].output as usize
    }

    /// Leading tokens of a stop that its pod computed for another.
    fn cached_blocks(&self, pod: usize, position: usize) -> u32 {
        // No stop shares more with this one than its neighbours do, and it has not been held back.
        let (before, after) = self.pods[pod].sent.around(position);
        let shared_before = before.map_or(0, |it| self.route.shared_between(it, position));
        let shared_after = after.map_or(0, |it| self.route.shared_between(position, it));
        shared_before.max(shared_after)
    }

    /// Counts again what a pod's cache must hold: prefixes that were held for requests of its queue
    /// may have left with them.
    fn recount(&mut self, pod: usize) {
        let mut tokens = 0;
        let mut before = None;
        for position in self.pods[pod].resident.in_flight() {
            let shared = before.map_or(0, |it| self.route.shared_between(it, position)) as usize;
            tokens += self.context(position).saturating_sub(shared * self.block_size);
            before = Some(position);
        }
        self.pods[pod].resident.set(tokens);
    }

    /// Whether a pod's cache can hold one more request beside what it must hold already.
    fn fits(&self, pod: usize, position: usize) -> bool {
        let state = &self.pods[pod];
        let Some(kv_tokens) = state.kv_tokens.filter(|_| state.requests > 0) else { return true };
        let cached = self.cached_blocks(pod, position) as usize * self.block_size;
        let more = self.context(position).saturating_sub(cached);
        state.resident.tokens() + more <= kv_tokens
    }

    /// The first stop queued for a pod that need not wait.
    fn next_position(&self, pod: usize) -> Option<usize> {
        let mut ranges = self.pods[pod].queued.ranges().take(MAX_GROUPS_SCANNED);
        ranges.find_map(|range| self.first_free(pod, range))
    }

    fn first_free(&self, pod: usize, range: Range<usize>) -> Option<usize> {
        let end = range.end.min(range.start + MAX_STOPS_SCANNED);
        let mut position = range.start;
        loop {
            let Some(cached) = self.blocked_by(pod, position) else { return Some(position) };
            // A stop that shares more than that with the stop before it waits as well.
            let behind = self.route.stops().get(position + 1..end)?;
            position += 1 + behind.iter().position(|stop| stop.shared <= cached)?;
        }
    }

    /// If a stop's prefix is being computed on the pod: how many blocks of it were cached before.
    fn blocked_by(&self, pod: usize, position: usize) -> Option<u32> {
        let blocks = |prefill: &Prefill| {
            let other = prefill.position;
            let shared = self.route.shared_between(other.min(position), other.max(position));
            (shared > prefill.cached).then_some(prefill.cached)
        };
        self.pods[pod].prefills.iter().filter_map(blocks).min()
    }

    fn send(&mut self, pod: usize, position: usize) -> JobId {
        let stop = self.route.stops()[position];
        let prompt_tokens = self.prompt_tokens(position);
        let cached = self.cached_blocks(pod, position);
        let context = self.context(position);
        let state = &mut self.pods[pod];
        self.admission.sent(&mut state.decoding, position, prompt_tokens);
        state.resident.sent(position, context, cached as usize * self.block_size);
        state.sent.insert(position..position + 1);
        let missing = (stop.shared.saturating_sub(cached)) as usize * self.block_size;
        let tokens = stop.fresh as usize + missing;
        state.prefills.push(Prefill { job: stop.job, position, cached, tokens });
        state.requests += 1;
        state.cost += self.route.cost_behind(position..position + 1);
        self.states[stop.job.index()] = JobState::On(pod as u32);
        stop.job
    }

    /// Removes a request from a pod; `false` if it is not there.
    fn remove_from_pod(&mut self, job: JobId, pod: usize) -> bool {
        if self.state(job) != JobState::On(pod as u32) {
            return false;
        }
        self.prefilled(job);
        let position = self.positions[job.index()] as usize;
        let prompt_tokens = self.prompt_tokens(position);
        let context = self.context(position);
        let state = &mut self.pods[pod];
        self.admission.left(&mut state.decoding, position, prompt_tokens);
        let [before, behind] = state.resident.nearest(&state.queued, position);
        let before = before.map_or(0, |it| self.route.shared_between(it, position));
        let behind = behind.map_or(0, |it| self.route.shared_between(position, it));
        let needed = before.max(behind) as usize * self.block_size;
        state.resident.left(position, context.saturating_sub(needed));
        state.requests -= 1;
        state.cost -= self.route.cost_behind(position..position + 1);
        true
    }

    /// Queues a run of stops on the pods that are alive.
    fn distribute(&mut self, range: Range<usize>) {
        let alive: Vec<_> = (0..self.pods.len())
            .filter_map(|pod| self.pods[pod].speed.map(|speed| (pod, speed)))
            .collect();
        if alive.is_empty() {
            return self.orphans.insert(range);
        }
        if range.len() < alive.len() {
            let load = |pod: usize| work_stealing::time_left(&self.route, &self.pods[pod]);
            let least = alive.iter().min_by(|one, other| load(one.0).total_cmp(&load(other.0)));
            if let Some((pod, _)) = least {
                self.pods[*pod].queued.insert(range);
            }
            return;
        }
        let weights: Vec<_> = alive.iter().map(|(_, speed)| *speed).collect();
        for ((pod, _), piece) in alive.iter().zip(cut(&self.route, range, &weights)) {
            self.pods[*pod].queued.insert(piece);
        }
    }
}
