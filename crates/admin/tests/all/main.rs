//! The admin plane, discovery and the metrics page over real connections.
#![allow(clippy::unwrap_used, reason = "a panic is how a test says no")]

mod admin;
mod discovery;
mod harness;
mod log;
mod metrics;
