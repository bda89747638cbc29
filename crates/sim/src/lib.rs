//! Simulated inference engines, without GPUs and without model weights.
//!
//! [`SimEngine`] models a batching inference engine after vLLM V1: continuous batching, chunked
//! prefill, a block cache with reference counts, and step times from an [`EngineProfile`]. It is a
//! state machine in virtual time: the caller passes the time and gets what has happened since, so
//! one thread can replay hours of traffic over hundreds of engines in seconds, and a server can run
//! the same model against the real clock.
//!
//! ```
//! use std::time::Duration;
//! use wornpath_sim::{
//!     EngineProfile, EngineSettings, RequestId, SimEngine, SimOutcome, SimRequest,
//! };
//!
//! let profile = EngineProfile::built_in("8b-h200")?;
//! let mut engine = SimEngine::new(&profile, &EngineSettings::default());
//! engine.submit(Duration::ZERO, SimRequest::anonymous(RequestId(1), 8_236, 1))?;
//! let mut outputs = Vec::new();
//! while let Some(time) = engine.next_event_time() {
//!     engine.advance(time, &mut outputs);
//! }
//! let last = outputs.last().expect("a request ends");
//! assert_eq!(last.outcome, SimOutcome::Finished { request: RequestId(1) });
//! assert!((170..180).contains(&last.at.as_millis()));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! [`serve`] is that server: an engine behind real ports, for tests of gateways, event sources and
//! clients. [`replay`] runs traces through the routing code and a fleet of simulated engines,
//! [`offline`] runs planned queues, and [`sizing`] searches for the smallest fleet that meets latency
//! objectives. [`vllm_hash`] computes block hashes as vLLM does.
//!
//! The model leaves out speculative decoding, pipeline bubbles, CPU scheduling time that grows
//! with the batch, sliding windows, images, and sharing of a block inside the step that computes it
//! (vLLM allows that; here a block can be reused from the next step on).
#![forbid(unsafe_code)]

mod cost;
mod engine;
pub mod offline;
mod pool;
mod profile;
pub mod replay;
mod request;
pub mod serve;
pub mod sizing;
pub mod vllm_hash;

pub use cost::{Cascade, StepCost, StepLoad};
pub use engine::{EngineAdmission, EngineLoad, EngineSettings, KvReads, SimEngine, TokenReports};
pub use profile::{EngineProfile, EngineProfileError};
pub use request::{Output, PromptSource, RequestId, SimOutcome, SimRefused, SimRequest};
