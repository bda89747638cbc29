//! The HTTP server: OpenAI and Anthropic interfaces in front of a fleet of engines.
//!
//! A few threads answer clients, each with an event loop and connections to pods of its own
//! ([`serve`]); a request stays with its thread; only long prompts are parsed and tokenized in a
//! pool of low priority, and two threads meet only where both would send one new prefix to a pod. What the threads share is in [`Gateway`]. All else (events, probes, tokenization
//! of long prompts) runs in the background. A watchdog notices a thread that is stuck.
//!
//! Modules, lowest first; none imports one that comes later:
//!
//! - [`watchdog`]: heartbeats of threads, shutdown
//! - [`log_limit`]: how often a line is logged
//! - [`listener`], [`reply`], [`local_api`]: connections, bodies, and APIs served by this process
//! - `dialect`: client APIs, one file each
//! - [`routes`]: which profile a request is for
//! - [`observe`]: metrics, traces, recordings
//! - [`fleet`]: pods, their events and where they come from
//! - [`proxy`]: the life of a request, one file a stage
//! - `ext_proc`: the endpoint picker, a front for data planes
//! - [`http`]: the server
#![forbid(unsafe_code)]

mod dialect;
#[cfg(feature = "grpc")]
mod ext_proc;
#[cfg(debug_assertions)]
mod fault;
pub mod fleet;
pub mod fuzzing;
pub mod http;
pub mod listener;
pub mod local_api;
pub mod log_limit;
pub mod observe;
pub mod proxy;
pub mod reply;
pub mod routes;
pub mod watchdog;

pub use dialect::Api;
pub use fleet::registry::{ApplyError, PodRegistry};
pub use fleet::snapshot::{FleetSnapshot, PodEntry};
pub use http::Front;
pub use http::server::{RunningServer, ServeError, serve};
pub use observe::request_trace::{CallTrace, RequestTrace, TraceContext};
pub use observe::summary::{
    Computed, RequestEnd, RequestSummary, Speculative, SummaryObserver, TrafficStream, Usage,
};
pub use proxy::gateway::{Gateway, Readiness};
pub use routes::{RouteTable, RoutingError};
pub use watchdog::shutdown::shutdown_signal;
