//! One request from its head to the first byte of its answer: the stages in their order.

use crate::dialect::Api;
use crate::observe::request_trace::kept;
use crate::observe::summary::{RequestEnd, RequestSummary};
use crate::proxy::decide::decide;
use crate::proxy::error_response::ErrorResponse;
use crate::proxy::execute::Dispatcher;
use crate::proxy::ingress::{self, Ingress};
use crate::proxy::multi_step::{self, StartedPlan};
use crate::proxy::parse::read_body;
use crate::proxy::prepare::prepare;
use crate::proxy::quota::QuotaPermit;
use crate::proxy::response::answer;
use crate::proxy::tenancy::{renamed, salted, turn};
use crate::proxy::unix_time;
use crate::proxy::worker::Worker;
use crate::reply::ClientReply;
use hyper::body::Incoming;
use hyper::header::HeaderValue;
use hyper::{Request, Response};
use std::sync::Arc;
use wornpath_execution::{CallOptions, PlanResponse, execute};
use wornpath_index::Moment;

/// What an engine answers, or why none does.
pub(crate) async fn relayed(
    worker: &Arc<Worker>,
    request: Request<Incoming>,
    id: &HeaderValue,
) -> Response<ClientReply> {
    let arrived = worker.gateway.now();
    let api = Api::at(request.uri().path());
    let shape = Api::of_errors_at(request.uri().path());
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
        self.record.get_or_insert_with(|| RequestSummary::new("", Api::OTHER))
    }

    /// Its answer has begun, and tells of its end.
    fn answered(mut self) -> RequestSummary {
        self.record.take().unwrap_or_else(|| RequestSummary::new("", Api::OTHER))
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
    let mut seen = gateway.sampler.sample(&settings, &call.headers, arrived, random);
    if let Some(trace) = seen.as_ref().and_then(|seen| seen.context) {
        trace.write(&mut call.headers);
    }
    let length = settings.limits.length(call.body.len());
    let mut read = read_body(worker, record.api, &call, length).await?;
    let (mut snapshot, routes) = (gateway.snapshot(), gateway.routes());
    if snapshot.may_yet_serve(&read.model) {
        snapshot = Box::pin(gateway.pods().snapshot_after_discovery(&read.model)).await;
    }
    read.request.model = snapshot.model(&read.model);
    read.request.arrival = arrived;
    read.request.wall = unix_time();
    read.request.headers = shown;
    if let Some(tenant) = tenant {
        read.request.priority = tenant.priority;
        read.request.weight = tenant.weight;
        read.request.tenant = Some(tenant.name.clone());
    }
    renamed(&read, &mut call, &snapshot)?;
    salted(record.api, &mut read, &mut call, &settings)?;
    let (name, profile) =
        routes.profile(call.path.path(), &read.request.model.base, read.request.tenant.as_ref());
    record.profile.clone_from(name);
    // How much is said once the answer has begun.
    record.predicted_tokens = profile.looks_up().then_some(0);
    if snapshot.knows(&read.request.model.base) {
        record.model.clone_from(&read.request.model.base);
    }
    record.tenant.clone_from(&read.request.tenant);
    let is_whole = record.api.generates() && !read.request.is_streamed();
    let whole_answer = is_whole.then_some(settings.unstreamed);
    let prepared = prepare(worker, profile, (read, length), &mut seen).await;
    if prepared.is_err() {
        record.trace = kept(seen.take());
    }
    let context = prepared?;
    record.traffic = gateway.recorder().prompt_shape(profile, &context, arrived);
    let decided = decide(worker, profile, (context, length), &mut seen).await;
    if decided.is_err() {
        record.trace = kept(seen.take());
    }
    let (context, plan, insert) = decided?;
    record.decided = gateway.now().saturating_sub(arrived);
    let (budget, timeouts) = (&gateway.budget, settings.timeouts);
    let kit = CallOptions { budget, timeouts, whole_answer, worker: worker.number };
    if plan.steps.len() == 1 {
        let (bytes, snapshot, insert) = (call.body.len(), gateway.snapshot(), &insert);
        let (handover, record) = (None, Some(record));
        let mut dispatcher = Dispatcher {
            worker,
            profile,
            context,
            bytes,
            seen,
            snapshot,
            insert,
            handover,
            record,
        };
        dispatcher.goes_to(&plan);
        let carried =
            worker.commit_after(insert, execute(plan, &call, &kit, &mut dispatcher)).await;
        if carried.is_err() {
            dispatcher.goes_nowhere();
        }
        return Ok((carried?, turn));
    }
    worker.commit(&insert);
    let begun = StartedPlan { plan, call, context, seen, turn, whole_answer };
    let (carried, seen, turn) = Box::pin(multi_step::carry(worker, profile, begun)).await?;
    record.trace = kept(seen);
    Ok((carried?, turn))
}
