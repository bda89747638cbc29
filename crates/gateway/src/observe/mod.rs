//! Observability: metrics, traces, access log and traffic recordings of finished requests.

pub mod access_log;
pub mod buckets;
pub(crate) mod export_counts;
pub mod metrics;
#[cfg(feature = "otlp")]
pub(crate) mod otlp;
pub mod request_trace;
pub mod summary;
pub mod timestamp;
pub mod traffic_recorder;
