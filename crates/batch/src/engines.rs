//! Sends the requests of a batch through the pipeline that serves online requests.

use crate::batches::Batches;
use crate::model::BatchModel;
use hyper::header::{CONTENT_TYPE, HeaderMap, HeaderValue};
use hyper::http::uri::PathAndQuery;
use hyper::{Method, Response};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU32};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};
use wornpath_execution::{Edit, StepCall, retry_after, splice};
use wornpath_gateway::proxy::handle::{BatchRequest, send_planned};
use wornpath_gateway::reply::ClientReply;
use wornpath_index::PodId;
use wornpath_jobs::{
    AnswerBudget, EngineHealth, LineDispatch, LineReply, Outgoing, Prefilled, ReplyError,
    read_whole, streaming, whole,
};
use wornpath_planner::PodLoad;
use wornpath_routing::{Health, Name};

/// The pods that compute a batch, by number: those that it was planned for, then those that have
/// joined since.
pub(crate) struct PlannedPods {
    pub(crate) batches: Arc<Batches>,
    pub(crate) owner: Option<Name>,
    pub(crate) model: BatchModel,
    pub(crate) pods: RwLock<Vec<Arc<PlannedPod>>>,
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
    pub(crate) fn new(
        batches: &Arc<Batches>,
        owner: Option<Name>,
        model: &BatchModel,
        ids: Vec<PodId>,
    ) -> Self {
        let pods = ids.into_iter().map(|id| Arc::new(PlannedPod::new(batches, id))).collect();
        let batches = Arc::clone(batches);
        Self { batches, owner, model: model.clone(), pods: RwLock::new(pods) }
    }

    pub(crate) fn ids(&self) -> Vec<PodId> {
        self.all().iter().map(|pod| pod.id).collect()
    }

    /// Whether any of them is still in the fleet.
    pub(crate) fn are_left(&self) -> bool {
        let snapshot = self.batches.worker.gateway().snapshot();
        self.all().iter().any(|pod| snapshot.entry(pod.id).is_some())
    }

    fn all(&self) -> RwLockReadGuard<'_, Vec<Arc<PlannedPod>>> {
        self.pods.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn get(&self, pod: usize) -> Arc<PlannedPod> {
        Arc::clone(&self.all()[pod])
    }

    /// Their display names.
    pub(crate) fn names(&self) -> Vec<String> {
        let snapshot = self.batches.worker.gateway().snapshot();
        let name = |id: &PodId| {
            snapshot.entry(*id).map_or_else(String::new, |entry| entry.pod.facts().name.to_string())
        };
        self.ids().iter().map(name).collect()
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
    fn pods(&self) -> Option<usize> {
        let snapshot = self.batches.worker.gateway().snapshot();
        let ready = self.model.ready(&snapshot);
        let known = self.ids();
        let new: Vec<_> =
            ready.iter().map(|pod| pod.id()).filter(|id| !known.contains(id)).collect();
        if new.is_empty() {
            return Some(known.len());
        }
        let mut pods = self.pods.write().unwrap_or_else(PoisonError::into_inner);
        pods.extend(new.into_iter().map(|id| Arc::new(PlannedPod::new(&self.batches, id))));
        Some(pods.len())
    }

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
        let pod = self.get(pod);
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
        let pod = self.get(pod);
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
            kv_tokens: entry.pod.facts().kv_tokens.map(|tokens| tokens as usize),
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
