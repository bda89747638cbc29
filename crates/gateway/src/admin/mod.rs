//! The admin plane: what operators can see and change while the router runs.
//!
//! A listener of its own, on loopback unless there is a token ([`AdminAccess`]). Everything that can be asked is one
//! line of a table ([`routes`]), from which requests are served and the OpenAPI description is written, so
//! that neither can forget the other.

mod access;
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

use std::sync::Arc;

pub use access::{AdminAccess, AdminAccessError};
pub use openapi::description;
pub use recent::RecentDecisions;
pub use serve::serve;
pub use start::{AdminContext, Setup, StartError, start, start_with};
pub(crate) use table::decoded;

use crate::reload::RunningConfig;

/// What the admin plane works with.
pub struct Admin {
    running: Arc<RunningConfig>,
    recent: Arc<RecentDecisions>,
    access: AdminAccess,
    logging: Box<dyn Logging>,
    viewers: live::LiveViewers,
}

/// Changes what is logged.
pub trait Logging: Send + Sync {
    /// The level in force.
    fn level(&self) -> String;

    /// Another level: `error`, `warn`, `info`, `debug` or `trace`.
    ///
    /// # Errors
    /// If it is none.
    fn set_level(&self, level: &str) -> Result<(), String>;
}

impl Admin {
    /// An admin plane for what runs.
    #[must_use]
    pub fn new(
        running: Arc<RunningConfig>,
        recent: Arc<RecentDecisions>,
        access: AdminAccess,
        logging: Box<dyn Logging>,
    ) -> Self {
        Self { running, recent, access, logging, viewers: live::LiveViewers::default() }
    }
}
