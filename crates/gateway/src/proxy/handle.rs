//! One request from its head to the first byte of its answer: the stages in their order, for a
//! client and for a batch.

use crate::dialect::Api;
use crate::observe::summary::RequestSummary;
use crate::proxy::body::discard;
use crate::proxy::continuation;
use crate::proxy::decide::{Decided, DecisionNotes, decide};
use crate::proxy::engine_priority::set_engine_priority;
use crate::proxy::error_response::ErrorResponse;
use crate::proxy::execute::{CallPolicy, Replanner};
use crate::proxy::headers;
use crate::proxy::ingress::{self, Arrival, replace_alias};
use crate::proxy::isolation::isolate;
use crate::proxy::low_priority_pool::{BodyWork, Origin};
use crate::proxy::parse::read_body;
use crate::proxy::pending_summary::PendingSummary;
use crate::proxy::prepare::prepare;
use crate::proxy::relay::{Answered, respond};
use crate::proxy::report_mode::remove_report_mode;
use crate::proxy::route::{RouteHints, refuse_poison, route};
use crate::proxy::run_plan::{PlanRun, run_plan};
use crate::proxy::unix_time;
use crate::proxy::worker::Worker;
use crate::reply::ClientReply;
use hyper::body::Incoming;
use hyper::header::HeaderValue;
use hyper::{Request, Response};
use std::net::IpAddr;
use std::sync::Arc;
use wornpath_config::OFFLINE;
use wornpath_execution::{PlanResponse, StepCall, Timeouts, execute};
use wornpath_index::Moment;
use wornpath_index::PodId;
use wornpath_routing::queue::Priority;
use wornpath_routing::{Name, Profile};

/// The answer of an engine, or the error that the client gets instead.
pub(crate) async fn handle(
    worker: &Arc<Worker>,
    request: Request<Incoming>,
    id: &HeaderValue,
    address: IpAddr,
) -> Response<ClientReply> {
    let arrived = worker.gateway.now();
    let api = Api::at(request.uri().path());
    let error_api = Api::of_errors_at(request.uri().path());
    let summary = RequestSummary::new(id.to_str().unwrap_or_default(), api);
    let mut pending = PendingSummary::new(worker, summary, arrived);
    let arrival = Arrival { at: arrived, id: id.clone(), address };
    match run_stages(worker, request, arrival, pending.get()).await {
        Ok(answered) => respond(worker, answered, pending.take(), arrived),
        Err(error) => {
            pending.refused(&error);
            error.response(error_api)
        }
    }
}

/// Runs the stages up to the first byte of the answer.
async fn run_stages(
    worker: &Arc<Worker>,
    request: Request<Incoming>,
    arrival: Arrival,
    summary: &mut RequestSummary,
) -> Result<Answered, ErrorResponse> {
    let settings = worker.gateway.settings();
    let (parts, mut body) = request.into_parts();
    let ingress = match ingress::receive(worker, parts, &mut body, &arrival, &settings).await {
        Ok(ingress) => ingress,
        Err(refused) => {
            summary.tenant = refused.tenant;
            if refused.is_body_unread {
                discard(body, settings.limits.body_bytes);
            }
            return Err(refused.error);
        }
    };
    let hints = RouteHints::default();
    let mut routed = route(worker, ingress, &arrival, hints, summary).await?;
    let keeping = continuation::keeping(worker, &routed, summary, &arrival);
    let asks_ids = match &keeping {
        Some(Ok(facts)) => continuation::ask_for_ids(worker, facts, &mut routed),
        _ => false,
    };
    let PlanRun { response, permit, sent } = run_plan(worker, routed, summary).await?;
    let kept = keeping.map(|facts| facts.and_then(|facts| facts.keep(worker, sent, asks_ids)));
    Ok(Answered { response, permit, kept, asks_ids })
}

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
    let mut response = match run_planned_stages(worker, call, planned, arrived, &mut summary).await
    {
        Ok(response) => respond(worker, Answered::once(response), summary, arrived),
        Err(error) => {
            summary.status = error.status.as_u16();
            summary.refusal = Some(Box::new(error.refusal(&worker.gateway.snapshot())));
            summary.reason = Some(error.message().into());
            summary.total = worker.gateway.now().since(arrived);
            worker.gateway.ended(&summary);
            error.response(api)
        }
    };
    response.headers_mut().insert(headers::REQUEST_ID, id);
    response
}

async fn run_planned_stages(
    worker: &Arc<Worker>,
    mut call: StepCall,
    planned: BatchRequest<'_>,
    arrived: Moment,
    summary: &mut RequestSummary,
) -> Result<PlanResponse, ErrorResponse> {
    let gateway = &worker.gateway;
    let settings = gateway.settings();
    let snapshot = gateway.snapshot();
    let work = BodyWork::new(call.body.len(), Origin::Batch, &settings.limits);
    let mut body = read_body(worker, summary.api, &call, &work).await?;
    body.request.model = snapshot.model(&body.model);
    body.request.reading.engine = snapshot.engine_rules(&body.request.model.base);
    body.request.arrival = arrived;
    body.request.wall = unix_time();
    body.request.priority = Priority::LOWEST;
    body.request.planned = Some(planned.pod);
    body.request.tenant = planned.tenant.cloned();
    replace_alias(&body, &mut call, &snapshot)?;
    if settings.batch.as_ref().is_none_or(|batch| batch.priority.is_none()) {
        set_engine_priority(&body, &mut call, &settings)?;
    }
    remove_report_mode(&body, &mut call)?;
    isolate(&mut body, &mut call, &settings)?;
    let fingerprint = refuse_poison(gateway, &call)?;
    if snapshot.knows(&body.request.model.base) {
        summary.model.clone_from(&body.request.model.base);
    }
    let mut trace = None;
    let profile = planned.profile;
    let context = prepare(worker, profile, body.request, &work, &mut trace).await?;
    let notes = DecisionNotes { trace: &mut trace, waited: &mut summary.waited };
    let decided = decide(worker, profile, context, work.length, notes).await?;
    (planned.decided)();
    summary.decided = gateway.now().since(arrived);
    // The first byte of an answer that is not streamed comes when all of it is computed.
    let timeouts = Timeouts { first_byte: settings.timeouts.total, ..settings.timeouts };
    let tenant_budget = gateway.tenant_budget(planned.tenant);
    let policy = CallPolicy { timeouts, whole_answer: None, tenant_budget, fingerprint };
    let Decided { context, plan, insert } = decided;
    let mut replanner = Replanner {
        worker,
        profile,
        context,
        bytes: work.length.bytes,
        trace,
        snapshot: gateway.snapshot(),
        insert,
        lease: None,
        summary: None,
    };
    Ok(execute(plan, &call, &policy.options(worker), &mut replanner).await?)
}
