//! Observability: metrics, traces and traffic recordings of finished requests.

pub(crate) mod export_counts;
pub mod metrics;
#[cfg(feature = "otlp")]
pub(crate) mod otlp;
pub mod request_trace;
pub mod summary;
pub mod traffic_recorder;
