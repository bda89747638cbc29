//! Sends the requests of a batch through the pipeline that serves online requests.

use crate::batches::Batches;
use hyper::header::{CONTENT_TYPE, HeaderMap, HeaderValue};
use hyper::http::uri::PathAndQuery;
use hyper::{Method, Response};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU32};
use wornpath_execution::{Edit, StepCall, retry_after, splice};
use wornpath_gateway::proxy::handle::{BatchRequest, send_planned};
use wornpath_gateway::reply::ClientReply;
use wornpath_index::PodId;
use wornpath_jobs::{
    AnswerBudget, EngineHealth, LineDispatch, LineReply, Outgoing, Prefilled, ReplyError,
    read_whole, streaming, whole,
};
use wornpath_planner::PodLoad;
use wornpath_routing::{FleetPod, Health, Name, Role};

/// The pods that a batch was planned for, by number.
pub(crate) struct PlannedPods {
    pub(crate) batches: Arc<Batches>,
    pub(crate) owner: Option<Name>,
    pub(crate) pods: Vec<PlannedPod>,
}

/// One pod of a plan.
pub(crate) struct PlannedPod {
    id: PodId,
    /// Batch requests in flight on it, over all batches.
    offline: Arc<AtomicU32>,
}

impl PlannedPod {
    pub(crate) fn new(batches: &Batches, id: PodId) -> Self {
        Self { id, offline: batches.offline_on(id) }
    }
}

/// Whether it has the role that batch requests need.
pub(crate) fn is_serving(pod: &FleetPod) -> bool {
    pod.facts().roles.contains(&Role::named(Role::SERVE))
}

/// Whether requests can be planned for it now.
pub(crate) fn is_ready(pod: &FleetPod) -> bool {
    pod.state().health() == Health::Up && is_serving(pod)
}

/// Counts a batch request on its pod from the routing decision until it is dropped.
struct OnPod<'a> {
    offline: &'a AtomicU32,
    counts: AtomicBool,
}

impl OnPod<'_> {
    fn count(&self) {
        if !self.counts.swap(true, Relaxed) {
            self.offline.fetch_add(1, Relaxed);
        }
    }
}

impl PlannedPods {
    pub(crate) fn ids(&self) -> Vec<PodId> {
        self.pods.iter().map(|pod| pod.id).collect()
    }

    /// Their display names.
    pub(crate) fn names(&self) -> Vec<String> {
        let snapshot = self.batches.worker.gateway().snapshot();
        let name = |id: &PodId| {
            snapshot.entry(*id).map_or_else(String::new, |entry| entry.pod.facts().name.to_string())
        };
        self.pods.iter().map(|pod| name(&pod.id)).collect()
    }
}

impl Drop for OnPod<'_> {
    fn drop(&mut self) {
        if *self.counts.get_mut() {
            self.offline.fetch_sub(1, Relaxed);
        }
    }
}

impl LineDispatch for PlannedPods {
    async fn send(
        &self,
        pod: usize,
        request: Outgoing,
        prefilled: Prefilled,
    ) -> Result<LineReply, ReplyError> {
        let streamed = streaming(request.interface, &request.body).filter(|_| request.is_awaited);
        let mut edits = Vec::from(streamed.unwrap_or_else(whole));
        edits.extend(self.batches.rules.priority.map(|it| Edit::set("priority", &it.into())));
        let body = splice(&request.body, &edits);
        let body = body.map_err(|error| ReplyError::Broken(error.to_string()))?;
        let pod = &self.pods[pod];
        let on_pod = OnPod { offline: &pod.offline, counts: AtomicBool::new(false) };
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        let path = PathAndQuery::from_static(request.interface.path());
        let call = StepCall { method: Method::POST, path, headers, body, asks_usage: false };
        let worker = &self.batches.worker;
        let profile = self.batches.profile.now(worker.gateway());
        let planned = BatchRequest {
            pod: pod.id,
            profile: &profile,
            tenant: self.owner.as_ref(),
            decided: &|| on_pod.count(),
        };
        let response = send_planned(worker, call, planned).await;
        prefilled();
        reply(response, &self.batches.answers).await
    }

    async fn health(&self, pod: usize) -> Option<EngineHealth> {
        let pod = &self.pods[pod];
        let gateway = self.batches.worker.gateway();
        let snapshot = gateway.snapshot();
        let entry = snapshot.entry(pod.id)?;
        let pod_state = entry.pod.state();
        if pod_state.health() != Health::Up {
            return None;
        }
        let online = pod_state.requests().saturating_sub(pod.offline.load(Relaxed)) as usize;
        let model = entry.pod.facts().models.first().cloned();
        let ceiling = self.batches.ceiling(model, gateway.now(), pod.id, online);
        // The running batches share the limit.
        let ceiling = (ceiling / self.batches.running_count().max(1)).max(1);
        let load = PodLoad {
            running: pod_state.requests() as usize,
            waiting: pod_state.waiting() as usize,
            kv_usage: pod_state.kv_usage(),
        };
        Some(EngineHealth { pod_state: Some(load), ceiling })
    }
}

/// Reads a response to its end.
async fn reply(
    response: Response<ClientReply>,
    answers: &AnswerBudget,
) -> Result<LineReply, ReplyError> {
    let (head, body) = response.into_parts();
    let header = |name: &str| {
        head.headers.get(name).and_then(|value| value.to_str().ok()).map(str::to_owned)
    };
    let (body, held) = read_whole(&head.headers, body, answers).await?;
    Ok(LineReply {
        status: head.status.as_u16(),
        request_id: header("x-request-id"),
        body,
        retry_after: retry_after(&head.headers),
        held,
    })
}
