//! The interface of plan execution: the request, its options, the callbacks to the router, and the
//! response.

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

/// The client's request, with the headers that engines see.
#[derive(Clone, Debug)]
pub struct StepCall {
    /// The HTTP method.
    pub method: Method,
    /// The path and query of the request target.
    pub path: PathAndQuery,
    /// Headers, without the hop-by-hop ones.
    pub headers: HeaderMap,
    /// The client's body, byte for byte.
    pub body: Bytes,
}

/// The address of a pod.
#[derive(Clone, Debug)]
pub struct Target {
    /// The endpoint, which data-parallel ranks share.
    pub endpoint: Arc<Endpoint>,
    /// The data-parallel rank behind the endpoint, if there are several.
    pub rank: Option<u32>,
    /// The port where prefill and decode engines meet.
    pub bootstrap_port: u16,
}

/// What the executor asks of the router while it executes a plan, and what it reports.
pub trait Replan: Send {
    /// The address of a pod; none if it was removed.
    fn target(&self, pod: PodId) -> Option<Target>;
    /// Decides again; waits in the queue while no pod has capacity, as any request does.
    fn replan(
        &mut self,
        retry: Retry<'_>,
    ) -> impl Future<Output = Result<RoutingPlan, Rejection>> + Send;
    /// The current time.
    fn now(&self) -> Moment;
    /// A random number of 63 bits that no other request has.
    fn unique_id(&mut self) -> u64;
    /// A call begins. Returns the time if calls are traced.
    fn call_started(&self) -> Option<Moment> {
        None
    }
    /// The request of a step was handed to its connection: it is written, or waits until the
    /// connection is open. Called once per call, just before the task waits for the engine. Work
    /// that the decision left behind, such as the index update, belongs here: the engine computes
    /// meanwhile.
    fn request_sent(&mut self) {}
    /// A pod that is expected to hold the prompt will not: it refused the request, or never got it.
    fn request_refused(&mut self, _pod: PodId) {}
    /// Until this time an engine may hold KV cache for another engine, which frees it by loading
    /// it; none if no engine does. If the plan is given up before, the engine keeps it until its
    /// lease expires.
    fn kv_held_until(&mut self, _until: Option<Moment>) {}
    /// A call for which [`Self::begins`] returned the time has its response, or has failed.
    fn call_ended(&mut self, _called: CallAttempt<'_>) {}
}

/// A call that has its response, or has failed.
#[derive(Clone, Copy, Debug)]
pub struct CallAttempt<'a> {
    /// The step of the plan.
    pub step: &'a Name,
    /// The endpoint that was called.
    pub endpoint: &'a Endpoint,
    /// When the call began.
    pub started: Moment,
    /// The error, if it failed.
    pub failure: Option<&'a CallError>,
}

/// The options of all calls of a plan.
#[derive(Clone, Copy, Debug)]
pub struct CallOptions<'a> {
    /// The retry budget of the router.
    pub budget: &'a RetryBudget,
    /// The timeouts of each call.
    pub timeouts: Timeouts,
    /// The first-byte timeout of a response that is not streamed, whose first byte comes when all
    /// of it is computed; none for a stream.
    pub whole_answer: Option<Duration>,
    /// The thread that makes the calls.
    pub worker: WorkerNumber,
}

/// The response of a plan. Its load counts on the pod until `step` is dropped.
#[derive(Debug)]
pub struct PlanResponse {
    /// The response, from its first body byte on.
    pub answer: EngineResponse,
    /// The step that responded.
    pub step: PlanStep,
    /// The endpoint that responded.
    pub endpoint: Arc<Endpoint>,
    /// The number of retries.
    pub retries: u32,
    /// Whether a step was skipped because it failed.
    pub is_degraded: bool,
    /// The prefill step whose KV cache the step loaded; boxed, because most plans have none.
    pub prefill: Option<Box<PrefillResult>>,
}

/// The result of a prefill step. The decode engine counts all that it loaded as cached, so only the
/// prefill response tells how much the prefix cache saved.
#[derive(Clone, Debug)]
pub struct PrefillResult {
    /// The prefill pod.
    pub pod: Option<PodId>,
    /// The part of the prompt that the decision expected in the pod's cache.
    pub cache: CacheHint,
    /// The body of its response; empty if the steps were concurrent.
    pub answer: Bytes,
}
