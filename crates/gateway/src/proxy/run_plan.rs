//! Runs the plan of a routed request to the first byte of its answer, in one step or in several.

use crate::observe::request_trace::kept;
use crate::observe::summary::RequestSummary;
use crate::proxy::decide::Decided;
use crate::proxy::error_response::ErrorResponse;
use crate::proxy::execute::{CallPolicy, Replanner, execute_one_step};
use crate::proxy::multi_step;
use crate::proxy::quota::QuotaPermit;
use crate::proxy::route::Routed;
use crate::proxy::worker::Worker;
use std::sync::Arc;
use wornpath_execution::{PlanResponse, StepCall};
use wornpath_routing::Profile;

/// A plan that has run, and what it ran with.
pub(crate) struct PlanRun {
    pub(crate) response: PlanResponse,
    pub(crate) permit: Option<QuotaPermit>,
    pub(crate) sent: SentRequest,
}

/// A request as engines got it.
#[derive(Clone, Debug)]
pub(crate) struct SentRequest {
    pub(crate) call: StepCall,
    pub(crate) profile: Arc<Profile>,
    pub(crate) policy: CallPolicy,
}

/// Executes a plan up to the first byte of its answer.
pub(crate) async fn run_plan(
    worker: &Arc<Worker>,
    routed: Routed,
    summary: &mut RequestSummary,
) -> Result<PlanRun, ErrorResponse> {
    let gateway = &worker.gateway;
    // The reservation is dropped when the response begins: until then the body may be sent again.
    let Routed { call, permit, reservation, profile, decided, trace, policy } = routed;
    let Decided { context, plan, insert } = decided;
    if plan.steps.len() == 1 {
        let replanner = Replanner {
            worker,
            profile: &profile,
            context,
            bytes: call.body.len(),
            trace,
            snapshot: gateway.snapshot(),
            insert,
            lease: None,
            summary: Some(summary),
        };
        let options = policy.options(worker);
        let response = execute_one_step(plan, &call, &options, replanner).await?;
        return Ok(PlanRun { response, permit, sent: SentRequest { call, profile, policy } });
    }
    if let Some(insert) = insert {
        worker.commit(insert);
    }
    let sent =
        SentRequest { call: call.clone(), profile: Arc::clone(&profile), policy: policy.clone() };
    let task = multi_step::PlanTask { plan, call, reservation, context, trace, permit, policy };
    let done = Box::pin(multi_step::execute(worker, &profile, task)).await?;
    summary.trace = kept(done.trace);
    Ok(PlanRun { response: done.response?, permit: done.permit, sent })
}
