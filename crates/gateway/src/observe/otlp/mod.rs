//! Export by OTLP, over gRPC or as protobuf over HTTP: spans of traced requests, and metrics.
//!
//! The threads that serve clients never wait for a collector: they put traced requests into a
//! bounded queue, and what does not fit is dropped and counted. Metrics are read from the same
//! page that Prometheus gets.
//!
//! `opentelemetry-otlp` was tried. It exports only what its own SDK has aggregated: a second count
//! of every request on the thread of its client, and series of pods that never end. It also counts
//! what a collector rejects as exported.

mod collector;
#[rustfmt::skip]
#[allow(missing_docs, unreachable_pub, reason = "generated")]
mod messages;
pub(crate) mod metrics;
mod spans;
pub(crate) mod traces;

use wornpath_index::Moment;

use messages::{AnyValue, KeyValue, Resource, Scope, any_value};

/// A value of an attribute.
type Value = any_value::Value;

fn attribute(key: &str, value: impl Into<Value>) -> KeyValue {
    KeyValue { key: key.to_owned(), value: Some(AnyValue { value: Some(value.into()) }) }
}

fn resource(attributes: &[(String, String)]) -> Resource {
    let attributes = attributes.iter().map(|(key, value)| attribute(key, value.as_str()));
    Resource { attributes: attributes.collect() }
}

fn scope() -> Scope {
    Scope { name: "wornpath".to_owned(), version: env!("CARGO_PKG_VERSION").to_owned() }
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Self::String(text.to_owned())
    }
}

impl From<String> for Value {
    fn from(text: String) -> Self {
        Self::String(text)
    }
}

impl From<bool> for Value {
    fn from(flag: bool) -> Self {
        Self::Bool(flag)
    }
}

impl From<u32> for Value {
    fn from(number: u32) -> Self {
        Self::Int(number.into())
    }
}

impl From<u64> for Value {
    fn from(number: u64) -> Self {
        Self::Int(i64::try_from(number).unwrap_or(i64::MAX))
    }
}

impl From<usize> for Value {
    fn from(number: usize) -> Self {
        Self::Int(i64::try_from(number).unwrap_or(i64::MAX))
    }
}

/// The wall-clock time in nanoseconds since 1970.
#[expect(
    clippy::disallowed_methods,
    reason = "spans and metrics carry wall-clock times; no decision reads them"
)]
fn time_of_day() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |time| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))
}

/// The wall-clock time of moment zero, in nanoseconds since 1970.
fn zero(now: Moment) -> u64 {
    let since_zero = u64::try_from(now.since_zero().as_nanos()).unwrap_or(u64::MAX);
    time_of_day().saturating_sub(since_zero)
}
