//! The server: how it starts, accepts connections, routes requests, drains and shuts down.

mod accept;
pub(crate) mod dispatch;
mod exchange;
pub mod export;
mod front;
#[cfg(feature = "grpc")]
mod grpc;
pub mod metrics_page;
pub mod server;

pub use front::Front;
