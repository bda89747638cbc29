//! The gRPC services of one connection from a data plane.

use super::answers::Answers;
use super::health::{CHECK, HealthService};
use super::proto::{ProcessingRequest, ProcessingResponse};
use super::session;
use crate::proxy::worker::Worker;
use hyper::Request;
use hyper::body::Incoming;
use std::net::IpAddr;
use std::sync::Arc;
use tonic::codegen::BoxFuture;
use tonic::server::{Grpc, StreamingService};
use tonic::{Response, Status, Streaming};
use tonic_prost::ProstCodec;

const PROCESS: &str = "/envoy.service.ext_proc.v3.ExternalProcessor/Process";

/// Streams of one connection. A data plane opens another connection for more, and that one goes to
/// the next worker.
pub(crate) const STREAMS_PER_CONNECTION: u32 = 100;

/// Answers one call of a data plane at `address`.
pub(crate) async fn answer(
    worker: Arc<Worker>,
    address: IpAddr,
    request: Request<Incoming>,
) -> hyper::Response<tonic::body::Body> {
    match request.uri().path() {
        PROCESS => {
            let codec = ProstCodec::<ProcessingResponse, ProcessingRequest>::default();
            Grpc::new(codec).streaming(ProcessService { worker, address }, request).await
        }
        CHECK => {
            let service = HealthService(Arc::clone(worker.gateway()));
            Grpc::new(ProstCodec::default()).unary(service, request).await
        }
        path => {
            let message = format!("unknown method {path}; expected {PROCESS} or {CHECK}");
            Status::unimplemented(message).into_http()
        }
    }
}

struct ProcessService {
    worker: Arc<Worker>,
    address: IpAddr,
}

impl StreamingService<ProcessingRequest> for ProcessService {
    type Response = ProcessingResponse;
    type ResponseStream = Answers;
    type Future = BoxFuture<Response<Answers>, Status>;

    fn call(&mut self, request: tonic::Request<Streaming<ProcessingRequest>>) -> Self::Future {
        let worker = Arc::clone(&self.worker);
        let address = self.address;
        let inbox = request.into_inner();
        let answers = Answers::new(move |outbox| session::process(worker, address, inbox, outbox));
        Box::pin(async move { Ok(Response::new(answers)) })
    }
}
