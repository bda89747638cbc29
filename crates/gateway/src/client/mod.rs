//! The client plane: one HTTP request in, one answer out.

mod batch_request;
mod converted;
mod error_response;
pub(crate) mod head;
mod ingress;
mod multi_step;
pub(crate) mod parse;
mod relay;
mod stream_end;
mod stream_error;

use crate::admin::decoded;
use crate::batches::unix_time;
use crate::fleet::{FleetSnapshot, PodEntry};
use crate::low_priority_pool::aside;
use crate::quota::QuotaPermit;
use crate::request_trace::{RequestTrace, kept};
use crate::settings::{DebugHeaders, Length, ReplicaSettings, Settings, TenantSettings};
use crate::state::Readiness;
use crate::summary::{Api, Computed, RequestEnd, RequestSummary, Speculative};
use crate::usage::UsageScan;
use crate::wait_queue::Waiter;
use crate::watchdog::{TaskName, running};
use crate::worker::{Dispatcher, PendingIndexUpdate, Worker};
pub(crate) use batch_request::{BatchRequest, send_planned};
use bytes::Bytes;
use error_response::ErrorResponse;
use hyper::body::Incoming;
use hyper::header::{CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, HeaderValue, TRANSFER_ENCODING};
use hyper::{Method, Request, Response, StatusCode, Version};
use ingress::Ingress;
pub(crate) use ingress::tenant;
pub(crate) use multi_step::KvLease;
use multi_step::StartedPlan;
use parse::ParsedBody;
pub(crate) use relay::ClientReply;
use relay::{End, EndMarker, Relay};
use serde_json::{Value, json};
use std::convert::Infallible;
use std::sync::Arc;
use wornpath_execution::{
    CallOptions, Edit, PlanResponse, PrefillResult, StepCall, execute, splice, transfer_fields,
};
use wornpath_index::Moment;
use wornpath_routing::queue::Redecision;
use wornpath_routing::{
    DecisionEnv, Explanation, Health, Name, Outcome, Profile, Recorder, Rejection, RoutingContext,
    RoutingPlan,
};

/// Where one model is asked for.
const MODEL_PATH: &str = "/v1/models/";

static PARSE: TaskName = TaskName::new("parse a request");
static PREPARE: TaskName = TaskName::new("tokenize a prompt");
static METRICS: TaskName = TaskName::new("write the metrics");

/// Answers one request.
///
/// What this keeps while it waits is moved about for every request, so what few requests need (a place in the
/// waiting room, a thread of its own, files and batches) is kept apart.
pub(crate) async fn respond(
    worker: Arc<Worker>,
    request: Request<Incoming>,
) -> Result<Response<ClientReply>, Infallible> {
    let id = head::request_id(request.headers(), || worker.random());
    let mut response = match own(&worker, request).await {
        Ok(own) => own,
        Err(request) => relayed(&worker, request, &id).await,
    };
    let headers = response.headers_mut();
    headers.insert(head::REQUEST_ID, id);
    if worker.gateway.is_draining() {
        // Its connection would be closed before long, perhaps under its next request.
        headers.insert(CONNECTION, HeaderValue::from_static("close"));
    }
    Ok(response)
}

/// What the gateway answers without any engine, or the request back.
async fn own(
    worker: &Arc<Worker>,
    request: Request<Incoming>,
) -> Result<Response<ClientReply>, Request<Incoming>> {
    #[cfg(debug_assertions)]
    crate::fault::inject(worker, request.headers());
    match (request.method(), request.uri().path()) {
        // Of what is answered to HEAD, the server leaves out the body.
        (&(Method::GET | Method::HEAD), "/health" | "/ping") => return Ok(health(worker)),
        (&(Method::GET | Method::HEAD), "/ready") => return Ok(ready(worker)),
        (&(Method::GET | Method::HEAD), "/v1/models") => return Ok(models(worker)),
        (&(Method::GET | Method::HEAD), path) if path.starts_with(MODEL_PATH) => {
            return Ok(model(worker, &path[MODEL_PATH.len()..]));
        }
        (&(Method::GET | Method::HEAD), "/metrics") => {
            if let Some(page) = Box::pin(metrics(worker)).await {
                return Ok(page);
            }
        }
        _ => {}
    }
    crate::batches::respond(worker, request).await
}

/// What an engine answers, or why none does.
async fn relayed(
    worker: &Arc<Worker>,
    request: Request<Incoming>,
    id: &HeaderValue,
) -> Response<ClientReply> {
    let arrived = worker.gateway.now();
    let api = head::api(request.uri().path());
    let shape = head::shape(request.uri().path());
    let record = Some(RequestSummary::new(id.to_str().unwrap_or_default(), api));
    let mut unanswered = ClientError { worker, record, arrived };
    let routed = route(worker, request, (id.clone(), arrived), unanswered.record()).await;
    match routed {
        Ok((carried, turn)) => answer(worker, (carried, turn), unanswered.answered(), arrived),
        Err(refusal) => {
            unanswered.end(RequestEnd::Refused, refusal.status.as_u16());
            refusal.response(shape)
        }
    }
}

/// A request without an answer. If it is dropped as such, its client has left.
struct ClientError<'a> {
    worker: &'a Worker,
    /// None once its end is told, or another's to tell.
    record: Option<RequestSummary>,
    arrived: Moment,
}

/// What nginx says of a client that has closed its connection, and monitors know.
const CLIENT_CLOSED_REQUEST: u16 = 499;

impl ClientError<'_> {
    fn record(&mut self) -> &mut RequestSummary {
        self.record.get_or_insert_with(|| RequestSummary::new("", Api::Other))
    }

    /// Its answer has begun, and tells of its end.
    fn answered(mut self) -> RequestSummary {
        self.record.take().unwrap_or_else(|| RequestSummary::new("", Api::Other))
    }

    fn end(&mut self, how: RequestEnd, status: u16) {
        let Some(mut record) = self.record.take() else { return };
        (record.ended, record.status) = (how, status);
        record.total = self.worker.gateway.now().saturating_sub(self.arrived);
        self.worker.gateway.ended(&record);
    }
}

impl Drop for ClientError<'_> {
    fn drop(&mut self) {
        self.end(RequestEnd::ClientLeft, CLIENT_CLOSED_REQUEST);
    }
}

/// Reads the request, decides, and carries the plan out to the first byte.
async fn route(
    worker: &Arc<Worker>,
    request: Request<Incoming>,
    (id, arrived): (HeaderValue, Moment),
    record: &mut RequestSummary,
) -> Result<(PlanResponse, Option<QuotaPermit>), ErrorResponse> {
    let (gateway, settings) = (&worker.gateway, worker.gateway.settings());
    let Ingress { tenant, mut call, shown } = ingress::take_in(request, id, &settings).await?;
    let turn = turn(worker, tenant)?;
    let random = || worker.random();
    let mut seen = gateway.sampler.look(&settings, &call.headers, arrived, random);
    if let Some(trace) = seen.as_ref().and_then(|seen| seen.trace) {
        trace.write(&mut call.headers);
    }
    let length = settings.limits.length(call.body.len());
    let mut read = read_body(worker, record.api, &call, length).await?;
    let (mut roster, routing) = (gateway.roster(), gateway.routing());
    if roster.may_yet_serve(&read.model) {
        roster = Box::pin(gateway.roster_after_introductions(&read.model)).await;
    }
    read.request.model = roster.model(&read.model);
    read.request.arrival = arrived;
    read.request.wall = unix_time();
    read.request.headers = shown;
    if let Some(tenant) = tenant {
        read.request.priority = tenant.priority;
        read.request.weight = tenant.weight;
        read.request.tenant = Some(tenant.name.clone());
    }
    renamed(&read, &mut call, &roster)?;
    salted(record.api, &mut read, &mut call, &settings)?;
    let (name, profile) =
        routing.profile(call.path.path(), &read.request.model.base, read.request.tenant.as_ref());
    record.profile.clone_from(name);
    // How much is said once the answer has begun.
    record.predicted_tokens = profile.looks_up().then_some(0);
    if roster.knows(&read.request.model.base) {
        record.model.clone_from(&read.request.model.base);
    }
    record.tenant.clone_from(&read.request.tenant);
    let is_whole = record.api.generates() && !read.request.is_streamed();
    let whole_answer = is_whole.then_some(settings.unstreamed);
    let prepared = prepare(worker, profile, (read, length), &mut seen).await;
    if prepared.is_err() {
        record.seen = kept(seen.take());
    }
    let context = prepared?;
    record.trail = gateway.tape.trail(profile, &context, arrived);
    let decided = decide(worker, profile, (context, length), &mut seen).await;
    if decided.is_err() {
        record.seen = kept(seen.take());
    }
    let (context, plan, untold) = decided?;
    record.decided = gateway.now().saturating_sub(arrived);
    let (budget, timeouts) = (&gateway.budget, settings.timeouts);
    let kit = CallOptions { budget, timeouts, whole_answer, worker: worker.number };
    if plan.steps.len() == 1 {
        let (bytes, roster, untold) = (call.body.len(), gateway.roster(), &untold);
        let (handover, record) = (None, Some(record));
        let mut dispatcher =
            Dispatcher { worker, profile, context, bytes, seen, roster, untold, handover, record };
        dispatcher.goes_to(&plan);
        let carried = untold.tell_after(worker, execute(plan, &call, &kit, &mut dispatcher)).await;
        if carried.is_err() {
            dispatcher.goes_nowhere();
        }
        return Ok((carried?, turn));
    }
    untold.tell(worker);
    let begun = StartedPlan { plan, call, context, seen, turn, whole_answer };
    let (carried, seen, turn) = Box::pin(multi_step::carry(worker, profile, begun)).await?;
    record.seen = kept(seen);
    Ok((carried?, turn))
}

/// Calls the model what its engines call it, if the client used another name of the configuration's.
fn renamed(
    read: &ParsedBody,
    call: &mut StepCall,
    roster: &FleetSnapshot,
) -> Result<(), ErrorResponse> {
    if let Some(name) = roster.alias_of(&read.model) {
        if !read.is_object {
            return Err(ErrorResponse::bad(format!(
                "`{}` is another name of `{name}`, which cannot be put into a form; write `{name}`",
                read.model
            )));
        }
        let edit = Edit::set("model", &name.as_str().into());
        call.body =
            splice(&call.body, &[edit]).map_err(|error| ErrorResponse::bad(error.to_string()))?;
    }
    Ok(())
}

/// Puts the tenant's salt into the request, if tenants share nothing.
fn salted(
    api: Api,
    read: &mut ParsedBody,
    call: &mut StepCall,
    settings: &Settings,
) -> Result<(), ErrorResponse> {
    if settings.sharing == ReplicaSettings::Isolated && api == Api::Messages {
        // vLLM drops what it does not know there, and a salt is among that.
        return Err(ErrorResponse::bad(
            "tenants are isolated, and engines take no `cache_salt` at `/v1/messages`; use `/v1/chat/completions`"
                .to_owned(),
        ));
    }
    if settings.sharing == ReplicaSettings::Isolated && !read.is_object {
        parse::saltable(call)?;
    }
    if settings.sharing == ReplicaSettings::Isolated && read.is_object {
        let fields = &read.request.fields;
        if let Some(field) = transfer_fields().iter().find(|it| fields.contains_key(**it)) {
            return Err(ErrorResponse::bad(format!(
                "`{field}` is between the router and its engines, where it could name another tenant's blocks; leave it out"
            )));
        }
        let name = read.request.tenant.as_ref().map_or("", Name::as_str);
        let salt = settings.key.cache_salt(name);
        // Whatever the client said: it must not reach into another tenant's cache.
        let edit = Edit::set("cache_salt", &salt.as_str().into());
        call.body =
            splice(&call.body, &[edit]).map_err(|error| ErrorResponse::bad(error.to_string()))?;
        read.request.salt = Some(salt);
    }
    Ok(())
}

/// A tenant with a quota must have a turn left.
fn turn(
    worker: &Worker,
    tenant: Option<&TenantSettings>,
) -> Result<Option<QuotaPermit>, ErrorResponse> {
    let Some((tenant, quota)) = tenant.and_then(|tenant| Some((tenant, tenant.quota?))) else {
        return Ok(None);
    };
    let turn = worker.gateway.quotas.turn(&tenant.name, quota);
    turn.map(Some).ok_or_else(|| {
        let why = format!("{quota} of your requests are under way or wait, as many as may");
        ErrorResponse::from(Rejection::busy(&why))
    })
}

/// Short bodies are read at once; long ones apart, so that they keep nobody waiting.
async fn read_body(
    worker: &Arc<Worker>,
    api: Api,
    call: &StepCall,
    length: Length,
) -> Result<ParsedBody, ErrorResponse> {
    if call.body.is_empty() && call.method != Method::POST {
        return Ok(ParsedBody::default());
    }
    let form = parse::form(api, call);
    let read = move |body: &Bytes| match form {
        Some(form) => Ok(parse::read_form(form, body)),
        None => parse::read(api, body),
    };
    if !length.is_long {
        let _running = running(&PARSE);
        return read(&call.body);
    }
    let body = call.body.clone();
    Box::pin(apart(worker, &PARSE, length, move || read(&body))).await?
}

async fn prepare(
    worker: &Arc<Worker>,
    profile: &Arc<Profile>,
    (read, length): (ParsedBody, Length),
    seen: &mut Option<Box<RequestTrace>>,
) -> Result<RoutingContext, ErrorResponse> {
    let mut context = profile.context(read.request);
    let is_short = !length.is_long;
    if is_short && seen.is_none() {
        let _running = running(&PREPARE);
        profile.prepare(&mut context)?;
        return Ok(context);
    }
    let (profile, clock, is_seen) = (Arc::clone(profile), worker.gateway.clock(), seen.is_some());
    let work = move || {
        if !is_seen {
            return profile.prepare(&mut context).map(|()| (context, Explanation::default()));
        }
        let now = || clock.now();
        let mut recorder = Recorder::new(&now);
        let prepared = profile.prepare_explained(&mut context, &mut recorder);
        prepared.map(|()| (context, recorder.finish()))
    };
    if let Some(seen) = seen {
        seen.prepared = worker.gateway.now();
    }
    let (context, explanation) = if is_short {
        let _running = running(&PREPARE);
        work()?
    } else {
        Box::pin(apart(worker, &PREPARE, length, work)).await??
    };
    if let Some(seen) = seen {
        seen.explanation = explanation;
    }
    Ok(context)
}

/// Runs on a thread where taking long keeps no other request waiting; so many at a time.
async fn apart<T: Send + 'static>(
    worker: &Worker,
    task: &'static TaskName,
    length: Length,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, ErrorResponse> {
    let gateway = &worker.gateway;
    let gone = || ErrorResponse::from(Rejection::unavailable("the gateway is ending"));
    let preparers = Arc::clone(&gateway.preparers);
    let permit = preparers.acquire_owned().await.map_err(|_| gone())?;
    // The work goes on if its client leaves, and only its end makes room.
    let work = move || (work(), drop(permit)).0;
    aside(gateway, task, length.bytes, work).await.map_err(|_| gone())
}

/// A plan, and what the index is to be told of it.
async fn decide(
    worker: &Worker,
    profile: &Arc<Profile>,
    (mut context, length): (RoutingContext, Length),
    seen: &mut Option<Box<RequestTrace>>,
) -> Result<(Option<RoutingContext>, RoutingPlan, PendingIndexUpdate), ErrorResponse> {
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
        let (outcome, untold) = worker.decide(length, decide).await;
        let (back, decided) = match outcome {
            Outcome::Plan(plan) => (Some(context), Ok(plan)),
            Outcome::Reject(rejection) => (Some(context), Err(rejection)),
            Outcome::Hold(hold) => {
                let bytes = length.bytes;
                let waiter = Waiter { profile, context, again: Redecision::default(), bytes };
                if let Some(seen) = seen {
                    seen.has_waited = true;
                }
                Box::pin(gateway.lobby.wait(worker, hold, waiter)).await
            }
        };
        context = match (back, decided) {
            (back, Ok(plan)) => return Ok((back, plan, untold)),
            // All who could have answered it may have been replaced since it came.
            (Some(back), Err(_)) if is_first && gateway.roster().may_yet_serve(model_of(&back)) => {
                back
            }
            (_, Err(rejection)) => return Err(rejection.into()),
        };
        is_first = false;
        Box::pin(gateway.roster_after_introductions(model_of(&context))).await;
    }
}

fn model_of(context: &RoutingContext) -> &str {
    context.request().model.base.as_str()
}

/// The engine's answer as the client gets it.
fn answer(
    worker: &Arc<Worker>,
    (carried, turn): (PlanResponse, Option<QuotaPermit>),
    mut record: RequestSummary,
    arrived: wornpath_index::Moment,
) -> Response<ClientReply> {
    let gateway = &worker.gateway;
    let (roster, settings) = (gateway.roster(), gateway.settings());
    let mut response_head = carried.answer.head;
    response_head.version = Version::HTTP_11;
    let headers = &response_head.headers;
    let ends_by_closing =
        !headers.contains_key(TRANSFER_ENCODING) && !headers.contains_key(CONTENT_LENGTH);
    if headers.contains_key(TRANSFER_ENCODING) {
        // The engine's framing was by chunks, whatever else it says.
        response_head.headers.remove(CONTENT_LENGTH);
    }
    head::strip(&mut response_head.headers);
    head::strip_ours(&mut response_head.headers);
    record.status = response_head.status.as_u16();
    let now = gateway.now();
    record.first_byte = Some(now.saturating_sub(arrived));
    if let (Some(load), 0, 200..300) = (&carried.step.reservation, carried.retries, record.status) {
        load.began(now.saturating_sub(arrived + record.decided), now);
    }
    record.retries = carried.retries;
    record.is_degraded = carried.is_degraded;
    let (cache, computed_by) = match &carried.prefill {
        Some(taken) => (&taken.cache, taken.pod),
        None => (&carried.step.cache, carried.step.pod),
    };
    // Who did not look predicts nothing, not zero.
    record.predicted_tokens = record.predicted_tokens.map(|_| cache.tokens);
    let speculative = cache.speculative.zip(computed_by);
    record.speculative = speculative.map(|(last, pod)| Speculative { pod, last });
    record.computed = carried.prefill.map(|taken| Box::new(computed(&roster, &taken)));
    let seat = carried.step.pod.and_then(|pod| roster.seat(pod));
    record.pod = seat.map(|seat| (seat.pod.id(), seat.pod.facts().name.clone()));
    if settings.reveal == DebugHeaders::Pod
        && let Some((_, name)) = &record.pod
    {
        head::reveal(&mut response_head.headers, name, &carried.step, carried.is_degraded);
    }
    if carried.is_degraded {
        response_head.headers.insert(head::DEGRADED, HeaderValue::from_static("true"));
    }
    let told = EndMarker::by(record.api, &response_head.headers);
    let end = if ends_by_closing { End::Closing } else { End::Told };
    let load = (carried.step, carried.endpoint, turn);
    let relay =
        Relay::new((carried.answer.body, end), load, told, (Arc::clone(worker), record, arrived));
    Response::from_parts(response_head, ClientReply::Relay(Box::new(relay)))
}

/// Who computed the prompt for another pod, and what it said of it.
fn computed(roster: &FleetSnapshot, taken: &PrefillResult) -> Computed {
    let mut scan = UsageScan::default();
    scan.feed(&taken.answer);
    let seat = taken.pod.and_then(|pod| roster.seat(pod));
    Computed { pod: seat.map(|seat| seat.pod.facts().name.clone()), usage: scan.usage() }
}

/// Whether the process should go on. Takes no lock that a stuck thread could hold.
fn health(worker: &Worker) -> Response<ClientReply> {
    match worker.gateway.threads.why_unhealthy() {
        None => Response::new(ClientReply::whole(Bytes::new())),
        Some(why) => unavailable(why.into()),
    }
}

fn ready(worker: &Worker) -> Response<ClientReply> {
    if let Some(why) = worker.gateway.threads.why_unhealthy() {
        return unavailable(why.into());
    }
    match worker.gateway.readiness() {
        Readiness::Ready => Response::new(ClientReply::whole(Bytes::from_static(b"ready"))),
        Readiness::Starting => unavailable(none_is_up(&worker.gateway.roster()).into()),
        Readiness::Draining => unavailable("draining".into()),
    }
}

fn unavailable(why: Bytes) -> Response<ClientReply> {
    let mut response = Response::new(ClientReply::whole(why));
    *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
    response
}

/// Why no pod takes requests.
fn none_is_up(roster: &FleetSnapshot) -> &'static str {
    let is_draining = |seat: &PodEntry| seat.pod.vitals().health() == Health::Draining;
    match roster.seats() {
        [] => "starting: there is no pod",
        seats if seats.iter().all(is_draining) => "no pod takes requests: all are drained",
        _ => "starting: no pod has answered yet",
    }
}

/// The page of metrics. It looks at every pod, so it is written where it keeps no request waiting.
async fn metrics(worker: &Worker) -> Option<Response<ClientReply>> {
    let (gateway, counted) = (Arc::clone(&worker.gateway), Arc::clone(worker.gateway.metrics()?));
    let write = move || crate::metrics::page(&gateway, &counted);
    let page = aside(&worker.gateway, &METRICS, 0, write).await.ok()?;
    let mut response = Response::new(ClientReply::whole(Bytes::from(page)));
    let kind = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    response.headers_mut().insert(CONTENT_TYPE, kind);
    Some(response)
}

fn models(worker: &Worker) -> Response<ClientReply> {
    shown(&json!({"object": "list", "data": worker.gateway.roster().cards()}))
}

/// One model, by a name that may be written with escapes, as `org%2Fmodel`.
fn model(worker: &Worker, name: &str) -> Response<ClientReply> {
    let name = decoded(name).unwrap_or_else(|| name.to_owned());
    let roster = worker.gateway.roster();
    match roster.cards().iter().find(|card| card["id"] == *name) {
        Some(card) => shown(card),
        None => {
            let message =
                format!("there is no model `{name}`; GET /v1/models lists what is served");
            ErrorResponse::new(StatusCode::NOT_FOUND, message).response(Api::Other)
        }
    }
}

fn shown(json: &Value) -> Response<ClientReply> {
    let mut response = Response::new(ClientReply::whole(json.to_string().into()));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}
