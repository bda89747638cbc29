//! The HTTP server: OpenAI and Anthropic interfaces in front of a fleet of engines.
//!
//! Clients are answered by a few threads, each with an event loop, connections to pods and a desk of its
//! own ([`serve`]); a request stays on its thread from its first byte to its last, and waits for no other
//! thread. What they share is in [`Gateway`]: pods, profiles, the index, the waiting room. Everything
//! that is not a request (events, probes, the admin plane, tokenization of long prompts) runs elsewhere. A watchdog
//! notices if any of these threads is stuck.
#![forbid(unsafe_code)]

pub mod admin;
mod aside;
mod asked;
mod batches;
mod block_size;
mod bound;
mod breakers;
mod checkpoint;
mod claims;
mod client;
pub mod config;
mod desk;
pub mod discovery;
mod door;
#[cfg(debug_assertions)]
mod fault;
mod lobby;
mod memory;
pub mod metrics;
mod multipart;
mod probe;
mod quota;
mod record;
mod roster;
mod routing;
mod scrape;
mod seating;
mod seen;
mod serve;
mod settings;
mod state;
mod tape;
mod telemetry;
mod tend;
pub mod tls;
mod unheard;
pub mod untrusted;
mod usage;
mod watchdog;

pub use batches::{BatchRules, BatchesError, Kept, PLANNED, Quota, serve_batches};
pub use record::{Api, Computed, Ended, Observe, Record, Speculative, Usage};
pub use roster::{Roster, Seat};
pub use routing::{Routing, RoutingError};
pub use seen::{CallSeen, Seen, TraceContext};
pub use serve::{ServeError, Serving, serve};
pub use settings::{
    BlockSize, CheckpointSettings, Credentials, Drain, EventSource, KeyDigest, Limits, Listeners,
    ModelSettings, NamedProfile, PodSettings, Reveal, RouteSettings, Settings, Sharing,
    TelemetrySettings, TenantSettings,
};
pub use state::{ApplyError, Gateway, Readiness};
pub use tape::Trail;
pub use watchdog::shutdown::told_to_end;
