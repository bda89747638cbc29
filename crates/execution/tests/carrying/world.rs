//! Pods behind engines, and somebody who decides: the first pod of a step's own that is not excluded.

use crate::engine::{Act, Engine};
use bytes::Bytes;
use hyper::Method;
use hyper::header::HeaderMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::time::Instant;
use wornpath_execution::{
    BreakerRules, BudgetRules, CallFailure, CallOptions, Endpoint, PlanResponse, Replan,
    RetryBudget, StepCall, Target, Timeouts, WorkerNumber, execute,
};
use wornpath_index::{Index, IndexLimits, Moment, PodId};
use wornpath_routing::{
    AfterFailure, BreakerState as Seen, CacheHint, FailurePolicy, Mark, Mutation, PlanStep,
    Rejection, Reservation, Retry, Role, RoutingPlan, SkippedBecause, Start, Vitals,
};

/// When a world begins.
const NOON: Moment = Duration::from_secs(9);

/// A pod.
pub(crate) struct Pod {
    id: PodId,
    pub(crate) engine: Engine,
    pub(crate) endpoint: Arc<Endpoint>,
    pub(crate) vitals: Arc<Vitals>,
}

impl Pod {
    pub(crate) fn breaker(&self) -> Seen {
        self.endpoint.breaker().0
    }
}

/// A step as the profile has it.
#[derive(Clone)]
pub(crate) struct Step {
    pub(crate) name: &'static str,
    /// Who may take it, best first.
    pub(crate) pods: Vec<usize>,
    /// Who else may take it if the plan is made as a whole.
    pub(crate) by_whole_plan: Vec<usize>,
    pub(crate) start: Start,
    pub(crate) failure: FailurePolicy,
    pub(crate) mutations: Vec<Mutation>,
    pub(crate) deadline: Option<Duration>,
    pub(crate) lease: Option<Duration>,
}

/// A step that any of these pods may take, one after the other.
pub(crate) fn step(name: &'static str, pods: &[usize]) -> Step {
    Step {
        name,
        pods: pods.to_vec(),
        by_whole_plan: Vec::new(),
        start: Start::After,
        failure: FailurePolicy { attempts: 3, then: AfterFailure::Fail },
        mutations: Vec::new(),
        deadline: None,
        lease: None,
    }
}

pub(crate) struct World {
    pub(crate) pods: Vec<Pod>,
    pub(crate) steps: Vec<Step>,
    pub(crate) budget: RetryBudget,
    pub(crate) timeouts: Timeouts,
    pub(crate) body: &'static str,
    /// Requests on each pod whenever something was decided again.
    pub(crate) loads: Mutex<Vec<Vec<u32>>>,
    started: Instant,
    _index: Index,
}

impl World {
    pub(crate) async fn new(engines: &[&[Act]], steps: &[Step]) -> Self {
        let index = Index::new(IndexLimits::default(), 1);
        let mut pods = Vec::new();
        for acts in engines {
            let (id, engine) = (index.add_pod().unwrap(), Engine::new(acts).await);
            let url = format!("http://127.0.0.1:{}", engine.port);
            let endpoint = Endpoint::new(&url, BreakerRules::default(), 1).unwrap();
            pods.push(Pod { id, engine, endpoint: Arc::new(endpoint), vitals: Arc::default() });
        }
        Self {
            pods,
            steps: steps.to_vec(),
            budget: RetryBudget::new(BudgetRules::default(), NOON),
            timeouts: Timeouts::default(),
            body: "{}",
            loads: Mutex::default(),
            started: Instant::now(),
            _index: index,
        }
    }

    /// From now on a pod is behind another port.
    pub(crate) fn move_to(&mut self, pod: usize, port: u16) {
        let url = format!("http://127.0.0.1:{port}");
        let endpoint = Endpoint::new(&url, BreakerRules::default(), 1).unwrap();
        self.pods[pod].endpoint = Arc::new(endpoint);
    }

    /// One request, to the first byte of its answer.
    pub(crate) async fn run(&self) -> Result<PlanResponse, CallFailure> {
        let plan = self.plan(None, &[]).unwrap();
        let call = StepCall {
            method: Method::POST,
            path: "/v1/completions".parse().unwrap(),
            headers: HeaderMap::new(),
            body: Bytes::from_static(self.body.as_bytes()),
        };
        let kit = CallOptions {
            budget: &self.budget,
            timeouts: self.timeouts,
            whole_answer: None,
            worker: WorkerNumber(0),
        };
        execute(plan, &call, &kit, &mut Decider(self)).await
    }

    /// One request, to the end of its answer.
    pub(crate) async fn whole(&self) -> (u16, Bytes) {
        let carried = self.run().await.unwrap();
        let (head, body) = carried.answer.whole(1 << 20).await.unwrap();
        (head.status.as_u16(), body)
    }

    pub(crate) fn asked(&self) -> Vec<usize> {
        self.pods.iter().map(|pod| pod.engine.asked()).collect()
    }

    fn plan(&self, only: Option<&str>, excluded: &[PodId]) -> Result<RoutingPlan, Rejection> {
        let mut plan = RoutingPlan { steps: Vec::new(), marks: Vec::new() };
        for step in self.steps.iter().filter(|step| only.is_none_or(|only| step.name == only)) {
            let besides = step.by_whole_plan.iter().filter(|_| only.is_none());
            let mut pods = step.pods.iter().chain(besides).map(|at| &self.pods[*at]);
            match pods.find(|pod| !excluded.contains(&pod.id)) {
                Some(pod) => plan.steps.push(bound(step, pod)),
                None if only.is_none() && step.failure.then == AfterFailure::Skip => {
                    let (step, why) = (step.name.into(), SkippedBecause::NoPod);
                    plan.marks.push(Mark::StepSkipped { step, why });
                }
                None => return Err(Rejection::unavailable("no pod is left")),
            }
            if let [first] = &mut plan.steps[..]
                && only.is_none()
            {
                first.mutations.retain(|mutation| !matches!(mutation, Mutation::TakeKv(_)));
            }
        }
        Ok(plan)
    }
}

fn bound(step: &Step, pod: &Pod) -> PlanStep {
    PlanStep {
        name: step.name.into(),
        role: Role::named(Role::SERVE),
        pod: Some(pod.id),
        fallbacks: Vec::new(),
        start: step.start,
        failure: step.failure,
        deadline: step.deadline,
        lease: step.lease,
        cache: CacheHint::default(),
        mutations: step.mutations.clone(),
        computed_after: None,
        reservation: Some(Reservation::new(&pod.vitals, 9, 9)),
        is_expected: false,
    }
}

/// Decides for one request.
struct Decider<'a>(&'a World);

impl Replan for Decider<'_> {
    fn target(&self, pod: PodId) -> Option<Target> {
        let pod = self.0.pods.iter().find(|it| it.id == pod)?;
        let (endpoint, bootstrap_port) = (Arc::clone(&pod.endpoint), pod.engine.port);
        Some(Target { endpoint, rank: None, bootstrap_port })
    }

    async fn replan(&mut self, retry: Retry<'_>) -> Result<RoutingPlan, Rejection> {
        let loads = self.0.pods.iter().map(|pod| pod.vitals.requests()).collect();
        self.0.loads.lock().unwrap().push(loads);
        self.0.plan(retry.step.map(|name| name.as_str()), retry.excluded)
    }

    fn now(&self) -> Moment {
        NOON + self.0.started.elapsed()
    }

    fn room(&mut self) -> u64 {
        7
    }
}
