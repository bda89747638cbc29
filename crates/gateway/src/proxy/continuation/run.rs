//! Decides and calls the pod that continues a stream: the stages of any request, from parse to
//! execute, with the body that continues it.

use super::RequestFacts;
use super::reason::NotContinued;
use crate::dialect::Api;
use crate::fleet::snapshot::{FleetSnapshot, PodEntry};
use crate::observe::summary::RequestSummary;
use crate::proxy::decide::{DecisionNotes, decide};
use crate::proxy::headers;
use crate::proxy::low_priority_pool::{BodyWork, Origin};
use crate::proxy::parse::read_body;
use crate::proxy::prepare::prepare;
use crate::proxy::route::Routed;
use crate::proxy::run_plan::{SentRequest, run_plan};
use crate::proxy::worker::Worker;
use hyper::http::uri::PathAndQuery;
use std::sync::Arc;
use std::time::Duration;
use wornpath_config::EngineKind;
use wornpath_execution::PlanResponse;
use wornpath_index::PodId;
use wornpath_routing::AllowedPods;

/// Makers of engines that go on with the last message if they are told to, as their model cards
/// name them. Another one might ignore the field and begin a new message.
const CONTINUES_MESSAGES: [&str; 3] = ["vllm", "sglang", "wornpath"];

/// A request that continues a stream.
pub(super) struct Continuing {
    pub(super) facts: RequestFacts,
    pub(super) sent: SentRequest,
    /// The pods that have lost the stream.
    pub(super) lost: Vec<PodId>,
    /// Whether the engine must know how to go on with what the body ends with.
    pub(super) needs_able: bool,
    /// Where it is sent, if not to the path of the client.
    pub(super) path: Option<&'static str>,
}

/// Sends a request to another pod, up to the first byte of its answer.
pub(super) async fn run(
    worker: Arc<Worker>,
    continuing: Continuing,
) -> Result<PlanResponse, NotContinued> {
    let gateway = &worker.gateway;
    let settings = gateway.settings();
    let snapshot = gateway.snapshot();
    let allowed = others(&snapshot, &continuing)?;
    let Continuing { facts, sent, path, .. } = continuing;
    let SentRequest { mut call, profile, mut policy } = sent;
    let mut api = facts.api;
    if let Some(path) = path {
        call.path = PathAndQuery::from_static(path);
        api = Api::at(path);
    }
    let tenant = facts.tenant.as_ref();
    let tenant = settings.tenants.iter().find(|known| Some(&known.name) == tenant);
    let origin = tenant.map_or(Origin::Address(facts.address), Origin::Tenant);
    let work = BodyWork::new(call.body.len(), origin, &settings.limits);
    let no_pod = |_| NotContinued::NoPod;
    let body = read_body(&worker, api, &call, &work).await.map_err(no_pod)?;
    let mut request = body.request;
    request.model = snapshot.model(&body.model);
    request.reading.engine = snapshot.engine_rules(&request.model.base);
    request.arrival = gateway.now();
    request.wall = facts.wall;
    request.headers = headers::for_routing(&call.headers);
    request.tenant = facts.tenant;
    request.weight = facts.weight;
    request.priority = facts.priority;
    request.fairness = facts.fairness;
    request.allowed = Some(AllowedPods::These(allowed));
    let mut trace = None;
    let context = prepare(&worker, &profile, request, &work, &mut trace).await.map_err(no_pod)?;
    let mut waited = Duration::ZERO;
    let notes = DecisionNotes { trace: &mut trace, waited: &mut waited };
    let decided = decide(&worker, &profile, context, work.length, notes).await.map_err(no_pod)?;
    let passed = gateway.now().since(facts.arrived);
    policy.timeouts.total = policy.timeouts.total.saturating_sub(passed);
    let routed = Routed { call, permit: None, reservation: None, profile, decided, trace, policy };
    let mut summary = RequestSummary::new("", api);
    let run = run_plan(&worker, routed, &mut summary).await.map_err(no_pod)?;
    Ok(run.response)
}

/// The pods that may continue it.
fn others(snapshot: &FleetSnapshot, continuing: &Continuing) -> Result<Arc<[PodId]>, NotContinued> {
    let Continuing { lost, needs_able, .. } = continuing;
    let is_other = |entry: &&PodEntry| !lost.contains(&entry.pod.id());
    let others: Vec<_> = snapshot.entries().iter().filter(is_other).collect();
    if others.is_empty() {
        return Err(NotContinued::NoPod);
    }
    let is_able = |entry: &&PodEntry| !needs_able || continues_messages(entry);
    let able: Arc<[PodId]> =
        others.into_iter().filter(is_able).map(|entry| entry.pod.id()).collect();
    if able.is_empty() { Err(NotContinued::Engine) } else { Ok(able) }
}

fn continues_messages(entry: &PodEntry) -> bool {
    let is_known =
        |maker: &str| CONTINUES_MESSAGES.iter().any(|known| known.eq_ignore_ascii_case(maker));
    let is_configured = matches!(entry.config.engine, EngineKind::Vllm | EngineKind::Sglang);
    is_configured || entry.cards.iter().any(|card| card["owned_by"].as_str().is_some_and(is_known))
}
