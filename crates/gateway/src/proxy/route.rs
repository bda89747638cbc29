//! The stages between a received body and a decision, for every front: parse, tenancy, usage,
//! prepare, decide.

use crate::dialect::Api;
use crate::observe::request_trace::{RequestTrace, kept};
use crate::observe::summary::RequestSummary;
use crate::proxy::body_budget::BodyReservation;
use crate::proxy::decide::{Decided, DecisionNotes, decide};
use crate::proxy::engine_priority::set_engine_priority;
use crate::proxy::error_response::ErrorResponse;
use crate::proxy::execute::CallPolicy;
use crate::proxy::first_pod::wait_for_first_pod;
use crate::proxy::gateway::Gateway;
use crate::proxy::ingress::{Arrival, Ingress, check_model, rename_model, replace_alias};
use crate::proxy::isolation::isolate;
use crate::proxy::low_priority_pool::{BodyWork, Origin};
use crate::proxy::parse::{ParsedBody, read_body};
use crate::proxy::prepare::prepare;
use crate::proxy::quota::QuotaPermit;
use crate::proxy::report_mode::remove_report_mode;
use crate::proxy::shadow::LiveRequest;
use crate::proxy::stream_usage::ask_for_usage;
use crate::proxy::unix_time;
use crate::proxy::worker::Worker;
use hyper::StatusCode;
use std::sync::Arc;
use wornpath_config::TenantSettings;
use wornpath_execution::{RequestFingerprint, StepCall};
use wornpath_routing::queue::Priority;
use wornpath_routing::{AllowedPods, Name, Profile, Rejection};

/// What is known of a request beside its head and its body.
#[derive(Debug, Default)]
pub(crate) struct RouteHints {
    /// The pods that may serve it; none if all may.
    pub(crate) allowed: Option<AllowedPods>,
    /// Its priority, where its tenant has none.
    pub(crate) priority: Option<Priority>,
    /// Whose share of the wait queue it takes from, where it has no tenant.
    pub(crate) fairness: Option<Name>,
    /// The model that it gets instead of the one that it names.
    pub(crate) model: Option<String>,
    /// Whether a body must name a model.
    pub(crate) model_name: ModelName,
}

/// Whether a body must name a model.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum ModelName {
    /// Only where several are served.
    #[default]
    Optional,
    /// Always, in an API that has prompts.
    Required,
}

/// A request whose pods are chosen.
pub(crate) struct Routed {
    pub(crate) call: StepCall,
    pub(crate) permit: Option<QuotaPermit>,
    /// What the body of `call` holds of the budget of all bodies.
    pub(crate) reservation: Option<BodyReservation>,
    pub(crate) profile: Arc<Profile>,
    pub(crate) decided: Decided,
    pub(crate) trace: Option<Box<RequestTrace>>,
    pub(crate) policy: CallPolicy,
}

/// Decides a request whose body was received.
pub(crate) async fn route(
    worker: &Arc<Worker>,
    ingress: Ingress<'_>,
    arrival: &Arrival,
    hints: RouteHints,
    summary: &mut RequestSummary,
) -> Result<Routed, ErrorResponse> {
    let gateway = &worker.gateway;
    let arrived = arrival.at;
    let Ingress { settings, tenant, mut permit, mut call, reservation, routing_headers: shown } =
        ingress;
    summary.tenant = tenant.map(|tenant| tenant.name.clone());
    let random = || worker.random();
    let mut trace = gateway.pods().sampler.sample(settings, &call.headers, arrived, random);
    if let Some(context) = trace.as_ref().and_then(|trace| trace.context) {
        context.write(&mut call.headers);
    }
    let origin = tenant.map_or(Origin::Address(arrival.address), Origin::Tenant);
    let work = BodyWork::new(call.body.len(), origin, &settings.limits);
    let mut body = read_body(worker, summary.api, &call, &work).await?;
    if let Some(permit) = &mut permit {
        permit.reserve(call.body.len(), body.request.output_tokens);
    }
    rename_model(hints.model, &mut body, &mut call)?;
    let has_prompts = summary.api.dialect().is_known();
    if hints.model_name == ModelName::Required && has_prompts && lacks_model(&body) {
        return Err(ErrorResponse::bad("`model` is missing; name the model".to_owned()));
    }
    if hints.allowed.as_ref().is_some_and(AllowedPods::is_empty) {
        return Err(Rejection::unavailable("the data plane allows no pod").into());
    }
    if settings.models.iter().any(|model| !model.wait_for_pod.is_zero()) {
        let wait = wait_for_first_pod(gateway, settings, &body.model, call.body.len());
        let from = gateway.now();
        let waited = Box::pin(wait).await;
        summary.waited = gateway.now().since(from);
        waited?;
    }
    let mut snapshot = gateway.snapshot();
    if snapshot.may_yet_serve(&body.model) {
        snapshot = Box::pin(gateway.pods().snapshot_after_discovery(&body.model)).await;
    }
    check_model(summary.api, &body.model, &snapshot)?;
    body.request.model = snapshot.model(&body.model);
    body.request.reading.engine = snapshot.engine_rules(&body.request.model.base);
    body.request.arrival = arrived;
    body.request.wall = unix_time();
    body.request.headers = shown;
    body.request.allowed = hints.allowed;
    body.request.fairness = hints.fairness;
    body.request.priority = hints.priority.unwrap_or_default();
    set_tenant(&mut body, tenant);
    replace_alias(&body, &mut call, &snapshot)?;
    set_engine_priority(&body, &mut call, settings)?;
    remove_report_mode(&body, &mut call)?;
    isolate(&mut body, &mut call, settings)?;
    let fingerprint = refuse_poison(gateway, &call)?;
    ask_for_usage(summary.api, &body, &mut call, settings.stream_usage);
    let routes = gateway.routes();
    let tenant = body.request.tenant.as_ref();
    let (name, profile) = routes.profile(call.path.path(), &body.request.model.base, tenant);
    let profile = Arc::clone(profile);
    summary.profile.clone_from(name);
    // The number is set with the first byte of the answer.
    summary.predicted_tokens = profile.looks_up().then_some(0);
    if snapshot.knows(&body.request.model.base) {
        summary.model.clone_from(&body.request.model.base);
    }
    summary.tenant.clone_from(&body.request.tenant);
    summary.series = gateway.metrics().and_then(|metrics| metrics.series_of(summary));
    let whole_answer = is_answered_at_once(summary.api, &body).then_some(settings.unstreamed);
    let prepared = prepare(worker, &profile, body.request, &work, &mut trace).await;
    let mut context = keep_trace_on_error(prepared, &mut trace, summary)?;
    if context.untokenized().is_some() {
        summary.predicted_tokens = None;
    }
    summary.tokenized = profile.prompt_length(&context);
    summary.traffic = gateway.recorder().prompt_shape(&profile, &context, arrived);
    let mut live = LiveRequest { profile: &profile, context: &mut context, length: work.length };
    let rehearsal = gateway.shadow.rehearse(&routes, gateway.pods(), &mut live);
    let notes = DecisionNotes { trace: &mut trace, waited: &mut summary.waited };
    let decided = decide(worker, &profile, context, work.length, notes).await;
    let decided = keep_trace_on_error(decided, &mut trace, summary)?;
    if let Some(rehearsal) = rehearsal {
        let snapshot = gateway.snapshot();
        let choice = gateway.shadow.compare(&rehearsal, name, &decided.plan, &snapshot);
        summary.shadow = Some(Box::new(choice));
    }
    summary.decided = gateway.now().since(arrived);
    let tenant_budget = gateway.tenant_budget(summary.tenant.as_ref());
    let timeouts = settings.timeouts;
    let policy = CallPolicy { timeouts, whole_answer, tenant_budget, fingerprint };
    Ok(Routed { call, permit, reservation, profile, decided, trace, policy })
}

fn lacks_model(body: &ParsedBody) -> bool {
    body.is_object && body.model.is_empty()
}

fn set_tenant(body: &mut ParsedBody, tenant: Option<&TenantSettings>) {
    let Some(tenant) = tenant else { return };
    body.request.priority = tenant.priority;
    body.request.weight = tenant.weight;
    body.request.tenant = Some(tenant.name.clone());
}

/// Refuses a request that broke the connections to two pods a short while ago.
pub(crate) fn refuse_poison(
    gateway: &Gateway,
    call: &StepCall,
) -> Result<RequestFingerprint, ErrorResponse> {
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
    Err(Rejection { retry_after: Some(left), ..Rejection::refused(status, reason) }.into())
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
