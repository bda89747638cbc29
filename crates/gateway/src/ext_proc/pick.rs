//! The pick: runs the stages for a request, and turns the plan into addresses.

use super::bare::{self, NoMoreMessages};
use super::destination::{Destination, destinations, is_prefill, scores, written};
use super::head::{self, DESTINATION, PREFILLER, RANK};
use super::header_changes::HeaderChanges;
use super::hints::hints;
use super::proto::{BodySendMode, HttpHeaders, Metadata, ProcessingRequest};
use super::request_body::{BodyEnd, RequestBody};
use super::response::{SentRequest, Trial};
use crate::dialect::Api;
use crate::fleet::snapshot::FleetSnapshot;
use crate::observe::request_trace::kept;
use crate::observe::summary::RequestSummary;
use crate::proxy::account::{OpenResponse, ResponseAccount};
use crate::proxy::body_budget::BodyReservation;
use crate::proxy::decide::Decided;
use crate::proxy::error_response::ErrorResponse;
use crate::proxy::headers::request_id;
use crate::proxy::ingress::{self, Arrival};
use crate::proxy::pending_summary::{CLIENT_CLOSED_REQUEST, PendingSummary};
use crate::proxy::route::{ModelName, Routed, route};
use crate::proxy::worker::{LockedInsert, Worker};
use bytes::Bytes;
use hyper::StatusCode;
use hyper::header::{HeaderMap, HeaderValue};
use hyper::http::uri::PathAndQuery;
use std::net::{IpAddr, SocketAddr};
use std::pin::pin;
use std::sync::Arc;
use tonic::{Status, Streaming};
use wornpath_config::Destinations;
use wornpath_execution::{Edit, Endpoint, STREAM_OPTIONS, StepCall, splice};
use wornpath_routing::{Mutation, Outcome, PlanStep, Rejection, Retry};

/// What a data plane asks about one request, beside its body.
#[derive(Clone, Copy)]
pub(super) struct Question<'a> {
    /// The address of the data plane.
    pub(super) peer: IpAddr,
    pub(super) head: &'a HttpHeaders,
    pub(super) metadata: Option<&'a Metadata>,
    /// How the body of the response will be sent.
    pub(super) response_mode: BodySendMode,
    pub(super) no_more: NoMoreMessages,
}

/// What becomes of a request.
pub(super) enum Pick {
    Picked(Box<SentRequest>, Box<Answer>),
    /// The client gets this error, in the form of its API.
    Refused(ErrorResponse, Api),
    ClientLeft,
}

/// A pick as the data plane gets it.
pub(super) struct Answer {
    pub(super) destinations: String,
    /// Of all candidates, if the settings want them.
    pub(super) scores: Vec<(SocketAddr, f64)>,
    pub(super) changes: HeaderChanges,
    /// None if the request has no body.
    pub(super) body: Option<Bytes>,
    pub(super) body_end: BodyEnd,
    /// What the body holds of the budget of all bodies.
    pub(super) reservation: Option<BodyReservation>,
    /// Committed when the answer is on its way: the pod computes meanwhile.
    pub(super) insert: Option<LockedInsert>,
}

/// The steps of a plan that a data plane executes, with their addresses.
struct Target {
    /// The step that answers.
    step: PlanStep,
    /// The step that computes the prompt for it.
    prefill: Option<PlanStep>,
    endpoint: Arc<Endpoint>,
    /// At least one.
    destinations: Vec<Destination>,
    rank: Option<u32>,
    /// The address of the prefill pod.
    prefiller: Option<String>,
}

/// Whether a request may go to a pod that has to compute its prompt.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Wanted {
    Any,
    /// Only to one that holds it, by `Prefer: if-available`.
    Cached,
}

/// Runs the stages for a request.
pub(super) async fn pick(
    worker: &Arc<Worker>,
    question: Question<'_>,
    inbox: &mut Streaming<ProcessingRequest>,
) -> Result<Pick, Status> {
    let gateway = worker.gateway();
    let settings = gateway.settings();
    let Some(epp) = &settings.epp else {
        return Err(Status::unavailable("the endpoint picker is disabled; set `listen.epp`"));
    };
    let arrived = gateway.now();
    let has_body = !question.head.end_of_stream;
    let parts = head::request(question.head);
    let mut parts = parts.map_err(|error| Status::invalid_argument(error.to_string()))?;
    // Only the picker may set these.
    parts.headers.remove(DESTINATION);
    let before = parts.headers.clone();
    parts.headers.remove(PREFILLER);
    head::add_present_names(&mut parts.headers);
    let length = head::length(&parts.headers);
    let api = Api::at(parts.uri.path());
    let error_api = Api::of_errors_at(parts.uri.path());
    let id = request_id(&parts.headers, || worker.random());
    let summary = RequestSummary::new(id.to_str().unwrap_or_default(), api);
    let mut pending = PendingSummary::new(worker, summary, arrived);
    let mut hints = hints(&parts.headers, question.metadata, epp);
    if !has_body {
        hints.model_name = ModelName::Optional;
    }
    let wanted = wanted(&parts.headers);
    let address = client_address(&parts.headers).unwrap_or(question.peer);
    let arrival = Arrival { at: arrived, id, address };
    let end = if has_body { BodyEnd::Open } else { BodyEnd::Chunk };
    let mut body = RequestBody::new(inbox, end, length);
    let received = ingress::receive(worker, parts, &mut body, &arrival, &settings).await;
    let body_end = body.end();
    let routed = match received {
        Err(_) if body_end == BodyEnd::Lost => return Ok(Pick::ClientLeft),
        Err(refused) => {
            pending.get().tenant = refused.tenant;
            Err(refused.error)
        }
        Ok(mut ingress) => {
            if bare::is_pathless(question.head) {
                name_api(&mut ingress.call, pending.get());
            }
            let routed = route(worker, ingress, &arrival, hints, pending.get());
            match unless_client_left(routed, inbox, question.no_more).await? {
                Some(routed) => routed,
                None => return Ok(Pick::ClientLeft),
            }
        }
    };
    let response_mode = question.response_mode;
    let received = Received { before, length, body_end, has_body, response_mode };
    let made = routed.and_then(|mut routed| {
        let target = target(worker, &mut routed, epp.destinations)?;
        if wanted == Wanted::Cached {
            refuse_uncached(worker, &routed, &target)?;
        }
        let mut answer = answer(&mut routed, &target, received)?;
        if epp.sends_scores
            && let Some(trace) = &routed.trace
        {
            answer.scores = scores(&trace.explanation, &gateway.snapshot());
        }
        Ok((routed, target, answer))
    });
    match made {
        Ok((routed, target, answer)) => {
            let sent = sent(worker, routed, target, pending.take(), &arrival);
            Ok(Pick::Picked(Box::new(sent), Box::new(answer)))
        }
        Err(error) => {
            pending.refused(&error);
            Ok(Pick::Refused(error, error_api))
        }
    }
}

/// A request as it was received.
struct Received {
    /// Its headers.
    before: HeaderMap,
    /// The declared length of its body.
    length: Option<u64>,
    body_end: BodyEnd,
    has_body: bool,
    /// How the body of its response will be sent.
    response_mode: BodySendMode,
}

/// The result of `routing`; none if the client disconnected before.
async fn unless_client_left<T>(
    routing: impl Future<Output = T>,
    inbox: &mut Streaming<ProcessingRequest>,
    no_more: NoMoreMessages,
) -> Result<Option<T>, Status> {
    let mut routing = pin!(routing);
    let message = tokio::select! {
        biased;
        routed = &mut routing => return Ok(Some(routed)),
        message = inbox.message() => message,
    };
    match message {
        Ok(Some(_)) => Err(Status::invalid_argument(
            "a message came after the end of the request and before its answer",
        )),
        // A stream that breaks while it waits is dropped with its connection.
        Ok(None) if no_more == NoMoreMessages::IsWhole => Ok(Some(routing.await)),
        Ok(None) | Err(_) => Ok(None),
    }
}

/// Names the API of a request whose data plane did not tell its path.
fn name_api(call: &mut StepCall, summary: &mut RequestSummary) {
    let path = bare::path_of(&call.body);
    summary.api = Api::at(path);
    call.path = PathAndQuery::from_static(path);
}

fn wanted(headers: &HeaderMap) -> Wanted {
    let texts = headers.get_all("prefer").iter().filter_map(|value| value.to_str().ok());
    let is_cached = texts
        .flat_map(|text| text.split(','))
        .any(|word| word.trim().eq_ignore_ascii_case("if-available"));
    if is_cached { Wanted::Cached } else { Wanted::Any }
}

/// The address of the client, which the data plane adds at the end of `x-forwarded-for`.
fn client_address(headers: &HeaderMap) -> Option<IpAddr> {
    let forwarded = headers.get_all("x-forwarded-for").iter().next_back()?;
    forwarded.to_str().ok()?.rsplit(',').next()?.trim().parse().ok()
}

/// The steps that the data plane executes. Steps that are bound when they start are bound now, as
/// the data plane starts all of them.
fn target(
    worker: &Worker,
    routed: &mut Routed,
    wanted: Destinations,
) -> Result<Target, ErrorResponse> {
    let gateway = worker.gateway();
    let snapshot = gateway.snapshot();
    let Routed { profile, decided: Decided { context, plan, .. }, .. } = routed;
    let mut steps = std::mem::take(&mut plan.steps);
    for step in steps.iter_mut().filter(|step| step.pod.is_none()) {
        let Some(context) = context else { return Err(Rejection::shutting_down().into()) };
        let retry = Retry { step: Some(&step.name), excluded: &[] };
        let outcome =
            worker.decide_now(&snapshot, gateway.now(), |env| profile.replan(context, env, retry));
        match outcome {
            Outcome::Plan(bound) => {
                if let Some(bound) = bound.steps.into_iter().next() {
                    *step = bound;
                }
            }
            Outcome::Reject(rejection) => return Err(rejection.into()),
            Outcome::Hold(_) => return Err(Rejection::busy("every pod is busy").into()),
        }
    }
    let gone = || Rejection::unavailable("the chosen pod was removed; retry");
    let step = steps.pop().ok_or_else(gone)?;
    let prefill = steps.into_iter().rfind(is_prefill);
    let destinations = destinations(&step, &snapshot, wanted);
    let first = destinations.first().and_then(|first| snapshot.entry(first.pod));
    let entry = first.ok_or_else(gone)?;
    Ok(Target {
        prefiller: prefill.as_ref().and_then(|prefill| prefiller(prefill, &snapshot)),
        endpoint: Arc::clone(&entry.endpoint),
        rank: entry.pod.facts().rank,
        step,
        prefill,
        destinations,
    })
}

/// The address of a prefill pod, as sidecars read it.
fn prefiller(step: &PlanStep, snapshot: &FleetSnapshot) -> Option<String> {
    let entry = snapshot.entry(step.pod?)?;
    let authority = || entry.endpoint.authority().to_str().ok().map(str::to_owned);
    entry.pod.facts().address.map(|address| address.to_string()).or_else(authority)
}

/// 412, unless the pod holds all of the prompt that it could hold. Engines always compute the last
/// token, and with it its block.
fn refuse_uncached(worker: &Worker, routed: &Routed, target: &Target) -> Result<(), ErrorResponse> {
    let context = routed.decided.context.as_ref();
    let blocks = context.and_then(|context| routed.profile.prompt_blocks(context));
    let missing = blocks.map(|blocks| {
        let block_tokens = blocks.block_tokens.max(1);
        let could_hold = blocks.prompt_tokens.saturating_sub(1) / block_tokens * block_tokens;
        (could_hold as u64).saturating_sub(target.step.cache.tokens)
    });
    let message = match missing {
        Some(0) => return Ok(()),
        Some(tokens) => format!("{tokens} tokens of the prompt are not cached on the chosen pod"),
        None => "what is cached of the prompt is not known".to_owned(),
    };
    // A long prompt is in the index already, although it will not be sent.
    if let (Some(blocks), None, Some(pod)) = (blocks, &routed.decided.insert, target.step.pod) {
        worker.rollback(pod, &blocks.chain, routed.call.body.len());
    }
    let message = format!("{message}; send the request without `Prefer: if-available`");
    Err(ErrorResponse::new(StatusCode::PRECONDITION_FAILED, message))
}

/// The answer to the data plane: addresses, changed headers, and the body.
fn answer(
    routed: &mut Routed,
    target: &Target,
    received: Received,
) -> Result<Answer, ErrorResponse> {
    let call = &mut routed.call;
    let Received { before, length, body_end, has_body, response_mode } = received;
    edit_body(call, target, response_mode)?;
    target.endpoint.authorize(&mut call.headers);
    if let Some(rank) = target.rank {
        call.headers.insert(RANK, HeaderValue::from(rank));
    }
    let prefiller = target.prefiller.as_deref().and_then(|it| HeaderValue::from_str(it).ok());
    if let Some(prefiller) = prefiller {
        call.headers.insert(PREFILLER, prefiller);
    }
    let mut changes = head::changes(&before, &call.headers);
    if has_body && length.is_some_and(|length| length != call.body.len() as u64) {
        changes.set("content-length", call.body.len().to_string());
    }
    Ok(Answer {
        destinations: written(&target.destinations),
        scores: Vec::new(),
        changes,
        body: has_body.then(|| call.body.clone()),
        body_end,
        reservation: routed.reservation.take(),
        insert: routed.decided.insert.take(),
    })
}

/// Sets the fields of the step in the body. Asks for token counts that the client does not want only
/// if the engine accepts that, and if the picker sends the response back, so that it can remove them.
fn edit_body(
    call: &mut StepCall,
    target: &Target,
    mode: BodySendMode,
) -> Result<(), ErrorResponse> {
    let mut edits = Vec::new();
    for mutation in &target.step.mutations {
        if let Mutation::Set { field, value } = mutation {
            edits.push(Edit::set(field, value));
        }
    }
    let is_passed_back = mode == BodySendMode::FullDuplexStreamed;
    if call.asks_usage && (target.endpoint.usage.is_refused() || !is_passed_back) {
        edits.push(Edit::remove(STREAM_OPTIONS));
        call.asks_usage = false;
    }
    if !edits.is_empty() {
        let edited = splice(&call.body, &edits);
        call.body = edited.map_err(|error| ErrorResponse::bad(error.to_string()))?;
    }
    Ok(())
}

/// The request while its response is awaited.
fn sent(
    worker: &Arc<Worker>,
    routed: Routed,
    target: Target,
    mut summary: RequestSummary,
    arrival: &Arrival,
) -> SentRequest {
    let Routed { call, permit, profile, decided, trace, policy, .. } = routed;
    let Target { step, mut prefill, endpoint, destinations, .. } = target;
    summary.trace = kept(trace);
    // Until there is a response.
    summary.status = CLIENT_CLOSED_REQUEST;
    let snapshot = worker.gateway().snapshot();
    let entry = step.pod.and_then(|pod| snapshot.entry(pod));
    summary.pod = entry.map(|entry| (entry.pod.id(), entry.pod.facts().name.clone()));
    let name = step.name.clone();
    let computed_after = step.computed_after;
    let account = ResponseAccount::sent(OpenResponse {
        step,
        prefill: prefill.as_mut().and_then(|prefill| prefill.reservation.take()),
        endpoint: Some(Arc::clone(&endpoint)),
        permit,
        worker: Arc::clone(worker),
        summary,
        arrived: arrival.at,
        request: policy.fingerprint,
    });
    SentRequest {
        worker: Arc::clone(worker),
        account,
        trial: Trial::begin(&endpoint),
        destinations,
        profile,
        context: decided.context,
        step: name,
        prefill,
        bytes: call.body.len(),
        asks_usage: call.asks_usage,
        computed_after,
        request: policy.fingerprint,
        id: arrival.id.clone(),
        api: Api::at(call.path.path()),
    }
}
