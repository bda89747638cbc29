//! Offline work: what planning a file costs, and what a batch costs clients that share its pods.
#![allow(clippy::unwrap_used, reason = "a panic is how a test says no")]
#![allow(clippy::disallowed_methods, reason = "processes live in real time")]
#![allow(clippy::print_stdout, reason = "what was measured is the result of the long tests")]

mod online_priority;
mod plan;
mod real_ports;
#[path = "../support/mod.rs"]
mod support;
