//! Pods with mock engines, and a router that chooses the first pod of a step that is not excluded.

use crate::engine::{Act, Engine};
use bytes::Bytes;
use hyper::Method;
use hyper::header::HeaderMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::time::Instant;
use wornpath_execution::{
    BreakerRules, BudgetRules, CallFailure, CallOptions, Endpoint, PlanResponse, PoisonRequests,
    RequestFingerprint, RetryBudget, RetryBudgets, Router, StepCall, Target, Timeouts,
    WorkerNumber, execute,
};
use wornpath_index::{Index, IndexLimits, Moment, PodId};
use wornpath_routing::{
    AfterFailure, BreakerState, CacheHint, FailurePolicy, Mark, Mutation, PlanStep, PodState,
    Rejection, Reservation, Retry, Role, RoutingPlan, SkippedBecause, Start,
};

/// The time at the start of a test.
const START: Moment = Moment::from_secs(9);

pub(crate) struct Pod {
    id: PodId,
    pub(crate) engine: Engine,
    pub(crate) endpoint: Arc<Endpoint>,
    pub(crate) pod_state: Arc<PodState>,
}

impl Pod {
    pub(crate) fn breaker(&self) -> BreakerState {
        self.endpoint.breaker().0
    }
}

/// A step of the profile.
#[derive(Clone)]
pub(crate) struct Step {
    pub(crate) name: &'static str,
    /// Its candidates, best first.
    pub(crate) pods: Vec<usize>,
    /// Further candidates if the whole plan is decided.
    pub(crate) by_whole_plan: Vec<usize>,
    pub(crate) start: Start,
    pub(crate) failure: FailurePolicy,
    pub(crate) mutations: Vec<Mutation>,
    pub(crate) deadline: Option<Duration>,
    pub(crate) lease: Option<Duration>,
}

/// A step with these candidates.
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
    pub(crate) asks_usage: bool,
    /// The fingerprint of all requests; none if each is another request.
    pub(crate) request: Option<u64>,
    pub(crate) poison: PoisonRequests,
    runs: AtomicU64,
    /// The load of each pod at every new decision.
    pub(crate) loads: Mutex<Vec<Vec<u32>>>,
    requests_sent: AtomicUsize,
    started: Instant,
    _index: Index,
}

impl World {
    pub(crate) async fn new(engines: &[&[Act]], steps: &[Step]) -> Self {
        let index = Index::new(IndexLimits::default(), 1);
        let mut pods = Vec::new();
        for acts in engines {
            let id = index.add_pod().unwrap();
            let engine = Engine::new(acts).await;
            let url = format!("http://127.0.0.1:{}", engine.port);
            let endpoint = Endpoint::new(&url, BreakerRules::default(), 1).unwrap();
            pods.push(Pod { id, engine, endpoint: Arc::new(endpoint), pod_state: Arc::default() });
        }
        Self {
            pods,
            steps: steps.to_vec(),
            budget: RetryBudget::new(BudgetRules::default(), START),
            timeouts: Timeouts::default(),
            body: "{}",
            asks_usage: false,
            request: None,
            poison: PoisonRequests::new(1),
            runs: AtomicU64::new(0),
            loads: Mutex::default(),
            requests_sent: AtomicUsize::new(0),
            started: Instant::now(),
            _index: index,
        }
    }

    /// Moves a pod to another port.
    pub(crate) fn move_to(&mut self, pod: usize, port: u16) {
        let url = format!("http://127.0.0.1:{port}");
        let endpoint = Endpoint::new(&url, BreakerRules::default(), 1).unwrap();
        self.pods[pod].endpoint = Arc::new(endpoint);
    }

    /// Executes one request up to the first byte of its response.
    pub(crate) async fn run(&self) -> Result<PlanResponse, CallFailure> {
        let plan = self.plan(None, &[]).unwrap();
        let call = StepCall {
            method: Method::POST,
            path: "/v1/completions".parse().unwrap(),
            headers: HeaderMap::new(),
            body: Bytes::from_static(self.body.as_bytes()),
            asks_usage: self.asks_usage,
        };
        let options = CallOptions {
            budget: RetryBudgets { router: &self.budget, tenant: None },
            timeouts: self.timeouts,
            whole_answer: None,
            worker: WorkerNumber(0),
            request: self.fingerprint(),
            poison: &self.poison,
        };
        execute(plan, &call, &options, &mut MockRouter(self)).await
    }

    fn fingerprint(&self) -> RequestFingerprint {
        let number = self.request.unwrap_or_else(|| self.runs.fetch_add(1, Relaxed));
        RequestFingerprint((number + 1) << 32)
    }

    /// Executes one request to the end of its response.
    pub(crate) async fn whole(&self) -> (u16, Bytes) {
        let response = self.run().await.unwrap();
        let (head, body) = response.answer.whole(1 << 20).await.unwrap();
        (head.status.as_u16(), body)
    }

    /// The number of requests to each pod.
    pub(crate) fn requests(&self) -> Vec<usize> {
        self.pods.iter().map(|pod| pod.engine.requests()).collect()
    }

    /// How often the executor has notified the router of a sent request.
    pub(crate) fn requests_sent(&self) -> usize {
        self.requests_sent.load(Relaxed)
    }

    fn plan(&self, only: Option<&str>, excluded: &[PodId]) -> Result<RoutingPlan, Rejection> {
        let mut plan = RoutingPlan { steps: Vec::new(), marks: Vec::new() };
        for step in self.steps.iter().filter(|step| only.is_none_or(|only| step.name == only)) {
            let besides = step.by_whole_plan.iter().filter(|_| only.is_none());
            let mut pods = step.pods.iter().chain(besides).map(|at| &self.pods[*at]);
            match pods.find(|pod| !excluded.contains(&pod.id)) {
                Some(pod) => plan.steps.push(bound(step, pod)),
                None if only.is_none() && step.failure.then == AfterFailure::Skip => {
                    let why = SkippedBecause::NoPod;
                    plan.marks.push(Mark::StepSkipped { step: step.name.into(), why });
                }
                None => return Err(Rejection::unavailable("no pod left")),
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
        reservation: Some(Reservation::new(&pod.pod_state, 9, 9)),
        is_expected: false,
    }
}

/// The router of one request.
struct MockRouter<'a>(&'a World);

impl Router for MockRouter<'_> {
    fn target(&self, pod: PodId) -> Option<Target> {
        let pod = self.0.pods.iter().find(|it| it.id == pod)?;
        let endpoint = Arc::clone(&pod.endpoint);
        Some(Target { endpoint, rank: None, bootstrap_port: pod.engine.port })
    }

    async fn replan(&mut self, retry: Retry<'_>) -> Result<RoutingPlan, Rejection> {
        let loads = self.0.pods.iter().map(|pod| pod.pod_state.requests()).collect();
        self.0.loads.lock().unwrap().push(loads);
        self.0.plan(retry.step.map(|name| name.as_str()), retry.excluded)
    }

    fn now(&self) -> Moment {
        START + self.0.started.elapsed()
    }

    fn unique_id(&mut self) -> u64 {
        7
    }

    fn request_sent(&mut self) {
        self.0.requests_sent.fetch_add(1, Relaxed);
    }
}
