//! Steps that start together with the one that answers the client, and are waited for only if they fail.

use crate::endpoint::{Endpoint, WorkerNumber};
use crate::failure::CallError;
use crate::in_flight::Deadline;
use crate::request_builder::{MOST_STEP_BYTES, is_for_another_pod, verdict};
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

/// Steps under way beside another one. Dropped, they are given up.
pub(crate) type Companions = JoinSet<Result<(), Box<StepFailure>>>;

/// A step that failed beside the one that answers.
pub(crate) struct StepFailure {
    pub(crate) step: PlanStep,
    pub(crate) why: FailureCause,
}

/// What a step failed for.
pub(crate) enum FailureCause {
    /// Its pod failed.
    Failed(CallError),
    /// Its pod refused what the client sent.
    Refused(Box<EngineResponse>, Arc<Endpoint>),
}

/// Why the step that answers did not.
pub(crate) enum StepHalt {
    /// By itself.
    Failed(CallError),
    /// It waits for what will not come.
    Fallen(Box<StepFailure>),
}

/// One call beside another: to its end, and with its load, even if the other one is done, since its engine is not.
pub(crate) async fn accompany(
    step: PlanStep,
    endpoint: Arc<Endpoint>,
    (request, timeouts): (Request<Full<Bytes>>, Timeouts),
    (worker, now): (WorkerNumber, Moment),
) -> Result<(), Box<StepFailure>> {
    let started = Instant::now();
    let waiting = endpoint.begins(now, Deadline::Companion);
    let result = match call(&endpoint, worker, request, timeouts).await {
        Ok(answer) => {
            let whole = answer.whole(MOST_STEP_BYTES).await;
            whole.map(|(head, body)| EngineResponse::of(head, body))
        }
        Err(cause) => Err(cause),
    };
    waiting.judged(verdict(&result), now + started.elapsed());
    let why = match result {
        Err(cause) => FailureCause::Failed(cause),
        Ok(answer) => match answer.head.status {
            status if status.is_success() => return Ok(()),
            status if status.is_client_error() && !is_for_another_pod(status) => {
                FailureCause::Refused(Box::new(answer), endpoint)
            }
            status => FailureCause::Failed(CallError::Status(status)),
        },
    };
    Err(Box::new(StepFailure { step, why }))
}

/// Waits for an answer, as long as no companion fails.
pub(crate) async fn beside<T>(
    mut main: Pin<&mut impl Future<Output = Result<T, CallError>>>,
    companions: &mut Companions,
) -> Result<T, StepHalt> {
    if companions.is_empty() {
        return main.await.map_err(StepHalt::Failed);
    }
    poll_fn(|context| {
        while let Poll::Ready(Some(ended)) = companions.poll_join_next(context) {
            if let Ok(Err(fallen)) = ended {
                return Poll::Ready(Err(StepHalt::Fallen(fallen)));
            }
        }
        main.as_mut().poll(context).map_err(StepHalt::Failed)
    })
    .await
}
