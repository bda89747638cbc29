//! What the gateway reports of its requests: metrics, traces, recordings.

pub mod metrics;
pub mod request_trace;
pub mod summary;
pub mod telemetry;
pub mod traffic_recorder;
