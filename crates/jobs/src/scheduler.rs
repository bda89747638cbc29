//! The runner's decisions, without I/O or clock: which pod gets which request next, and when to
//! retry.
//!
//! Order, work stealing and re-partitioning are the planner's [`PlanRun`]. Around it: a window per
//! pod that follows the engine's load and that online traffic may hold below a ceiling; backoff for
//! engines that are busy or failing; pods that are lost and come back; and a limit of attempts.

use crate::reply::ReplyMeaning;
use std::time::Duration;
use wornpath_planner::{JobId, JobOutcome, Plan, PlanRun, PodLoad, Window};
use wornpath_time::Backoff;

/// When requests and pods have failed for good, and the delays before.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RetryPolicy {
    /// Attempts of a request before it has failed for good.
    pub attempts: u8,
    /// Failures in a row after which a pod is lost.
    pub failures: u32,
    /// The delay of a pod after each failure. It also bounds the `Retry-After` of busy pods.
    pub backoff: Backoff,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self {
            attempts: 5,
            failures: 3,
            backoff: Backoff::new(Duration::from_millis(100), Duration::from_secs(10)),
        }
    }
}

/// A request to send.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SchedulerOrder {
    /// The request.
    pub job: JobId,
    /// The pod that gets it.
    pub pod: usize,
    /// Whether others wait until its prompt is computed.
    pub is_awaited: bool,
    /// The pod's number in the plan's run at that time: a response from before the pod was lost is
    /// stale.
    number: usize,
}

/// What follows the end of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LineFate {
    /// Its response is published.
    Publish,
    /// It will be retried.
    Again,
    /// Nothing: it has its record, or was given to another pod.
    Stale,
}

#[derive(Debug)]
struct PodSlot {
    /// Its number in the plan's run, a new one after it came back; none while it is lost.
    number: Option<usize>,
    window: Window,
    /// The most requests in flight, whatever the window allows.
    ceiling: usize,
    failures: u32,
    rests_until: Option<Duration>,
}

/// Schedules one run.
#[derive(Debug)]
pub struct Scheduler {
    run: PlanRun,
    slots: Vec<PodSlot>,
    /// The window of a pod that joins.
    window: Option<Window>,
    attempts: Vec<u8>,
    policy: RetryPolicy,
    in_flight: usize,
    /// The pod to serve first, so that none is always last.
    next_pod: usize,
}

impl Scheduler {
    /// Schedules a plan whose pod `n` has the window `windows[n]`.
    #[must_use]
    pub fn new(plan: Plan, windows: Vec<Window>, policy: RetryPolicy) -> Self {
        let jobs = plan.route().stops().iter().map(|stop| stop.job.index() + 1).max().unwrap_or(0);
        let slot = |(number, window)| PodSlot {
            number: Some(number),
            window,
            ceiling: usize::MAX,
            failures: 0,
            rests_until: None,
        };
        Self {
            window: windows.first().copied(),
            slots: windows.into_iter().enumerate().map(slot).collect(),
            run: PlanRun::new(plan),
            attempts: vec![0; jobs],
            policy,
            in_flight: 0,
            next_pod: 0,
        }
    }

    /// The next request to send, if a pod has capacity.
    pub fn next(&mut self, now: Duration) -> Option<SchedulerOrder> {
        for step in 0..self.slots.len() {
            let pod = (self.next_pod + step) % self.slots.len();
            let slot = &mut self.slots[pod];
            if slot.rests_until.is_some_and(|until| until > now) {
                continue;
            }
            slot.rests_until = None;
            let Some(number) = slot.number else { continue };
            let mut capacity = slot.window.capacity();
            capacity.requests = capacity.requests.min(slot.ceiling);
            if let Some(job) = self.run.claim(number, capacity) {
                self.next_pod = pod + 1;
                self.in_flight += 1;
                return Some(SchedulerOrder {
                    job,
                    pod,
                    is_awaited: self.run.is_awaited(job),
                    number,
                });
            }
        }
        None
    }

    /// A request's prompt has been computed.
    pub fn prefilled(&mut self, job: JobId) {
        self.run.prefilled(job);
    }

    /// A request has its response, or has failed.
    pub fn ended(
        &mut self,
        order: SchedulerOrder,
        meaning: ReplyMeaning,
        now: Duration,
    ) -> LineFate {
        let SchedulerOrder { job, pod, number, .. } = order;
        self.in_flight -= 1;
        let attempts = &mut self.attempts[job.index()];
        let is_last = match meaning {
            ReplyMeaning::Answered | ReplyMeaning::Refused => true,
            ReplyMeaning::Failed => {
                *attempts += 1;
                *attempts >= self.policy.attempts
            }
            // Neither is the fault of the request.
            ReplyMeaning::Busy(_) | ReplyMeaning::Gone => false,
        };
        if self.slots[pod].number != Some(number) {
            return LineFate::Stale;
        }
        let settled = match is_last {
            true => self.run.finished(job, number),
            false => self.run.failed(job, number),
        };
        match meaning {
            ReplyMeaning::Answered | ReplyMeaning::Refused => self.slots[pod].failures = 0,
            ReplyMeaning::Busy(after) => self.is_busy(pod, after, now),
            ReplyMeaning::Failed => self.has_failed(pod, now),
            ReplyMeaning::Gone => self.lost(pod),
        }
        match (settled, is_last) {
            (JobOutcome::Stale, _) => LineFate::Stale,
            (JobOutcome::First, true) => LineFate::Publish,
            (JobOutcome::First, false) => LineFate::Again,
        }
    }

    /// Updates the window of a pod by its load.
    pub fn observe(&mut self, pod: usize, pod_state: PodLoad) {
        let slot = &mut self.slots[pod];
        slot.window.observe(pod_state);
        if let (Some(number), Some(tokens)) = (slot.number, pod_state.kv_tokens) {
            self.run.set_kv_tokens(number, tokens);
        }
    }

    /// Limits the requests in flight on a pod.
    pub fn hold_below(&mut self, pod: usize, ceiling: usize) {
        self.slots[pod].ceiling = ceiling;
    }

    /// A pod is lost: others get its work.
    pub fn lost(&mut self, pod: usize) {
        if let Some(number) = self.slots[pod].number.take() {
            self.run.lost(number);
        }
    }

    /// A pod is back.
    pub fn back(&mut self, pod: usize, speed: f64) {
        let slot = &mut self.slots[pod];
        if slot.number.is_none() {
            slot.number = Some(self.run.add_pod(speed));
            slot.failures = 0;
            slot.rests_until = None;
        }
    }

    /// A pod joins: it takes work over from the others. It gets no request until
    /// [`hold_below`](Self::hold_below) says how many it may have.
    pub fn join(&mut self) {
        self.slots.push(PodSlot {
            number: Some(self.run.add_pod(1.0)),
            window: self.window.unwrap_or(Window::new(1, 1)),
            ceiling: 0,
            failures: 0,
            rests_until: None,
        });
    }

    /// The number of pods, including lost ones.
    #[must_use]
    pub const fn pods(&self) -> usize {
        self.slots.len()
    }

    /// The lost pods.
    pub fn gone(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.slots.len()).filter(|pod| self.slots[*pod].number.is_none())
    }

    /// When the next backoff ends.
    #[must_use]
    pub fn wakeup(&self, now: Duration) -> Option<Duration> {
        self.slots.iter().filter_map(|slot| slot.rests_until).filter(|until| *until > now).min()
    }

    /// Requests without a record.
    #[must_use]
    pub const fn unsettled(&self) -> usize {
        self.run.unsettled()
    }

    /// Requests in flight, including those whose responses are stale.
    #[must_use]
    pub const fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// How often an idle pod stole work from another.
    #[must_use]
    pub const fn steals(&self) -> usize {
        self.run.steals()
    }

    fn is_busy(&mut self, pod: usize, after: Option<Duration>, now: Duration) {
        let slot = &mut self.slots[pod];
        // Of many refusals at once, one halves the window.
        if slot.rests_until.is_none_or(|until| until <= now) {
            slot.window.refused();
        }
        let backoff = self.policy.backoff;
        let delay = after.unwrap_or(backoff.first()).min(backoff.longest());
        slot.rests_until = slot.rests_until.max(Some(now + delay));
    }

    fn has_failed(&mut self, pod: usize, now: Duration) {
        let slot = &mut self.slots[pod];
        slot.failures += 1;
        if slot.failures >= self.policy.failures {
            return self.lost(pod);
        }
        let delay = self.policy.backoff.delay_after(slot.failures);
        slot.rests_until = slot.rests_until.max(Some(now + delay));
    }
}

#[cfg(test)]
mod tests;
