//! The gateway's pods as a batch sees them: through the pipeline that serves clients.

use super::Batches;
use crate::client::{Reply as Answered, send_planned};
use bytes::Bytes;
use hyper::header::{CONTENT_TYPE, HeaderMap, HeaderValue, RETRY_AFTER};
use hyper::http::uri::PathAndQuery;
use hyper::{Method, Response};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::Duration;
use wornpath_execution::{Call, splice};
use wornpath_index::PodId;
use wornpath_jobs::{
    Engines, Health as Standing, Outgoing, Prefilled, Reply, Trouble, read_whole, streaming, whole,
};
use wornpath_planner::Vitals;
use wornpath_routing::{Health, Name};

/// Pods that a batch was planned for, by number.
pub(super) struct PlannedPods {
    pub(super) batches: Arc<Batches>,
    pub(super) owner: Option<Name>,
    /// Each with how many requests of this batch are on it.
    pub(super) pods: Vec<(PodId, AtomicU32)>,
}

impl PlannedPods {
    /// What people call them.
    pub(super) fn names(&self) -> Vec<String> {
        let roster = self.batches.worker.gateway.roster();
        let name = |id: &PodId| {
            roster.seat(*id).map_or_else(String::new, |seat| seat.pod.facts().name.to_string())
        };
        self.pods.iter().map(|(id, _)| name(id)).collect()
    }
}

/// One request less on a pod when it goes.
struct OnPod<'a>(&'a AtomicU32);

impl Drop for OnPod<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

impl Engines for PlannedPods {
    async fn send(
        &self,
        pod: usize,
        request: Outgoing,
        prefilled: Prefilled,
    ) -> Result<Reply, Trouble> {
        let streamed = streaming(request.interface, &request.body).filter(|_| request.is_awaited);
        let body = match &streamed {
            Some(edits) => splice(&request.body, edits),
            None => splice(&request.body, &whole()),
        };
        let body = body.map_err(|error| Trouble::Broken(error.to_string()))?;
        let (id, count) = &self.pods[pod];
        count.fetch_add(1, Relaxed);
        let _on_pod = OnPod(count);
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        let path = PathAndQuery::from_static(request.interface.path());
        let call = Call { method: Method::POST, path, headers, body };
        let worker = &self.batches.worker;
        let response =
            send_planned(worker, call, (*id, &self.batches.profile, self.owner.as_ref())).await;
        prefilled();
        reply(response).await
    }

    async fn health(&self, pod: usize) -> Option<Standing> {
        let (id, own) = &self.pods[pod];
        let roster = self.batches.worker.gateway.roster();
        let vitals = roster.seat(*id)?.pod.vitals();
        if vitals.health() != Health::Up {
            return None;
        }
        let own = own.load(Relaxed);
        let online = vitals.requests().saturating_sub(own) as usize;
        // For every request of a client, two fewer of ours; one stays, so that a batch never stands still.
        let window = self.batches.rules.window.get();
        let ceiling = window.saturating_sub(2 * online).max(1);
        let seen = Vitals {
            running: vitals.requests() as usize,
            waiting: vitals.waiting() as usize,
            kv_usage: vitals.kv_usage(),
        };
        Some(Standing { vitals: Some(seen), ceiling })
    }
}

/// An answer, read to its end.
async fn reply(response: Response<Answered>) -> Result<Reply, Trouble> {
    let (head, body) = response.into_parts();
    let header = |name: &str| {
        head.headers.get(name).and_then(|value| value.to_str().ok()).map(str::to_owned)
    };
    let retry_after = header(RETRY_AFTER.as_str()).and_then(|after| after.parse().ok());
    let body: Bytes = read_whole(&head.headers, body).await?;
    Ok(Reply {
        status: head.status.as_u16(),
        request_id: header("x-request-id"),
        body,
        retry_after: retry_after.map(Duration::from_secs),
    })
}
