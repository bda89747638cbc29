//! Requests of the gateway's own: planned offline, sent through the same pipeline, behind everybody else.

use crate::dialect::Api;
use crate::observe::summary::RequestSummary;
use crate::proxy::decide::decide;
use crate::proxy::error_response::ErrorResponse;
use crate::proxy::execute::Dispatcher;
use crate::proxy::headers;
use crate::proxy::parse::read_body;
use crate::proxy::prepare::prepare;
use crate::proxy::response::answer;
use crate::proxy::tenancy::{renamed, salted};
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

/// A request that a plan has put somewhere.
#[derive(Clone, Copy)]
pub struct BatchRequest<'a> {
    /// The pod that the plan names.
    pub pod: PodId,
    /// What decides.
    pub profile: &'a Arc<Profile>,
    /// Whose it is.
    pub tenant: Option<&'a Name>,
    /// Called when it has been decided, and counts among a pod's requests.
    pub decided: &'a (dyn Fn() + Sync),
}

/// Sends a request where its plan says, as long as that pod may take it.
pub async fn send_planned(
    worker: &Arc<Worker>,
    mut call: StepCall,
    planned: BatchRequest<'_>,
) -> Response<ClientReply> {
    let arrived = worker.gateway.now();
    let api = Api::at(call.path.path());
    let id = headers::request_id(&call.headers, || worker.random());
    call.headers.insert(headers::REQUEST_ID, id.clone());
    let mut record = RequestSummary {
        profile: Name::from(OFFLINE),
        tenant: planned.tenant.cloned(),
        ..RequestSummary::new(id.to_str().unwrap_or_default(), api)
    };
    let mut response = match carry(worker, call, (planned, arrived), &mut record).await {
        Ok(carried) => answer(worker, (carried, None), record, arrived),
        Err(refusal) => {
            record.status = refusal.status.as_u16();
            record.total = worker.gateway.now().saturating_sub(arrived);
            worker.gateway.ended(&record);
            refusal.response(api)
        }
    };
    response.headers_mut().insert(headers::REQUEST_ID, id);
    response
}

async fn carry(
    worker: &Arc<Worker>,
    mut call: StepCall,
    (planned, arrived): (BatchRequest<'_>, Moment),
    record: &mut RequestSummary,
) -> Result<PlanResponse, ErrorResponse> {
    let BatchRequest { pod, profile, tenant, decided } = planned;
    let (gateway, settings) = (&worker.gateway, worker.gateway.settings());
    let snapshot = gateway.snapshot();
    let length = settings.limits.length(call.body.len());
    let mut read = read_body(worker, record.api, &call, length).await?;
    read.request.model = snapshot.model(&read.model);
    read.request.arrival = arrived;
    read.request.wall = unix_time();
    read.request.priority = Priority::LOWEST;
    read.request.planned = Some(pod);
    read.request.tenant = tenant.cloned();
    renamed(&read, &mut call, &snapshot)?;
    salted(record.api, &mut read, &mut call, &settings)?;
    if snapshot.knows(&read.request.model.base) {
        record.model.clone_from(&read.request.model.base);
    }
    let mut seen = None;
    let context = prepare(worker, profile, (read, length), &mut seen).await?;
    let (context, plan, insert) = decide(worker, profile, (context, length), &mut seen).await?;
    decided();
    record.decided = gateway.now().saturating_sub(arrived);
    // What is not streamed has its first byte when all of it has been computed.
    let timeouts = Timeouts { first_byte: settings.timeouts.total, ..settings.timeouts };
    let (budget, whole_answer) = (&gateway.budget, None);
    let kit = CallOptions { budget, timeouts, whole_answer, worker: worker.number };
    let (bytes, snapshot, insert, handover) = (length.bytes, gateway.snapshot(), &insert, None);
    let record = None;
    let mut dispatcher =
        Dispatcher { worker, profile, context, bytes, seen, snapshot, insert, handover, record };
    Ok(worker.commit_after(insert, execute(plan, &call, &kit, &mut dispatcher)).await?)
}
