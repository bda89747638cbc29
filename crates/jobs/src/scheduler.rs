//! Who gets which request next, and what becomes of it: the runner's decisions, without I/O or clock.
//!
//! Order, stealing and re-cutting are the planner's [`Run`]. Around it: a window per pod that follows what its
//! engine says, and that others may hold below a ceiling; pauses for engines that are busy or failing; pods
//! that go and come back; and an end to retries.

use crate::reply::ReplyMeaning;
use std::time::Duration;
use wornpath_planner::{JobId, JobOutcome, Plan, PlanRun, PodLoad, Window};

/// How patient a run is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RetryDelay {
    /// A request is tried so often before it has failed for good.
    pub attempts: u8,
    /// A pod that fails so often in a row has gone.
    pub failures: u32,
    /// The first pause after a failure; it doubles with each.
    pub pause: Duration,
    /// The longest pause.
    pub longest_pause: Duration,
}

impl Default for RetryDelay {
    fn default() -> Self {
        Self {
            attempts: 5,
            failures: 3,
            pause: Duration::from_millis(100),
            longest_pause: Duration::from_secs(10),
        }
    }
}

/// What is to be sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SchedulerOrder {
    /// Which request.
    pub job: JobId,
    /// To which pod.
    pub pod: usize,
    /// Whether others wait until its prompt is computed.
    pub is_awaited: bool,
    /// The pod's number in the run at that time: an answer from before it went does not count.
    number: usize,
}

/// What becomes of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LineFate {
    /// What came is its record.
    Publish,
    /// It is tried again.
    Again,
    /// Nothing: it is settled already, or is with another pod by now.
    Stale,
}

#[derive(Debug)]
struct QueuePosition {
    /// Its number in the run, which is another after it came back; none while it is gone.
    number: Option<usize>,
    window: Window,
    /// Never more than this at once, whatever the window says.
    ceiling: usize,
    failures: u32,
    rests_until: Option<Duration>,
}

/// Conducts one run.
#[derive(Debug)]
pub struct Scheduler {
    run: PlanRun,
    places: Vec<QueuePosition>,
    attempts: Vec<u8>,
    patience: RetryDelay,
    in_flight: usize,
    /// Whom to ask first, so that no pod is always last.
    turn: usize,
}

impl Scheduler {
    /// Starts a plan whose pod `n` has the window `windows[n]`.
    #[must_use]
    pub fn new(plan: Plan, windows: Vec<Window>, patience: RetryDelay) -> Self {
        let jobs = plan.route().stops().iter().map(|stop| stop.job.index() + 1).max().unwrap_or(0);
        let place = |(number, window)| QueuePosition {
            number: Some(number),
            window,
            ceiling: usize::MAX,
            failures: 0,
            rests_until: None,
        };
        Self {
            places: windows.into_iter().enumerate().map(place).collect(),
            run: PlanRun::new(plan),
            attempts: vec![0; jobs],
            patience,
            in_flight: 0,
            turn: 0,
        }
    }

    /// The next request to send, if a pod has room for one.
    pub fn next(&mut self, now: Duration) -> Option<SchedulerOrder> {
        for step in 0..self.places.len() {
            let pod = (self.turn + step) % self.places.len();
            let place = &mut self.places[pod];
            if place.rests_until.is_some_and(|until| until > now) {
                continue;
            }
            place.rests_until = None;
            let Some(number) = place.number else { continue };
            let mut room = place.window.capacity();
            room.requests = room.requests.min(place.ceiling);
            if let Some(job) = self.run.claim(number, room) {
                self.turn = pod + 1;
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

    /// Something came back, or nothing will.
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
                *attempts >= self.patience.attempts
            }
            // Its own fault is none of these.
            ReplyMeaning::Busy(_) | ReplyMeaning::Gone => false,
        };
        if self.places[pod].number != Some(number) {
            return LineFate::Stale;
        }
        let settled = match is_last {
            true => self.run.finished(job, number),
            false => self.run.failed(job, number),
        };
        match meaning {
            ReplyMeaning::Answered | ReplyMeaning::Refused => self.places[pod].failures = 0,
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

    /// An engine says how it is.
    pub fn heard(&mut self, pod: usize, vitals: PodLoad) {
        self.places[pod].window.observe(vitals);
    }

    /// No more than so many at once on a pod.
    pub fn hold_below(&mut self, pod: usize, ceiling: usize) {
        self.places[pod].ceiling = ceiling;
    }

    /// A pod has gone: others get its work.
    pub fn lost(&mut self, pod: usize) {
        if let Some(number) = self.places[pod].number.take() {
            self.run.lost(number);
        }
    }

    /// A pod is there again.
    pub fn back(&mut self, pod: usize, speed: f64) {
        let place = &mut self.places[pod];
        if place.number.is_none() {
            place.number = Some(self.run.joined(speed));
            (place.failures, place.rests_until) = (0, None);
        }
    }

    /// How many pods there are, gone ones too.
    #[must_use]
    pub const fn pods(&self) -> usize {
        self.places.len()
    }

    /// Which pods are gone.
    pub fn gone(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.places.len()).filter(|pod| self.places[*pod].number.is_none())
    }

    /// When the next pause ends.
    #[must_use]
    pub fn wakeup(&self, now: Duration) -> Option<Duration> {
        self.places.iter().filter_map(|place| place.rests_until).filter(|until| *until > now).min()
    }

    /// Requests without an end.
    #[must_use]
    pub const fn unsettled(&self) -> usize {
        self.run.unsettled()
    }

    /// Requests that are under way, those whose answers no longer count included.
    #[must_use]
    pub const fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// How often an idle pod took work from another.
    #[must_use]
    pub const fn thefts(&self) -> usize {
        self.run.thefts()
    }

    fn is_busy(&mut self, pod: usize, after: Option<Duration>, now: Duration) {
        let place = &mut self.places[pod];
        // Of many refusals at once, one halves the window.
        if place.rests_until.is_none_or(|until| until <= now) {
            place.window.refused();
        }
        let pause = after.unwrap_or(self.patience.pause).min(self.patience.longest_pause);
        place.rests_until = place.rests_until.max(Some(now + pause));
    }

    fn has_failed(&mut self, pod: usize, now: Duration) {
        let place = &mut self.places[pod];
        place.failures += 1;
        if place.failures >= self.patience.failures {
            return self.lost(pod);
        }
        let pause = self.patience.pause * 2_u32.saturating_pow(place.failures - 1);
        place.rests_until =
            place.rests_until.max(Some(now + pause.min(self.patience.longest_pause)));
    }
}

#[cfg(test)]
mod tests;
