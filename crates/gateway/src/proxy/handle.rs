//! One request from its head to the first byte of its answer: the stages in their order, for a
//! client and for a batch.

use crate::dialect::Api;
use crate::observe::request_trace::{RequestTrace, kept};
use crate::observe::summary::{RequestEnd, RequestSummary};
use crate::proxy::decide::{Decided, decide};
use crate::proxy::engine_priority::set_engine_priority;
use crate::proxy::error_response::ErrorResponse;
use crate::proxy::execute::{CallPolicy, Replanner, execute_one_step};
use crate::proxy::first_pod::wait_for_first_pod;
use crate::proxy::gateway::{Gateway, QuotaPermit};
use crate::proxy::headers;
use crate::proxy::ingress::{self, Arrival, Ingress, check_model, replace_alias};
use crate::proxy::isolation::isolate;
use crate::proxy::low_priority_pool::{BodyWork, Origin};
use crate::proxy::multi_step;
use crate::proxy::parse::{ParsedBody, read_body};
use crate::proxy::prepare::prepare;
use crate::proxy::relay::respond;
use crate::proxy::stream_usage::ask_for_usage;
use crate::proxy::unix_time;
use crate::proxy::worker::Worker;
use crate::reply::ClientReply;
use hyper::body::Incoming;
use hyper::header::HeaderValue;
use hyper::{Request, Response, StatusCode};
use std::net::IpAddr;
use std::sync::Arc;
use wornpath_config::{OFFLINE, TenantSettings};
use wornpath_execution::{PlanResponse, RequestFingerprint, StepCall, Timeouts, execute};
use wornpath_index::Moment;
use wornpath_index::PodId;
use wornpath_routing::queue::Priority;
use wornpath_routing::{Name, Profile, Rejection};

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
    let summary = Some(RequestSummary::new(id.to_str().unwrap_or_default(), api));
    let mut pending = PendingSummary { worker, summary, arrived };
    let arrival = Arrival { at: arrived, id: id.clone(), address };
    match run_stages(worker, request, arrival, pending.get()).await {
        Ok((response, permit)) => respond(worker, response, permit, pending.take(), arrived),
        Err(error) => {
            pending.end(RequestEnd::Refused, error.status.as_u16());
            error.response(error_api)
        }
    }
}

/// The summary of a request that has no answer yet. Dropped as such, the client has disconnected.
struct PendingSummary<'a> {
    worker: &'a Worker,
    /// None once observers were told, or the relay took it over.
    summary: Option<RequestSummary>,
    arrived: Moment,
}

/// The status that nginx logs for a client that closed its connection.
const CLIENT_CLOSED_REQUEST: u16 = 499;

impl PendingSummary<'_> {
    fn get(&mut self) -> &mut RequestSummary {
        self.summary.get_or_insert_with(|| RequestSummary::new("", Api::OTHER))
    }

    /// Hands the summary to the relay, which ends it.
    fn take(mut self) -> RequestSummary {
        self.summary.take().unwrap_or_else(|| RequestSummary::new("", Api::OTHER))
    }

    fn end(&mut self, end: RequestEnd, status: u16) {
        let Some(mut summary) = self.summary.take() else { return };
        summary.ended = end;
        summary.status = status;
        summary.total = self.worker.gateway.now().since(self.arrived);
        self.worker.gateway.ended(&summary);
    }
}

impl Drop for PendingSummary<'_> {
    fn drop(&mut self) {
        self.end(RequestEnd::ClientLeft, CLIENT_CLOSED_REQUEST);
    }
}

/// Runs the stages up to the first byte of the answer.
async fn run_stages(
    worker: &Arc<Worker>,
    request: Request<Incoming>,
    arrival: Arrival,
    summary: &mut RequestSummary,
) -> Result<(PlanResponse, Option<QuotaPermit>), ErrorResponse> {
    let gateway = &worker.gateway;
    let settings = gateway.settings();
    let arrived = arrival.at;
    let address = arrival.address;
    // The reservation is dropped when the response begins: until then the body may be sent again.
    let Ingress { tenant, permit, mut call, reservation, routing_headers: shown } =
        ingress::receive(worker, request, arrival, &settings).await?;
    let random = || worker.random();
    let mut trace = gateway.pods().sampler.sample(&settings, &call.headers, arrived, random);
    if let Some(context) = trace.as_ref().and_then(|trace| trace.context) {
        context.write(&mut call.headers);
    }
    let origin = tenant.map_or(Origin::Address(address), Origin::Tenant);
    let work = BodyWork::new(call.body.len(), origin, &settings.limits);
    let mut body = read_body(worker, summary.api, &call, &work).await?;
    if settings.models.iter().any(|model| !model.wait_for_pod.is_zero()) {
        let wait = wait_for_first_pod(gateway, &settings, &body.model, call.body.len());
        Box::pin(wait).await?;
    }
    let mut snapshot = gateway.snapshot();
    if snapshot.may_yet_serve(&body.model) {
        snapshot = Box::pin(gateway.pods().snapshot_after_discovery(&body.model)).await;
    }
    check_model(summary.api, &body.model, &snapshot)?;
    body.request.model = snapshot.model(&body.model);
    body.request.arrival = arrived;
    body.request.wall = unix_time();
    body.request.headers = shown;
    set_tenant(&mut body, tenant);
    replace_alias(&body, &mut call, &snapshot)?;
    set_engine_priority(&body, &mut call, &settings)?;
    isolate(&mut body, &mut call, &settings)?;
    let fingerprint = refuse_poison(gateway, &call)?;
    ask_for_usage(summary.api, &body, &mut call, settings.stream_usage);
    let routes = gateway.routes();
    let tenant = body.request.tenant.as_ref();
    let (name, profile) = routes.profile(call.path.path(), &body.request.model.base, tenant);
    summary.profile.clone_from(name);
    // The number is set with the first byte of the answer.
    summary.predicted_tokens = profile.looks_up().then_some(0);
    if snapshot.knows(&body.request.model.base) {
        summary.model.clone_from(&body.request.model.base);
    }
    summary.tenant.clone_from(&body.request.tenant);
    let whole_answer = is_answered_at_once(summary.api, &body).then_some(settings.unstreamed);
    let prepared = prepare(worker, profile, body.request, &work, &mut trace).await;
    let context = keep_trace_on_error(prepared, &mut trace, summary)?;
    if context.untokenized().is_some() {
        summary.predicted_tokens = None;
    }
    summary.tokenized = profile.prompt_length(&context);
    summary.traffic = gateway.recorder().prompt_shape(profile, &context, arrived);
    let decided = decide(worker, profile, context, work.length, &mut trace).await;
    let decided = keep_trace_on_error(decided, &mut trace, summary)?;
    summary.decided = gateway.now().since(arrived);
    let tenant_budget = gateway.tenant_budget(summary.tenant.as_ref());
    let timeouts = settings.timeouts;
    let policy = CallPolicy { timeouts, whole_answer, tenant_budget, fingerprint };
    let Decided { context, plan, insert } = decided;
    if plan.steps.len() == 1 {
        let replanner = Replanner {
            worker,
            profile,
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
        return Ok((response, permit));
    }
    if let Some(insert) = insert {
        worker.commit(insert);
    }
    let task = multi_step::PlanTask { plan, call, reservation, context, trace, permit, policy };
    let done = Box::pin(multi_step::execute(worker, profile, task)).await?;
    summary.trace = kept(done.trace);
    Ok((done.response?, done.permit))
}

fn set_tenant(body: &mut ParsedBody, tenant: Option<&TenantSettings>) {
    let Some(tenant) = tenant else { return };
    body.request.priority = tenant.priority;
    body.request.weight = tenant.weight;
    body.request.tenant = Some(tenant.name.clone());
}

/// Refuses a request that broke the connections to two pods a short while ago.
fn refuse_poison(gateway: &Gateway, call: &StepCall) -> Result<RequestFingerprint, ErrorResponse> {
    let request = gateway.poison.fingerprint(&call.method, call.path.as_str(), &call.body);
    let Some(left) = gateway.poison.poisonous_for(request, gateway.now()) else {
        return Ok(request);
    };
    gateway.poison.count_refused();
    let reason = format!(
        "this request broke the connections to two pods, so it is not sent again for {} s; \
         change the request, or see the logs of the engines for why they closed the connection",
        left.as_secs().max(1)
    );
    let status = StatusCode::BAD_GATEWAY.as_u16();
    Err(Rejection { status, reason, retry_after: Some(left) }.into())
}

/// Whether the engine answers only when all of the answer is computed.
fn is_answered_at_once(api: Api, body: &ParsedBody) -> bool {
    api.generates() && !body.request.is_streamed()
}

/// A request that ends here keeps what was recorded of it.
fn keep_trace_on_error<T>(
    result: Result<T, ErrorResponse>,
    trace: &mut Option<Box<RequestTrace>>,
    summary: &mut RequestSummary,
) -> Result<T, ErrorResponse> {
    if result.is_err() {
        summary.trace = kept(trace.take());
    }
    result
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
        Ok(response) => respond(worker, response, None, summary, arrived),
        Err(error) => {
            summary.status = error.status.as_u16();
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
    let fingerprint = refuse_poison(gateway, &call)?;
    if snapshot.knows(&body.request.model.base) {
        summary.model.clone_from(&body.request.model.base);
    }
    let mut trace = None;
    let profile = planned.profile;
    let context = prepare(worker, profile, body.request, &work, &mut trace).await?;
    let decided = decide(worker, profile, context, work.length, &mut trace).await?;
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
