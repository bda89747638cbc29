//! Decide: the profile chooses pods, or the request waits in the queue until one has room.

use crate::observe::request_trace::RequestTrace;
use crate::proxy::error_response::ErrorResponse;
use crate::proxy::wait_queue::Waiter;
use crate::proxy::worker::{LockedInsert, Worker};
use std::sync::Arc;
use std::time::Duration;
use wornpath_config::BodyLength;
use wornpath_routing::queue::Redecision;
use wornpath_routing::{
    DecisionEnv, Explanation, Outcome, Profile, Recorder, RejectionCause, RoutingContext,
    RoutingPlan,
};

/// A plan, and what is needed to run it.
pub(crate) struct Decided {
    /// For further decisions; none only if the gateway shut down while the request was queued.
    pub(crate) context: Option<RoutingContext>,
    pub(crate) plan: RoutingPlan,
    /// The index update of the plan, unless it was made already.
    pub(crate) insert: Option<LockedInsert>,
}

/// What a decision leaves behind beside the plan.
pub(crate) struct DecisionNotes<'a> {
    /// Where it is explained, if it is.
    pub(crate) trace: &'a mut Option<Box<RequestTrace>>,
    /// To which the time in the wait queue is added.
    pub(crate) waited: &'a mut Duration,
}

/// Decides, and waits in the queue if every pod is busy.
///
/// If no pod can serve the request but all of them are new, the pods are asked for their models
/// first.
pub(crate) async fn decide(
    worker: &Worker,
    profile: &Arc<Profile>,
    mut context: RoutingContext,
    length: BodyLength,
    notes: DecisionNotes<'_>,
) -> Result<Decided, ErrorResponse> {
    let gateway = &worker.gateway;
    let DecisionNotes { trace, waited } = notes;
    let mut is_first = true;
    loop {
        let decide = |env: &mut DecisionEnv<'_>| {
            if trace.is_none() {
                let outcome = profile.decide(&mut context, env);
                // Decided once more, so that operators see why no pod could take it.
                if !matches!(outcome, Outcome::Reject(_)) || !explains_refusal(worker) {
                    return outcome;
                }
            }
            let trace = trace.get_or_insert_with(|| unsampled(&context));
            explained(worker, profile, &mut context, env, trace)
        };
        let (outcome, insert) = worker.decide(length, decide).await;
        let (back, decided) = match outcome {
            Outcome::Plan(plan) => (Some(context), Ok(plan)),
            Outcome::Reject(rejection) => (Some(context), Err(rejection)),
            Outcome::Hold(hold) => {
                let again = Redecision::default();
                let waiter = Waiter { profile, context, again, bytes: length.bytes };
                if let Some(trace) = trace {
                    trace.has_waited = true;
                }
                let model = waiter.context.request().model.base.clone();
                let from = gateway.now();
                let _waiting = gateway.model_waits.enter(&model, from);
                let decided = Box::pin(gateway.wait_queue.wait(worker, hold, waiter)).await;
                *waited += gateway.now().since(from);
                decided
            }
        };
        context = match (back, decided) {
            (context, Ok(plan)) => return Ok(Decided { context, plan, insert }),
            // All pods that could serve it may have been replaced since it arrived.
            (Some(context), Err(_))
                if is_first && gateway.snapshot().may_yet_serve(model_of(&context)) =>
            {
                context
            }
            (context, Err(rejection)) => {
                let is_unexplained = trace.is_none() && explains_refusal(worker);
                if let Some(mut context) = context.filter(|_| is_unexplained) {
                    // It may have waited: this is why no pod has room now.
                    let trace = trace.insert(unsampled(&context));
                    trace.has_waited = rejection.cause == RejectionCause::Expired;
                    worker.rehearse(|env| {
                        explained(worker, profile, &mut context, env, trace);
                    });
                }
                return Err(rejection.into());
            }
        };
        is_first = false;
        Box::pin(gateway.pods().snapshot_after_discovery(model_of(&context))).await;
    }
}

/// Decides, and records why.
fn explained(
    worker: &Worker,
    profile: &Profile,
    context: &mut RoutingContext,
    env: &mut DecisionEnv<'_>,
    trace: &mut RequestTrace,
) -> Outcome {
    let clock = || worker.gateway.now();
    let mut recorder = Recorder::new(&clock);
    let outcome = profile.decide_explained(context, env, &mut recorder);
    let prepare = std::mem::take(&mut trace.explanation.prepare);
    trace.decided = env.now;
    trace.explanation = Explanation { prepare, ..recorder.finish() };
    outcome
}

fn explains_refusal(worker: &Worker) -> bool {
    let gateway = &worker.gateway;
    gateway.pods().sampler.explains_refusal(&gateway.settings(), gateway.now())
}

/// The trace of a request that was not sampled.
fn unsampled(context: &RoutingContext) -> Box<RequestTrace> {
    let arrived = context.request().arrival;
    Box::new(RequestTrace { arrived, prepared: arrived, ..RequestTrace::default() })
}

fn model_of(context: &RoutingContext) -> &str {
    context.request().model.base.as_str()
}
