//! Plans by which several engines work on one request.
//!
//! A client that disconnects cancels its plan, but not while one engine holds KV cache for another:
//! only loading it frees that memory. So such a plan runs in a task of its own, which outlives the
//! client until no lease is open.

use crate::observe::request_trace::RequestTrace;
use crate::proxy::body_budget::BodyReservation;
use crate::proxy::error_response::ErrorResponse;
use crate::proxy::execute::{CallPolicy, KvLease, Replanner};
use crate::proxy::quota::QuotaPermit;
use crate::proxy::worker::Worker;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;
use wornpath_execution::{self as execution, CallFailure, PlanResponse, StepCall};
use wornpath_index::Moment;
use wornpath_routing::{Profile, Rejection, RoutingContext, RoutingPlan};

/// How often a plan without a client checks whether a lease is still open.
const LEASE_POLL: Duration = Duration::from_millis(50);

/// What a plan runs with.
pub(crate) struct PlanTask {
    pub(crate) plan: RoutingPlan,
    pub(crate) call: StepCall,
    /// What the body of `call` holds of the budget, as long as the plan runs.
    pub(crate) reservation: Option<BodyReservation>,
    pub(crate) context: Option<RoutingContext>,
    pub(crate) trace: Option<Box<RequestTrace>>,
    /// Held as long as the plan runs, with or without its client.
    pub(crate) permit: Option<QuotaPermit>,
    pub(crate) policy: CallPolicy,
}

/// A plan that has run.
pub(crate) struct PlanDone {
    pub(crate) response: Result<PlanResponse, CallFailure>,
    pub(crate) trace: Option<Box<RequestTrace>>,
    pub(crate) permit: Option<QuotaPermit>,
}

/// Runs a plan to the first byte of its answer.
pub(crate) async fn execute(
    worker: &Arc<Worker>,
    profile: &Arc<Profile>,
    task: PlanTask,
) -> Result<PlanDone, ErrorResponse> {
    let (client, client_left) = oneshot::channel::<Infallible>();
    let run = run(Arc::clone(worker), Arc::clone(profile), task, client_left);
    let done = tokio::spawn(run).await;
    // Dropped here or with this future: that is how the task learns that the client disconnected.
    drop(client);
    let canceled = "request canceled: the client disconnected";
    let canceled = || ErrorResponse::from(Rejection::unavailable(canceled));
    done.ok().flatten().ok_or_else(canceled)
}

async fn run(
    worker: Arc<Worker>,
    profile: Arc<Profile>,
    task: PlanTask,
    client: oneshot::Receiver<Infallible>,
) -> Option<PlanDone> {
    let gateway = &worker.gateway;
    let lease = KvLease::default();
    let PlanTask { plan, call, reservation: _held, context, trace, permit, policy } = task;
    let options = policy.options(&worker);
    let mut replanner = Replanner {
        worker: &worker,
        profile: &profile,
        context,
        bytes: call.body.len(),
        trace,
        snapshot: gateway.snapshot(),
        insert: None,
        lease: Some(&lease),
        summary: None,
    };
    tokio::select! {
        biased;
        response = execution::execute(plan, &call, &options, &mut replanner) => {
            Some(PlanDone { response, trace: replanner.trace.take(), permit })
        }
        () = abandoned(client, &lease, || gateway.now()) => None,
    }
}

/// Returns when the client has disconnected and no lease is open.
async fn abandoned(
    client: oneshot::Receiver<Infallible>,
    lease: &KvLease,
    now: impl Fn() -> Moment,
) {
    let Err(_left) = client.await;
    lease.set_client_left();
    while lease.until() > now() {
        tokio::time::sleep(LEASE_POLL).await;
    }
}
