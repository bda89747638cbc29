//! The integration tests of the crate, in one binary; `flood` measures the process's memory and has
//! its own.
// The futures of the Kafka client over TLS are nested deeper than the default of 128.
#![recursion_limit = "256"]
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]
#![allow(clippy::print_stdout, reason = "seeds and times are printed")]

#[cfg(any(feature = "redis", feature = "nats", feature = "kafka"))]
mod broker_tls;
#[cfg(any(feature = "redis", feature = "nats", feature = "kafka"))]
mod brokers;
mod chaos;
mod detach;
mod dialects;
mod engine;
#[path = "../fixture/mod.rs"]
mod fixture;
mod golden;
#[cfg(feature = "grpc")]
mod grpc;
mod hostile;
mod listening;
mod orders;
#[path = "../peer/mod.rs"]
mod peer;
#[cfg(feature = "grpc")]
mod proto;
mod push;
mod push_router;
mod restart;
mod roundtrip;
#[cfg(any(feature = "redis", feature = "nats", feature = "kafka"))]
#[path = "../server/mod.rs"]
mod server;
mod sidecar;
#[path = "../stores/mod.rs"]
mod stores;
mod streams;
mod wait;
mod zeromq;
mod zmtp;
