//! What a plan is carried out for and with, who decides meanwhile, and what comes of it.

use crate::budget::RetryBudget;
use crate::endpoint::{Endpoint, WorkerNumber};
use crate::failure::CallError;
use crate::response::EngineResponse;
use crate::timeouts::Timeouts;
use bytes::Bytes;
use hyper::Method;
use hyper::header::HeaderMap;
use hyper::http::uri::PathAndQuery;
use std::sync::Arc;
use std::time::Duration;
use wornpath_index::{Moment, PodId};
use wornpath_routing::{CacheHint, Name, PlanStep, Rejection, Retry, RoutingPlan};

/// The client's request, with the headers that engines are to see.
#[derive(Clone, Debug)]
pub struct StepCall {
    /// Its method.
    pub method: Method,
    /// Its path and query.
    pub path: PathAndQuery,
    /// Headers, without those that concern one connection only.
    pub headers: HeaderMap,
    /// The body as it came.
    pub body: Bytes,
}

/// Where a pod is.
#[derive(Clone, Debug)]
pub struct Target {
    /// Its address.
    pub endpoint: Arc<Endpoint>,
    /// Its rank behind that address, if there are several.
    pub rank: Option<u32>,
    /// Where engines of a pair meet.
    pub bootstrap_port: u16,
}

/// Who decides.
pub trait Replan: Send {
    /// Where a pod is, if it is still there.
    fn target(&self, pod: PodId) -> Option<Target>;
    /// Decides again; waits while no pod has room, as any request does.
    fn replan(
        &mut self,
        retry: Retry<'_>,
    ) -> impl Future<Output = Result<RoutingPlan, Rejection>> + Send;
    /// The time.
    fn now(&self) -> Moment;
    /// A number that no other request has, of 63 bits.
    fn room(&mut self) -> u64;
    /// A call begins; the time, if somebody takes calls down.
    fn begins(&self) -> Option<Moment> {
        None
    }
    /// A pod that is expected to hold the prompt will not: it refused the request, or never got it.
    fn refused(&mut self, _pod: PodId) {}
    /// Until then an engine may hold what it computed for another one, which frees it by taking it over; or none does.
    /// Whoever gives a plan up before that leaves the engine with it.
    fn hands_over(&mut self, _until: Option<Moment>) {}
    /// A call that [`Dispatch::begins`] told the time of has been answered, or failed.
    fn answered(&mut self, _called: CallAttempt<'_>) {}
}

/// A call that was answered, or failed.
#[derive(Clone, Copy, Debug)]
pub struct CallAttempt<'a> {
    /// The step.
    pub step: &'a Name,
    /// Who was called.
    pub endpoint: &'a Endpoint,
    /// When it began.
    pub started: Moment,
    /// What went wrong.
    pub failure: Option<&'a CallError>,
}

/// What calls are made with.
#[derive(Clone, Copy, Debug)]
pub struct CallOptions<'a> {
    /// The retries that are left.
    pub budget: &'a RetryBudget,
    /// How long a call may take.
    pub timeouts: Timeouts,
    /// Until the first byte of an answer that is not streamed, which comes when all of it is computed; if it is not.
    pub whole_answer: Option<Duration>,
    /// The thread that makes it.
    pub worker: WorkerNumber,
}

/// A plan that came to an answer. Its load is on the pod until `step` is dropped.
#[derive(Debug)]
pub struct PlanResponse {
    /// The answer, whose body has begun.
    pub answer: EngineResponse,
    /// The step that gives it.
    pub step: PlanStep,
    /// Who gives it.
    pub endpoint: Arc<Endpoint>,
    /// How often something was tried again.
    pub retries: u32,
    /// Whether a step was left out because it failed.
    pub is_degraded: bool,
    /// Whose work the step took over, if it did; apart, because most do not.
    pub taken: Option<Box<PrefillResult>>,
}

/// The work of a pod that computed the prompt for another one. The taking engine counts what it took as cached, so
/// only the giving one's answer tells what the prefix cache was good for.
#[derive(Clone, Debug)]
pub struct PrefillResult {
    /// Who computed it.
    pub pod: Option<PodId>,
    /// What it was believed to hold of the prompt before.
    pub cache: CacheHint,
    /// What it answered, where that was waited for.
    pub answer: Bytes,
}
