//! The admin plane: operators inspect and change a running router over HTTP.
//!
//! It has its own listener, on loopback unless a token or client certificates protect it
//! ([`AdminAccess`]). Each endpoint is one line of a table ([`routes`]), from which requests are
//! served and the OpenAPI description is generated, so that the two cannot diverge.
#![forbid(unsafe_code)]

mod access;
mod admin;
mod batches;
mod call;
mod decisions;
mod failures;
mod finished;
mod history;
mod live;
mod openapi;
mod page;
mod pods;
mod prefixes;
mod recent;
mod routes;
mod sampling;
mod search;
mod serve;
mod setup;
mod snapshot;
mod start;
mod table;
mod viewers;

pub use access::{AdminAccess, AdminAccessError};
pub use admin::{Admin, Logging};
pub use page::DASHBOARD_STYLE;
pub use recent::RecentDecisions;
pub use routes::description;
pub use serve::serve;
pub use start::{AdminContext, Setup, StartError, start, start_with};
