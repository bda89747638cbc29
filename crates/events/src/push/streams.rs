//! gRPC server for pushed events: `CacheEvents.Follow` of `proto/events.proto`.
//!
//! Hyper polls a stream while it writes the response, so a stream needs no task of its own and
//! nothing of it outlives the connection. A report waits for room in the queue, so a flood slows
//! down its own sender only.

use super::access::PushAccess;
use super::intake::{Intake, SnapshotRequest};
use super::message::{Report, Wish};
use crate::message::{Epoch, SourceMessage};
use crate::transport::PodName;
use futures_util::Stream;
use futures_util::stream::unfold;
use hyper::Request;
use hyper::body::Incoming;
use std::pin::Pin;
use std::sync::Arc;
use tonic::codegen::BoxFuture;
use tonic::server::{Grpc, StreamingService};
use tonic::{Response, Status, Streaming};
use tonic_prost::ProstCodec;

const PATH: &str = "/wornpath.events.v1.CacheEvents/Follow";

/// Answers one call.
pub(super) async fn answer(
    intake: Intake,
    access: PushAccess,
    request: Request<Incoming>,
    max_message_bytes: usize,
) -> hyper::Response<tonic::body::Body> {
    if request.uri().path() != PATH {
        let message = format!("unknown method {}; expected {PATH}", request.uri().path());
        return Status::unimplemented(message).into_http();
    }
    let codec = ProstCodec::<Wish, Report>::default();
    let mut grpc = Grpc::new(codec).max_decoding_message_size(max_message_bytes);
    grpc.streaming(FollowService { intake, access }, request).await
}

struct FollowService {
    intake: Intake,
    access: PushAccess,
}

type Replies = Pin<Box<dyn Stream<Item = Result<Wish, Status>> + Send>>;

impl StreamingService<Report> for FollowService {
    type Response = Wish;
    type ResponseStream = Replies;
    type Future = BoxFuture<Response<Replies>, Status>;

    fn call(&mut self, request: tonic::Request<Streaming<Report>>) -> Self::Future {
        let intake = self.intake.clone();
        let access = self.access.clone();
        Box::pin(async move {
            let token =
                request.metadata().get("authorization").map(|value| value.as_bytes().to_vec());
            if !intake.admits_any(&access, token.as_deref()) {
                return Err(Status::unauthenticated(
                    "missing or wrong token; send `authorization: Bearer TOKEN`",
                ));
            }
            let stream = PushStream {
                snapshot_requests: intake.snapshots.changes(),
                reports: request.into_inner(),
                intake,
                access,
                token,
                pod: None,
                has_failed: false,
            };
            let replies: Replies = Box::pin(unfold(stream, |mut stream| async move {
                let reply = stream.next().await?;
                Some((reply, stream))
            }));
            Ok(Response::new(replies))
        })
    }
}

/// One engine's stream.
struct PushStream {
    intake: Intake,
    access: PushAccess,
    token: Option<Vec<u8>>,
    reports: Streaming<Report>,
    snapshot_requests: tokio::sync::watch::Receiver<()>,
    /// The pod of the first report, which all later ones must be about.
    pod: Option<PodName>,
    has_failed: bool,
}

impl PushStream {
    /// The next reply to the engine; `None` when the engine has closed its side.
    async fn next(&mut self) -> Option<Result<Wish, Status>> {
        while !self.has_failed {
            let request = self.pod.as_ref().and_then(|pod| self.intake.snapshots.take(pod));
            if let Some(request) = request {
                let tokens = request == SnapshotRequest::WithTokens;
                return Some(Ok(Wish { sync: true, outdated: None, tokens }));
            }
            tokio::select! {
                report = self.reports.message() => {
                    let Ok(Some(report)) = report else { return None };
                    match self.submit(&report).await {
                        Ok(None) => {}
                        Ok(Some(epoch)) => {
                            let outdated = Some(epoch.0);
                            return Some(Ok(Wish { sync: false, outdated, tokens: false }));
                        }
                        Err(status) => {
                            self.has_failed = true;
                            return Some(Err(status));
                        }
                    }
                }
                Ok(()) = self.snapshot_requests.changed() => {}
            }
        }
        None
    }

    /// Queues a report. Returns the epoch that outdates it, if there is one.
    async fn submit(&mut self, report: &Report) -> Result<Option<Epoch>, Status> {
        let pod = match &self.pod {
            None => self.admit(&report.pod)?,
            Some(pod) if **pod == *report.pod => Arc::clone(pod),
            Some(pod) => {
                let message =
                    format!("pod `{}`: this stream is about `{pod}`; open another", report.pod);
                return Err(Status::invalid_argument(message));
            }
        };
        let connected = std::iter::once(SourceMessage::Connected);
        let messages = connected.chain(report.message()).collect();
        let submitted = self.intake.submit(&pod, messages).await;
        submitted.map_err(|_| Status::unavailable("the router is shutting down"))
    }

    /// Checks that the caller may report on the stream's pod.
    fn admit(&mut self, name: &str) -> Result<PodName, Status> {
        if !self.intake.has_pod(name) {
            let message = format!("unknown pod `{name}`; add it to `pods`");
            return Err(Status::not_found(message));
        }
        if !self.intake.admits(&self.access, name, self.token.as_deref()) {
            let message = format!("pod `{name}`: wrong token; use the pod's own");
            return Err(Status::permission_denied(message));
        }
        let pod: PodName = name.into();
        self.pod = Some(Arc::clone(&pod));
        Ok(pod)
    }
}

/// The router learns of every end of a stream, clean or not.
impl Drop for PushStream {
    fn drop(&mut self) {
        if let Some(pod) = self.pod.take() {
            self.intake.disconnected(pod);
        }
    }
}
