//! A planned queue beside a trace's own traffic, routed by the same router at the lowest priority.
//!
//! As in the gateway, the planner's [`PlanRun`] chooses the next request, a [`Window`] per pod and
//! an [`OnlinePriority`] limit how many are in flight, and a profile of its own routes them and may
//! hold them in the wait queue.

use super::router::ProfileText;
use super::trace::{Trace, TraceTurn};
use crate::engine::SimEngine;
use std::sync::Arc;
use std::time::Duration;
use wornpath_index::Moment;
use wornpath_planner::{JobId, OnlinePriority, Plan, PlanRun, PodLoad, Window};
use wornpath_routing::Profile;

/// How often the gateway observes the load of its pods.
pub(super) const OBSERVE_INTERVAL: Duration = Duration::from_millis(500);

/// A planned queue that runs beside a trace.
#[derive(Clone, Debug)]
pub struct BackgroundLoad<'a> {
    /// Its requests.
    pub trace: &'a Trace,
    /// The plan for them, over the pods of the fleet.
    pub plan: Plan,
    /// The profile that routes planned requests.
    pub profile: ProfileText<'a>,
    /// Maximum of planned requests in flight on one pod.
    pub window: usize,
    /// How planned requests give way to clients.
    pub online_priority: OnlinePriority<usize>,
}

/// Planned requests that finished before the trace ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct BackgroundResult {
    /// Finished requests.
    pub requests: usize,
    /// Their prompt tokens.
    pub prompt_tokens: u64,
}

pub(super) struct Background<'a> {
    trace: &'a Trace,
    run: PlanRun,
    pub(super) profile: Arc<Profile>,
    windows: Vec<Window>,
    online_priority: OnlinePriority<usize>,
    /// Planned requests in flight on each pod.
    in_flight: Vec<usize>,
    /// The pods of each job.
    assignments: Vec<Assignment>,
    pub(super) result: BackgroundResult,
}

/// The pod that a job was claimed for, and the one that it was sent to.
#[derive(Clone, Copy, Default)]
struct Assignment {
    planned: usize,
    sent: Option<usize>,
}

impl<'a> Background<'a> {
    pub(super) fn new(load: BackgroundLoad<'a>, profile: Arc<Profile>, step_tokens: usize) -> Self {
        let pods = load.plan.speeds().pods();
        Self {
            trace: load.trace,
            run: PlanRun::new(load.plan),
            profile,
            windows: vec![Window::new(load.window, step_tokens); pods],
            online_priority: load.online_priority,
            in_flight: vec![0; pods],
            assignments: vec![Assignment::default(); load.trace.turns.len()],
            result: BackgroundResult::default(),
        }
    }

    pub(super) fn turn(&self, job: usize) -> &'a TraceTurn {
        &self.trace.turns[job]
    }

    /// Claims the next request for a pod, if its window and the clients allow one.
    pub(super) fn claim(&mut self, pod: usize) -> Option<usize> {
        let mut room = self.windows[pod].capacity();
        room.requests = room.requests.min(self.online_priority.ceiling(pod));
        let job = self.run.claim(pod, room)?.index();
        self.assignments[job] = Assignment { planned: pod, sent: None };
        Some(job)
    }

    /// Observes the load of a pod.
    pub(super) fn observe(&mut self, now: Duration, pod: usize, engine: &SimEngine) {
        let load = engine.load();
        self.windows[pod].observe(PodLoad {
            running: load.running,
            waiting: load.waiting,
            kv_usage: load.used_blocks as f64 / load.total_blocks as f64,
            kv_tokens: None,
        });
        let online = (load.running + load.waiting).saturating_sub(self.in_flight[pod]);
        self.online_priority.observe(Moment::at(now), pod, online);
    }

    pub(super) fn sent(&mut self, job: usize, pod: usize) {
        self.assignments[job].sent = Some(pod);
        self.in_flight[pod] += 1;
    }

    pub(super) fn prefilled(&mut self, job: usize) {
        self.run.prefilled(JobId(job as u32));
    }

    /// Ends a job that has finished, or that the router refused before it was sent.
    pub(super) fn ended(&mut self, job: usize) {
        let Assignment { planned, sent } = self.assignments[job];
        let id = JobId(job as u32);
        let Some(pod) = sent else {
            self.run.failed(id, planned);
            return;
        };
        self.in_flight[pod] -= 1;
        self.run.finished(id, planned);
        self.result.requests += 1;
        self.result.prompt_tokens += self.trace.turns[job].prompt_tokens as u64;
    }
}
