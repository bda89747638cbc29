//! Traffic of hours in seconds: a trace, a routing profile and a fleet of engine models in virtual time.
//!
//! The profile, the index, the holding queue and the accounting of load are those of the live server;
//! only the engines and the clock are models. Each request's [`RequestRecord`] says what happened to it, and
//! [`Summary`] the figures of all.
//!
//! Engines admit a request when prompt and output fit, so none is preempted, and outputs are not cached,
//! as traces do not say what they were. The router sees engines' metrics without delay, and the growth
//! of contexts while they decode not at all.

mod background;
mod report;
mod router;
mod run;
mod summary;
mod trace;

pub use background::{BackgroundLoad, BackgroundResult};
pub use report::{ReplayRun, html_report};
pub use run::{ReplayFleet, RequestRecord, replay, replay_beside, replay_watched};
pub use summary::{Percentiles, Summary};
pub use trace::{BadLine, Trace, TraceError, TraceStart, TraceTurn};

#[cfg(test)]
mod tests;
