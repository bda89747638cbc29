//! Plans by which several engines work on one request.
//!
//! If the client leaves, such a plan is given up as any request is, but not while one engine holds what it computed for
//! another: taking that over is what frees its memory. So these plans run on tasks of their own, which nobody's leaving ends
//! and which look for themselves.

use super::error_response::ErrorResponse;
use crate::quota::QuotaPermit;
use crate::request_trace::RequestTrace;
use crate::worker::{Dispatcher, FirstInsert, Worker};
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use tokio::sync::oneshot;
use wornpath_execution::{CallFailure, CallOptions, PlanResponse, StepCall, execute};
use wornpath_index::Moment;
use wornpath_routing::{Profile, Rejection, RoutingContext, RoutingPlan};

/// How often a plan whose client has left looks whether it is still needed.
const LOOK: Duration = Duration::from_millis(50);

/// What a plan is carried out with.
pub(super) struct StartedPlan {
    pub(super) plan: RoutingPlan,
    pub(super) call: StepCall,
    pub(super) context: Option<RoutingContext>,
    pub(super) seen: Option<Box<RequestTrace>>,
    /// It stays with the work, whoever waits for it.
    pub(super) turn: Option<QuotaPermit>,
    /// As in [`Kit`].
    pub(super) whole_answer: Option<Duration>,
}

/// What came of it.
pub(super) type FinishedPlan =
    (Result<PlanResponse, CallFailure>, Option<Box<RequestTrace>>, Option<QuotaPermit>);

/// Carries a plan out to the first byte of its answer.
pub(super) async fn carry(
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
        let (bytes, roster, insert) = (call.body.len(), gateway.roster(), &FirstInsert::default());
        let (handover, record) = (Some(&handed), None);
        let mut dispatcher =
            Dispatcher { worker, profile, context, bytes, seen, roster, insert, handover, record };
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
    let given_up = || ErrorResponse::from(Rejection::unavailable("the plan was given up"));
    done.ok().flatten().ok_or_else(given_up)
}

/// Comes when the client has left and no engine holds anything for another.
async fn nobody_needs(
    client: oneshot::Receiver<Infallible>,
    handover: &KvLease,
    now: impl Fn() -> Moment,
) {
    let Err(_left) = client.await;
    handover.has_client_left.store(true, Relaxed);
    while handover.until() > now() {
        tokio::time::sleep(LOOK).await;
    }
}

/// What is between two engines, and whom for.
#[derive(Debug, Default)]
pub(crate) struct KvLease {
    /// Nanoseconds until which one may hold what it computed for the other.
    until: AtomicU64,
    has_client_left: AtomicBool,
}

impl KvLease {
    /// What is said later counts.
    pub(crate) fn is_held(&self, until: Option<Moment>) {
        let nanos = until.map_or(0, |until| u64::try_from(until.as_nanos()).unwrap_or(u64::MAX));
        self.until.store(nanos, Relaxed);
    }

    /// Whether nothing is to be begun any more.
    pub(crate) fn has_client_left(&self) -> bool {
        self.has_client_left.load(Relaxed)
    }

    fn until(&self) -> Moment {
        Duration::from_nanos(self.until.load(Relaxed))
    }
}
