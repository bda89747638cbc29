//! `wornpath serve` in front of simulated engines: both are the real binary, as a user runs it.
#![allow(clippy::unwrap_used, reason = "a panic is how a test says no")]
#![allow(clippy::disallowed_methods, reason = "processes live in real time")]

mod access_log;
mod answers;
mod block_size;
mod chaos;
mod churn;
mod clients;
mod collector;
mod continuation;
mod edges;
mod egress_policy;
mod engine_headers;
mod event_alerts;
mod exchange;
mod faults;
mod flood;
mod from_zero;
mod full_caches;
mod hash_sync;
mod history;
mod hub;
#[cfg(feature = "kubernetes")]
mod kubernetes;
mod kv_load;
mod long_prompts;
mod metrics_formats;
mod models;
mod openapi;
#[cfg(all(feature = "grpc", feature = "otlp"))]
mod otlp_peer;
mod overload;
mod pairs;
#[cfg(feature = "grpc")]
#[path = "../../../events/tests/peer/mod.rs"]
#[allow(dead_code, reason = "shared with the tests of transports, which use the rest")]
mod peer;
mod plans;
mod pod_keys;
mod poison;
mod predictions;
mod promises;
mod proxies;
mod queue;
mod recording;
mod refusals;
mod reloads;
#[cfg(feature = "grpc")]
mod reports;
mod rules;
mod sockets;
mod stalled_bodies;
mod stream_usage;
#[cfg(debug_assertions)]
mod stuck;
#[path = "../support/mod.rs"]
mod support;
mod timeouts;
mod tls;
mod tls_commands;
mod traces;
mod zero_configuration;
