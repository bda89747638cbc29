//! A planned queue beside a trace's own traffic: it is routed by the same router, behind everybody else.
//!
//! It is carried out as the gateway does it: the planner's [`ReplayRun`] says what comes next, a [`Window`]
//! per pod and a [`Courtesy`] how much at once, and a profile of its own decides and may hold it back.

use super::trace::{Trace, TraceTurn};
use crate::engine::SimEngine;
use std::sync::Arc;
use std::time::Duration;
use wornpath_planner::{JobId, OnlinePriority, Plan, PlanRun, PodLoad, Window};
use wornpath_routing::Profile;

/// How often the gateway looks how its pods are.
pub(super) const LOOK: Duration = Duration::from_millis(500);

/// A queue that is computed beside a trace.
#[derive(Clone, Debug)]
pub struct BackgroundLoad<'a> {
    /// Its requests.
    pub trace: &'a Trace,
    /// The plan for them, over the pods of the fleet.
    pub plan: Plan,
    /// How planned requests are routed: a name and YAML.
    pub profile: (&'a str, &'a str),
    /// Offline requests on one pod at most.
    pub window: usize,
    /// How it gives way to clients.
    pub courtesy: OnlinePriority<usize>,
}

/// What became of it by the time that the trace was over.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct BackgroundResult {
    /// Requests that have ended.
    pub requests: usize,
    /// Prompt tokens of those.
    pub prompt_tokens: u64,
}

pub(super) struct Background<'a> {
    trace: &'a Trace,
    run: PlanRun,
    pub(super) profile: Arc<Profile>,
    windows: Vec<Window>,
    courtesy: OnlinePriority<usize>,
    /// Requests on each pod that have been sent there.
    sent: Vec<usize>,
    /// For each job the pod it was claimed for, and the one it was sent to.
    places: Vec<(usize, Option<usize>)>,
    pub(super) done: BackgroundResult,
}

impl<'a> Background<'a> {
    pub(super) fn new(
        beside: BackgroundLoad<'a>,
        profile: Arc<Profile>,
        step_tokens: usize,
    ) -> Self {
        let (pods, jobs) = (beside.plan.speeds().pods(), beside.trace.turns.len());
        Self {
            trace: beside.trace,
            run: PlanRun::new(beside.plan),
            profile,
            windows: vec![Window::new(beside.window, step_tokens); pods],
            courtesy: beside.courtesy,
            sent: vec![0; pods],
            places: vec![(0, None); jobs],
            done: BackgroundResult::default(),
        }
    }

    pub(super) fn turn(&self, job: usize) -> &'a TraceTurn {
        &self.trace.turns[job]
    }

    /// The next request for a pod, if it may have one.
    pub(super) fn claim(&mut self, pod: usize) -> Option<usize> {
        let mut room = self.windows[pod].capacity();
        room.requests = room.requests.min(self.courtesy.ceiling(pod));
        let job = self.run.claim(pod, room)?.index();
        self.places[job] = (pod, None);
        Some(job)
    }

    /// How an engine is, and with how many requests.
    pub(super) fn look(&mut self, now: Duration, pod: usize, engine: &SimEngine) {
        let load = engine.load();
        self.windows[pod].observe(PodLoad {
            running: load.running,
            waiting: load.waiting,
            kv_usage: load.used_blocks as f64 / load.total_blocks as f64,
        });
        let online = (load.running + load.waiting).saturating_sub(self.sent[pod]);
        self.courtesy.observe(now, pod, online);
    }

    pub(super) fn sent(&mut self, job: usize, pod: usize) {
        self.places[job].1 = Some(pod);
        self.sent[pod] += 1;
    }

    pub(super) fn prefilled(&mut self, job: usize) {
        self.run.prefilled(JobId(job as u32));
    }

    /// It has been answered, or turned away before it was sent.
    pub(super) fn ended(&mut self, job: usize) {
        let (planned, sent) = self.places[job];
        let id = JobId(job as u32);
        let Some(pod) = sent else {
            self.run.failed(id, planned);
            return;
        };
        self.sent[pod] -= 1;
        self.run.finished(id, planned);
        self.done.requests += 1;
        self.done.prompt_tokens += self.trace.turns[job].prompt_tokens as u64;
    }
}
