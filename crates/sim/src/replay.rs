//! Replay of a trace through a routing profile and a fleet of simulated engines, in virtual time:
//! hours of traffic in seconds.
//!
//! The profile, the index, the wait queue and the load accounting are those of the live server;
//! only the engines and the clock are simulated. A [`RequestRecord`] describes each request, a
//! [`Summary`] all of them.
//!
//! Limits: engines admit a request when prompt and output fit, so none is preempted; a reply is
//! cached only where the next turn of its session names its blocks ([`Trace::replies`]); the router
//! sees engines' metrics without delay, and does not see contexts grow while they decode.

mod background;
mod block_sizes;
mod fleet;
mod inferred_block_size;
mod replies;
mod router;
mod run;
mod summary;
mod trace;

pub use background::{BackgroundLoad, BackgroundResult};
pub use block_sizes::BlockSizes;
pub use fleet::ReplayFleet;
pub use inferred_block_size::InferredBlockSize;
pub use router::ProfileText;
pub use run::{
    RequestRecord, Watch, replay, replay_watched, replay_with_background, replay_with_progress,
    replay_with_reads,
};
pub use summary::{Percentiles, Summary};
pub use trace::{BadLine, Trace, TraceError, TraceStart, TraceTurn};

#[cfg(test)]
mod tests;
