//! `wornpath serve` in front of served engines: both are the real binary, as a user runs it.
#![allow(clippy::unwrap_used, reason = "a panic is how a test says no")]
#![allow(clippy::disallowed_methods, reason = "processes live in real time")]

mod answers;
mod block_size;
mod churn;
mod clients;
mod described;
mod edges;
mod faults;
mod flood;
mod full_caches;
mod gateway;
mod keys;
mod kv_load;
mod pairs;
#[cfg(feature = "grpc")]
#[path = "../../../events/tests/peer/mod.rs"]
#[allow(dead_code, reason = "shared with the tests of transports, which use the rest")]
mod peer;
mod plans;
mod predictions;
mod promises;
mod queue;
mod reach;
mod recorder;
mod recording;
mod reloads;
#[cfg(feature = "grpc")]
mod reports;
#[path = "../engine/served.rs"]
#[allow(dead_code, reason = "shared with the tests of engines, which use the rest")]
mod served;
mod siege;
mod sockets;
#[cfg(debug_assertions)]
mod stuck;
mod timeouts;
mod tls;
mod tls_commands;
mod traces;
mod unheard;
