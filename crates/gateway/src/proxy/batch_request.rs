//! Requests of batches: planned offline, sent through the same stages as clients' requests, at the
//! lowest priority.

use crate::dialect::Api;
use crate::observe::summary::RequestSummary;
use crate::proxy::decide::{Decided, decide};
use crate::proxy::engine_priority::set_engine_priority;
use crate::proxy::error_response::ErrorResponse;
use crate::proxy::execute::Replanner;
use crate::proxy::headers;
use crate::proxy::isolation::isolate;
use crate::proxy::parse::read_body;
use crate::proxy::prepare::prepare;
use crate::proxy::response::respond;
use crate::proxy::tenancy::replace_alias;
use crate::proxy::unix_time;
use crate::proxy::worker::Worker;
use crate::reply::ClientReply;
use hyper::Response;
use std::sync::Arc;
use wornpath_config::OFFLINE;
use wornpath_execution::{CallOptions, PlanResponse, StepCall, Timeouts, execute};
use wornpath_index::{Moment, PodId};
use wornpath_routing::queue::Priority;
use wornpath_routing::{Name, Profile};

/// A request that the plan of a batch assigns to a pod.
#[derive(Clone, Copy)]
pub struct BatchRequest<'a> {
    /// The pod of the plan.
    pub pod: PodId,
    /// The profile that decides.
    pub profile: &'a Arc<Profile>,
    /// The tenant that created the batch.
    pub tenant: Option<&'a Name>,
    /// Called when the request is decided, and counts as load of a pod.
    pub decided: &'a (dyn Fn() + Sync),
}

/// Sends a request to the pod of its plan, if that pod has room for it.
pub async fn send_planned(
    worker: &Arc<Worker>,
    mut call: StepCall,
    planned: BatchRequest<'_>,
) -> Response<ClientReply> {
    let arrived = worker.gateway.now();
    let api = Api::at(call.path.path());
    let id = headers::request_id(&call.headers, || worker.random());
    call.headers.insert(headers::REQUEST_ID, id.clone());
    let mut summary = RequestSummary {
        profile: Name::from(OFFLINE),
        tenant: planned.tenant.cloned(),
        ..RequestSummary::new(id.to_str().unwrap_or_default(), api)
    };
    let mut response = match run_stages(worker, call, planned, arrived, &mut summary).await {
        Ok(response) => respond(worker, response, None, summary, arrived),
        Err(error) => {
            summary.status = error.status.as_u16();
            summary.total = worker.gateway.now().saturating_sub(arrived);
            worker.gateway.ended(&summary);
            error.response(api)
        }
    };
    response.headers_mut().insert(headers::REQUEST_ID, id);
    response
}

async fn run_stages(
    worker: &Arc<Worker>,
    mut call: StepCall,
    planned: BatchRequest<'_>,
    arrived: Moment,
    summary: &mut RequestSummary,
) -> Result<PlanResponse, ErrorResponse> {
    let gateway = &worker.gateway;
    let settings = gateway.settings();
    let snapshot = gateway.snapshot();
    let length = settings.limits.length(call.body.len());
    let mut body = read_body(worker, summary.api, &call, length).await?;
    body.request.model = snapshot.model(&body.model);
    body.request.arrival = arrived;
    body.request.wall = unix_time();
    body.request.priority = Priority::LOWEST;
    body.request.planned = Some(planned.pod);
    body.request.tenant = planned.tenant.cloned();
    replace_alias(&body, &mut call, &snapshot)?;
    if settings.batch.as_ref().is_none_or(|batch| batch.priority.is_none()) {
        set_engine_priority(&body, &mut call, &settings)?;
    }
    isolate(&mut body, &mut call, &settings)?;
    if snapshot.knows(&body.request.model.base) {
        summary.model.clone_from(&body.request.model.base);
    }
    let mut trace = None;
    let profile = planned.profile;
    let context = prepare(worker, profile, body.request, length, &mut trace).await?;
    let decided = decide(worker, profile, context, length, &mut trace).await?;
    (planned.decided)();
    summary.decided = gateway.now().saturating_sub(arrived);
    // The first byte of an answer that is not streamed comes when all of it is computed.
    let timeouts = Timeouts { first_byte: settings.timeouts.total, ..settings.timeouts };
    let options = CallOptions {
        budget: &gateway.budget,
        timeouts,
        whole_answer: None,
        worker: worker.number,
    };
    let Decided { context, plan, insert } = decided;
    let mut replanner = Replanner {
        worker,
        profile,
        context,
        bytes: length.bytes,
        trace,
        snapshot: gateway.snapshot(),
        insert,
        lease: None,
        summary: None,
    };
    Ok(execute(plan, &call, &options, &mut replanner).await?)
}
