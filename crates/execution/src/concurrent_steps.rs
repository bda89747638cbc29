//! Steps that run concurrently with the one that responds to the client.
//!
//! The responding step waits for them only to fail: if one of them fails, the KV cache that it
//! waits for will never come. If none fails, they run on after the response, because their engines
//! do.

use crate::endpoint::{Endpoint, WorkerNumber};
use crate::failure::CallError;
use crate::in_flight::{CancelledBy, InFlight};
use crate::request_builder::{MAX_STEP_BYTES, is_retryable, outcome};
use crate::response::EngineResponse;
use crate::send::call;
use crate::timeouts::Timeouts;
use bytes::Bytes;
use http_body_util::Full;
use hyper::Request;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use tokio::task::JoinSet;
use tokio::time::Instant;
use wornpath_index::Moment;
use wornpath_routing::PlanStep;

/// The concurrent steps of one group. Dropping the set cancels them.
pub(crate) type ConcurrentSteps = JoinSet<Result<(), Box<StepFailure>>>;

/// A concurrent step that failed.
pub(crate) struct StepFailure {
    pub(crate) step: PlanStep,
    pub(crate) cause: FailureCause,
}

pub(crate) enum FailureCause {
    /// The pod failed.
    Failed(CallError),
    /// The pod refused the client's request.
    Refused(Box<EngineResponse>, Arc<Endpoint>),
}

/// Why the responding step has no response.
pub(crate) enum StepHalt {
    /// Its own call failed.
    Failed(CallError),
    /// A concurrent step failed, on which it depends.
    DependencyFailed(Box<StepFailure>),
}

/// The call of one concurrent step.
pub(crate) struct ConcurrentCall {
    pub(crate) step: PlanStep,
    pub(crate) endpoint: Arc<Endpoint>,
    pub(crate) request: Request<Full<Bytes>>,
    pub(crate) timeouts: Timeouts,
    pub(crate) worker: WorkerNumber,
    pub(crate) now: Moment,
}

impl ConcurrentCall {
    /// Runs to the end of the response. The step's load counts until then, even if the responding
    /// step is done.
    pub(crate) async fn run(self) -> Result<(), Box<StepFailure>> {
        let Self { step, endpoint, request, timeouts, worker, now } = self;
        let started = Instant::now();
        let in_flight = InFlight::begin(&endpoint, now, CancelledBy::ConcurrentStep);
        let result = match call(&endpoint, worker, request, timeouts).await {
            Ok(response) => {
                let whole = response.whole(MAX_STEP_BYTES).await;
                whole.map(|(head, body)| EngineResponse::from_bytes(head, body))
            }
            Err(cause) => Err(cause),
        };
        in_flight.finish(outcome(&result), now + started.elapsed());
        let cause = match result {
            Err(cause) => FailureCause::Failed(cause),
            Ok(response) => match response.head.status {
                status if status.is_success() => return Ok(()),
                status if status.is_client_error() && !is_retryable(status) => {
                    FailureCause::Refused(Box::new(response), endpoint)
                }
                status => FailureCause::Failed(CallError::Status(status)),
            },
        };
        Err(Box::new(StepFailure { step, cause }))
    }
}

/// Waits for the response of the main step, unless a concurrent step fails first.
pub(crate) async fn unless_one_fails<T>(
    mut main: Pin<&mut impl Future<Output = Result<T, CallError>>>,
    steps: &mut ConcurrentSteps,
) -> Result<T, StepHalt> {
    if steps.is_empty() {
        return main.await.map_err(StepHalt::Failed);
    }
    poll_fn(|context| {
        while let Poll::Ready(Some(ended)) = steps.poll_join_next(context) {
            if let Ok(Err(failure)) = ended {
                return Poll::Ready(Err(StepHalt::DependencyFailed(failure)));
            }
        }
        main.as_mut().poll(context).map_err(StepHalt::Failed)
    })
    .await
}
