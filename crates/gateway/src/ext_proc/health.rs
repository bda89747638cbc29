//! gRPC's health checks.

use super::health_proto::health_check_response::ServingStatus;
use super::health_proto::{HealthCheckRequest, HealthCheckResponse};
use crate::proxy::gateway::{Gateway, Readiness};
use std::sync::Arc;
use tonic::codegen::BoxFuture;
use tonic::server::UnaryService;
use tonic::{Request, Response, Status};

/// The service that data planes ask for endpoints.
const PICKER: &str = "envoy.service.ext_proc.v3.ExternalProcessor";

pub(super) const CHECK: &str = "/grpc.health.v1.Health/Check";

/// Answers for the whole process, or for one of its services.
pub(super) struct HealthService(pub(super) Arc<Gateway>);

impl UnaryService<HealthCheckRequest> for HealthService {
    type Response = HealthCheckResponse;
    type Future = BoxFuture<Response<HealthCheckResponse>, Status>;

    fn call(&mut self, request: Request<HealthCheckRequest>) -> Self::Future {
        let status = status(&self.0, &request.into_inner().service);
        Box::pin(async move { Ok(Response::new(HealthCheckResponse { status: status?.into() })) })
    }
}

fn status(gateway: &Gateway, service: &str) -> Result<ServingStatus, Status> {
    let is_alive = gateway.threads().why_unhealthy().is_none();
    let is_serving = match service {
        "liveness" => is_alive,
        "" | "readiness" | PICKER => is_alive && gateway.readiness() == Readiness::Ready,
        other => return Err(Status::not_found(format!("unknown service `{other}`"))),
    };
    Ok(if is_serving { ServingStatus::Serving } else { ServingStatus::NotServing })
}
