//! The server: how it starts, accepts connections, routes requests, drains and shuts down.

pub mod export;
mod front;
#[cfg(feature = "grpc")]
mod grpc;
pub mod metrics_page;
pub(crate) mod router;
pub mod server;

pub use front::Front;
