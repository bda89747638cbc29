//! The gRPC side of pushed events: `CacheEvents.Follow` of `proto/events.proto`.
//!
//! A stream is driven by whoever sends the answer: no task of its own, nothing that outlives the connection.
//! Reports wait for their turn in the router's queue, so that a flood holds up its sender and nobody else.

use super::access::PushAccess;
use super::message::{PushReport, PushRequestedQuery};
use super::service::PushService;
use super::{PushWaiter, items};
use crate::message::{Epoch, SourceMessage};
use crate::transport::PodName;
use futures_util::Stream;
use futures_util::stream::unfold;
use hyper::Request;
use hyper::body::Incoming;
use std::pin::Pin;
use std::sync::Arc;
use tokio::time::Instant;
use tonic::codegen::BoxFuture;
use tonic::server::{Grpc, StreamingService};
use tonic::{Response, Status, Streaming};
use tonic_prost::ProstCodec;

const PATH: &str = "/wornpath.events.v1.CacheEvents/Follow";

/// Answers one call.
pub(super) async fn answer(
    service: PushService,
    access: PushAccess,
    request: Request<Incoming>,
    most_bytes: usize,
) -> hyper::Response<tonic::body::Body> {
    if request.uri().path() != PATH {
        let message = format!("{}: found no such method, expected {PATH}", request.uri().path());
        return Status::unimplemented(message).into_http();
    }
    let codec = ProstCodec::<PushRequestedQuery, PushReport>::default();
    let mut grpc = Grpc::new(codec).max_decoding_message_size(most_bytes);
    grpc.streaming(StreamReport { service, access }, request).await
}

struct StreamReport {
    service: PushService,
    access: PushAccess,
}

type StreamQueries = Pin<Box<dyn Stream<Item = Result<PushRequestedQuery, Status>> + Send>>;

impl StreamingService<PushReport> for StreamReport {
    type Response = PushRequestedQuery;
    type ResponseStream = StreamQueries;
    type Future = BoxFuture<Response<StreamQueries>, Status>;

    fn call(&mut self, request: tonic::Request<Streaming<PushReport>>) -> Self::Future {
        let (service, access) = (self.service.clone(), self.access.clone());
        Box::pin(async move {
            let token =
                request.metadata().get("authorization").map(|value| value.as_bytes().to_vec());
            if !service.admits_somebody(&access, token.as_deref()) {
                return Err(Status::unauthenticated(
                    "expected `authorization: Bearer` and a token",
                ));
            }
            let changed = service.wanted.changed();
            let reports = request.into_inner();
            let line =
                PushStream { service, access, token, reports, changed, pod: None, is_over: false };
            let wishes: StreamQueries = Box::pin(unfold(line, |mut line| async move {
                let wish = line.next().await?;
                Some((wish, line))
            }));
            Ok(Response::new(wishes))
        })
    }
}

/// One engine's stream.
struct PushStream {
    service: PushService,
    access: PushAccess,
    token: Option<Vec<u8>>,
    reports: Streaming<PushReport>,
    changed: tokio::sync::watch::Receiver<()>,
    pod: Option<PodName>,
    is_over: bool,
}

impl PushStream {
    /// The next thing that is wished of the engine; `None` when it has said everything.
    async fn next(&mut self) -> Option<Result<PushRequestedQuery, Status>> {
        while !self.is_over {
            if self.pod.as_ref().is_some_and(|pod| self.service.wanted.take(pod)) {
                return Some(Ok(PushRequestedQuery { sync: true, outdated: None }));
            }
            tokio::select! {
                report = self.reports.message() => match report {
                    Ok(Some(report)) => match self.take(&report).await {
                        Ok(None) => {}
                        Ok(Some(epoch)) => {
                            return Some(Ok(PushRequestedQuery { sync: false, outdated: Some(epoch.0) }));
                        }
                        Err(refusal) => {
                            self.is_over = true;
                            return Some(Err(refusal));
                        }
                    },
                    Ok(None) | Err(_) => return None,
                },
                Ok(()) = self.changed.changed() => {}
            }
        }
        None
    }

    /// Takes a report in. The epoch by which it is outdated, if it is.
    async fn take(&mut self, report: &PushReport) -> Result<Option<Epoch>, Status> {
        let pod = match &self.pod {
            None => self.introduce(&report.pod)?,
            Some(pod) if **pod == *report.pod => Arc::clone(pod),
            Some(pod) => {
                let message =
                    format!("pod `{}`: this stream is about `{pod}`; open another", report.pod);
                return Err(Status::invalid_argument(message));
            }
        };
        let said: Vec<_> = std::iter::once(SourceMessage::Connected).chain(report.said()).collect();
        let outdated = self.service.lives.note(&pod, &said, Instant::now());
        let ends = || Status::unavailable("the router ends");
        let room = Arc::clone(&self.service.room).acquire_many_owned(items(&said)).await;
        let _room = Some(room.map_err(|_| ends())?);
        let sent = self.service.requests.send(PushWaiter { pod, said, _room }).await;
        sent.map(|()| outdated).map_err(|_| ends())
    }

    fn introduce(&mut self, name: &str) -> Result<PodName, Status> {
        if !self.service.guests.knows(name) {
            let message = format!("pod `{name}`: found no such pod in the fleet; add it to `pods`");
            return Err(Status::not_found(message));
        }
        if !self.service.admits(&self.access, name, self.token.as_deref()) {
            let message = format!("pod `{name}`: another token is expected for it");
            return Err(Status::permission_denied(message));
        }
        let pod: PodName = name.into();
        self.pod = Some(Arc::clone(&pod));
        Ok(pod)
    }
}

/// However a stream ends, the router knows that it did.
impl Drop for PushStream {
    fn drop(&mut self) {
        if let Some(pod) = self.pod.take() {
            // If there is no room, the pod's silence says the same a little later.
            let said = vec![SourceMessage::Disconnected];
            let _ = self.service.requests.try_send(PushWaiter { pod, said, _room: None });
        }
    }
}
