//! The gateway through its public interface: most of it without a running server.
#![allow(clippy::unwrap_used, reason = "a panic is how a test says no")]

mod engine_priority;
mod isolation;
mod numbers;
mod ops;
mod prompts;
mod proto;
mod served;
