//! The HTTP server: OpenAI and Anthropic interfaces in front of a fleet of engines.
//!
//! Clients are answered by a few threads, each with an event loop, connections to pods and a desk of its
//! own ([`serve`]); a request stays on its thread from its first byte to its last, and waits for no other
//! thread. What they share is in [`Gateway`]: pods, profiles, the index, the waiting room. Everything
//! that is not a request (events, probes, the admin plane, tokenization of long prompts) runs elsewhere. A watchdog
//! notices if any of these threads is stuck.
#![forbid(unsafe_code)]

pub mod admin;
mod batches;
mod block_size;
mod breakers;
mod checkpoint;
mod client;
pub mod discovery;
mod event_alerts;
mod event_source_probe;
#[cfg(debug_assertions)]
mod fault;
mod fleet;
pub mod fuzzing;
mod http_conn;
mod low_priority_pool;
pub mod metrics;
mod multipart;
mod pod_lifecycle;
mod pod_model;
mod prefix_locks;
mod probe;
mod quota;
mod reload;
mod request_trace;
mod routing;
mod routing_history;
mod scrape;
mod serve;
mod state;
mod summary;
mod supervise;
mod telemetry;
mod traffic_recorder;
mod usage;
mod wait_queue;
mod watchdog;
mod worker;

pub use batches::{BatchesError, PLANNED, serve_batches};
pub use fleet::{FleetSnapshot, PodEntry};
pub use request_trace::{CallTrace, RequestTrace, TraceContext};
pub use routing::{Routing, RoutingError};
pub use serve::{RunningServer, ServeError, serve};
pub use state::{ApplyError, Gateway, Readiness};
pub use summary::{Api, Computed, RequestEnd, RequestSummary, Speculative, SummaryObserver, Usage};
pub use traffic_recorder::TrafficStream;
pub use watchdog::shutdown::told_to_end;
