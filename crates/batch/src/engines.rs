//! The gateway's pods as a batch sees them: through the pipeline that serves clients.

use crate::batches::Batches;
use bytes::Bytes;
use hyper::header::{CONTENT_TYPE, HeaderMap, HeaderValue, RETRY_AFTER};
use hyper::http::uri::PathAndQuery;
use hyper::{Method, Response};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU32};
use std::time::Duration;
use wornpath_execution::{Edit, StepCall, splice};
use wornpath_gateway::proxy::batch_request::{BatchRequest, send_planned};
use wornpath_gateway::reply::ClientReply as Answered;
use wornpath_index::PodId;
use wornpath_jobs::{
    EngineHealth as Standing, LineDispatch, LineReply, Outgoing, Prefilled, ReplyError, read_whole,
    streaming, whole,
};
use wornpath_planner::PodLoad;
use wornpath_routing::{FleetPod, Health, Name, Role};

/// Pods that a batch was planned for, by number.
pub(crate) struct PlannedPods {
    pub(crate) batches: Arc<Batches>,
    pub(crate) owner: Option<Name>,
    pub(crate) pods: Vec<PlannedPod>,
}

/// One of them.
pub(crate) struct PlannedPod {
    id: PodId,
    /// Offline requests on it, of all batches.
    offline: Arc<AtomicU32>,
}

impl PlannedPod {
    pub(crate) fn new(batches: &Batches, id: PodId) -> Self {
        Self { id, offline: batches.offline_on(id) }
    }
}

/// Whether it can play the part that planned requests need.
pub(crate) fn is_serving(pod: &FleetPod) -> bool {
    pod.facts().roles.contains(&Role::named(Role::SERVE))
}

/// Whether requests can be planned for it now.
pub(crate) fn is_ready(pod: &FleetPod) -> bool {
    pod.vitals().health() == Health::Up && is_serving(pod)
}

/// An offline request, which counts on its pod once it has been decided, and no more when it goes.
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

    /// What people call them.
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
        let call = StepCall { method: Method::POST, path, headers, body };
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
        reply(response).await
    }

    async fn health(&self, pod: usize) -> Option<Standing> {
        let pod = &self.pods[pod];
        let gateway = self.batches.worker.gateway();
        let snapshot = gateway.snapshot();
        let entry = snapshot.entry(pod.id)?;
        let vitals = entry.pod.vitals();
        if vitals.health() != Health::Up {
            return None;
        }
        let online = vitals.requests().saturating_sub(pod.offline.load(Relaxed)) as usize;
        let model = entry.pod.facts().models.first().cloned();
        let ceiling = self.batches.ceiling(model, (gateway.now(), pod.id, online));
        // What there is room for is shared by the batches that run.
        let ceiling = (ceiling / self.batches.turns_taken().max(1)).max(1);
        let seen = PodLoad {
            running: vitals.requests() as usize,
            waiting: vitals.waiting() as usize,
            kv_usage: vitals.kv_usage(),
        };
        Some(Standing { vitals: Some(seen), ceiling })
    }
}

/// An answer, read to its end.
async fn reply(response: Response<Answered>) -> Result<LineReply, ReplyError> {
    let (head, body) = response.into_parts();
    let header = |name: &str| {
        head.headers.get(name).and_then(|value| value.to_str().ok()).map(str::to_owned)
    };
    let retry_after = header(RETRY_AFTER.as_str()).and_then(|after| after.parse().ok());
    let body: Bytes = read_whole(&head.headers, body).await?;
    Ok(LineReply {
        status: head.status.as_u16(),
        request_id: header("x-request-id"),
        body,
        retry_after: retry_after.map(Duration::from_secs),
    })
}
