//! Decide: the profile chooses pods, or the request waits in the queue until one has room.

use crate::observe::request_trace::RequestTrace;
use crate::proxy::error_response::ErrorResponse;
use crate::proxy::wait_queue::Waiter;
use crate::proxy::worker::{FirstInsert, Worker};
use std::sync::Arc;
use wornpath_config::BodyLength;
use wornpath_routing::queue::Redecision;
use wornpath_routing::{
    DecisionEnv, Explanation, Outcome, Profile, Recorder, RoutingContext, RoutingPlan,
};

/// A plan, and what the index is to be told of it.
pub(crate) async fn decide(
    worker: &Worker,
    profile: &Arc<Profile>,
    (mut context, length): (RoutingContext, BodyLength),
    seen: &mut Option<Box<RequestTrace>>,
) -> Result<(Option<RoutingContext>, RoutingPlan, FirstInsert), ErrorResponse> {
    let gateway = &worker.gateway;
    let mut is_first = true;
    loop {
        let decide = |world: &mut DecisionEnv<'_>| match &mut *seen {
            None => profile.decide(&mut context, world),
            Some(seen) => {
                let clock = || gateway.now();
                let mut recorder = Recorder::new(&clock);
                let outcome = profile.decide_explained(&mut context, world, &mut recorder);
                let prepare = std::mem::take(&mut seen.explanation.prepare);
                seen.decided = world.now;
                seen.explanation = Explanation { prepare, ..recorder.finish() };
                outcome
            }
        };
        let (outcome, insert) = worker.decide(length, decide).await;
        let (back, decided) = match outcome {
            Outcome::Plan(plan) => (Some(context), Ok(plan)),
            Outcome::Reject(rejection) => (Some(context), Err(rejection)),
            Outcome::Hold(hold) => {
                let bytes = length.bytes;
                let waiter = Waiter { profile, context, again: Redecision::default(), bytes };
                if let Some(seen) = seen {
                    seen.has_waited = true;
                }
                Box::pin(gateway.wait_queue.wait(worker, hold, waiter)).await
            }
        };
        context = match (back, decided) {
            (back, Ok(plan)) => return Ok((back, plan, insert)),
            // All who could have answered it may have been replaced since it came.
            (Some(back), Err(_))
                if is_first && gateway.snapshot().may_yet_serve(model_of(&back)) =>
            {
                back
            }
            (_, Err(rejection)) => return Err(rejection.into()),
        };
        is_first = false;
        Box::pin(gateway.pods().snapshot_after_discovery(model_of(&context))).await;
    }
}

fn model_of(context: &RoutingContext) -> &str {
    context.request().model.base.as_str()
}
