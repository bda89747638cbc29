//! Plans by which several engines work on one request.
//!
//! If the client leaves, such a plan is given up as any request is, but not while one engine holds what it computed for
//! another: taking that over is what frees its memory. So these plans run on tasks of their own, which nobody's leaving ends
//! and which look for themselves.

use crate::observe::request_trace::RequestTrace;
use crate::proxy::error_response::ErrorResponse;
use crate::proxy::execute::Dispatcher;
use crate::proxy::kv_lease::KvLease;
use crate::proxy::quota::QuotaPermit;
use crate::proxy::worker::{FirstInsert, Worker};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;
use wornpath_execution::{CallFailure, CallOptions, PlanResponse, StepCall, execute};
use wornpath_index::Moment;
use wornpath_routing::{Profile, Rejection, RoutingContext, RoutingPlan};

/// How often a plan whose client has left looks whether it is still needed.
const LOOK: Duration = Duration::from_millis(50);

/// What a plan is carried out with.
pub(crate) struct StartedPlan {
    pub(crate) plan: RoutingPlan,
    pub(crate) call: StepCall,
    pub(crate) context: Option<RoutingContext>,
    pub(crate) seen: Option<Box<RequestTrace>>,
    /// It stays with the work, whoever waits for it.
    pub(crate) turn: Option<QuotaPermit>,
    /// As in [`Kit`].
    pub(crate) whole_answer: Option<Duration>,
}

/// What came of it.
pub(crate) type FinishedPlan =
    (Result<PlanResponse, CallFailure>, Option<Box<RequestTrace>>, Option<QuotaPermit>);

/// Carries a plan out to the first byte of its answer.
pub(crate) async fn carry(
    worker: &Arc<Worker>,
    profile: &Arc<Profile>,
    begun: StartedPlan,
) -> Result<FinishedPlan, ErrorResponse> {
    let (worker, profile) = (Arc::clone(worker), Arc::clone(profile));
    let (client, has_left) = oneshot::channel::<Infallible>();
    let work = tokio::spawn(async move {
        let (worker, profile) = (&*worker, &profile);
        let (gateway, handed) = (&worker.gateway, KvLease::default());
        let StartedPlan { plan, call, context, seen, turn, whole_answer } = begun;
        let (budget, timeouts) = (&gateway.budget, gateway.settings().timeouts);
        let kit = CallOptions { budget, timeouts, whole_answer, worker: worker.number };
        let (bytes, snapshot, insert) =
            (call.body.len(), gateway.snapshot(), &FirstInsert::default());
        let (handover, record) = (Some(&handed), None);
        let mut dispatcher = Dispatcher {
            worker,
            profile,
            context,
            bytes,
            seen,
            snapshot,
            insert,
            handover,
            record,
        };
        tokio::select! {
            biased;
            carried = execute(plan, &call, &kit, &mut dispatcher) => {
                Some((carried, dispatcher.seen.take(), turn))
            }
            () = nobody_needs(has_left, &handed, || gateway.now()) => None,
        }
    });
    let done = work.await;
    drop(client);
    let given_up =
        || ErrorResponse::from(Rejection::unavailable("request canceled: the client disconnected"));
    done.ok().flatten().ok_or_else(given_up)
}

/// Comes when the client has left and no engine holds anything for another.
async fn nobody_needs(
    client: oneshot::Receiver<Infallible>,
    handover: &KvLease,
    now: impl Fn() -> Moment,
) {
    let Err(_left) = client.await;
    handover.client_left();
    while handover.until() > now() {
        tokio::time::sleep(LOOK).await;
    }
}
