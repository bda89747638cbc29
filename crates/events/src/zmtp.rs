//! The subset of ZeroMQ's wire protocol that cache events need: ZMTP 3.0 over TCP without
//! encryption, PUB and SUB for the stream, DEALER and ROUTER for replays.
//!
//! Why not a library: those there are bound a frame at most, not a message, and none pauses a peer
//! that floods; ARCHITECTURE.md has what was measured. What is left of ZeroMQ is a greeting, a
//! handshake and a length before each frame.
//!
//! A [`ZmtpConnection`] is one peer; its owner reconnects, with backoff. A ROUTER is a
//! [`ZmtpListener`] and one connection per peer, so there are no identities.
//!
//! ```
//! # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
//! use wornpath_events::zmtp::{SocketKind, ZmtpConnection, ZmtpPublisher};
//!
//! let publisher = ZmtpPublisher::bind("127.0.0.1:0").await?;
//! let mut subscriber = ZmtpConnection::connect(publisher.address(), SocketKind::Sub).await?;
//! subscriber.subscribe(b"kv").await?;
//! publisher.subscribed(1).await;
//! publisher.send(&["kv@pod", "payload"]);
//! assert_eq!(subscriber.receive().await?, ["kv@pod", "payload"]);
//! # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
//! ```

mod connection;
mod error;
mod frame;
mod handshake;
mod listener;
mod publisher;

pub use connection::ZmtpConnection;
pub(crate) use connection::with_timeout;
pub use error::ZmtpError;
pub use handshake::SocketKind;
pub use listener::ZmtpListener;
pub use publisher::ZmtpPublisher;
