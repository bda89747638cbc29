//! The endpoint picker behind a real Envoy, in front of simulated engines.
#![cfg(feature = "grpc")]
#![allow(clippy::unwrap_used, reason = "a panic is how a test says no")]
#![allow(clippy::disallowed_methods, reason = "processes live in real time")]

mod bodies;
mod churn;
mod envoy;
mod example;
mod kubernetes_example;
mod picks;
mod replicas;
#[path = "../support/mod.rs"]
mod support;
mod transport;
#[cfg(feature = "kubernetes")]
#[path = "../commands/packaging/yaml.rs"]
mod yaml;
