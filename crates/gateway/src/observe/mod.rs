//! Observability: metrics, traces and traffic recordings of finished requests.

pub mod metrics;
pub mod request_trace;
pub mod summary;
pub mod telemetry;
pub mod traffic_recorder;
