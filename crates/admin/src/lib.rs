//! The admin plane: what operators can see and change while the router runs.
//!
//! A listener of its own, on loopback unless there is a token ([`AdminAccess`]). Everything that can be asked is one
//! line of a table ([`routes`]), from which requests are served and the OpenAPI description is written, so
//! that neither can forget the other.
#![forbid(unsafe_code)]

mod access;
mod admin;
mod batches;
mod decisions;
mod live;
mod openapi;
mod page;
mod pods;
mod prefixes;
mod recent;
mod routes;
mod serve;
mod setup;
mod snapshot;
mod start;
mod table;

pub use access::{AdminAccess, AdminAccessError};
pub use admin::{Admin, Logging};
pub use openapi::description;
pub use recent::RecentDecisions;
pub use serve::serve;
pub use start::{AdminContext, Setup, StartError, start, start_with};
