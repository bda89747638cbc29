//! What routers of the same pods tell each other, so that they decide as one.
//!
//! An engine reports its load a second late, and of the requests that are on their way to it nothing
//! at all. A router knows the load that it sent itself; of other routers' load it would have to guess.
//! So every router tells the others what it alone knows: the load that it put on each pod, the
//! prompts that it has just sent, and how much of their limits its tenants use.
//!
//! There is no consensus and no leader. A router says only what is its own ([`Outbox`]), and only the
//! newest word about a thing counts ([`Peers`]), so updates may be lost, doubled or arrive in any
//! order, and a router alone goes on. A router that is silent for [`FORGOTTEN_AFTER`] is forgotten,
//! with all that it said.
//!
//! Limits: what two routers decide within the delay of an update, neither sees of the other.
#![forbid(unsafe_code)]

mod hello;
mod member;
mod outbox;
mod peers;
mod report;
mod sent_log;
mod update;
mod wire;

pub use hello::{Hello, HelloError, Proof, Side, is_proof, proof};
pub use member::{Expected, Member};
pub use outbox::Outbox;
pub use peers::{FORGOTTEN_AFTER, Heard, LOST_AFTER, Left, Peers, PodChange, TenantChange};
pub use report::{Origin, PodReport, RouterId, TenantReport};
pub use sent_log::{SentLog, Told};
pub use update::{Scope, SentBlocks, Update};
pub use wire::{DecodeError, MAX_UPDATE};
