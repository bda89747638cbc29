//! The admin plane: what operators can see and change while the router runs.
//!
//! A listener of its own, on loopback unless there is a token ([`Access`]). Everything that can be asked is one
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

pub use access::{Access, AccessError};
pub use openapi::description;
pub use recent::Recent;
pub use serve::serve;
pub use start::{Around, Setup, StartError, start, start_with};
pub(crate) use table::decoded;

use crate::config::Running;

/// What the admin plane works with.
pub struct Admin {
    running: Arc<Running>,
    recent: Arc<Recent>,
    access: Access,
    logging: Box<dyn Logging>,
    viewers: live::Viewers,
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
        running: Arc<Running>,
        recent: Arc<Recent>,
        access: Access,
        logging: Box<dyn Logging>,
    ) -> Self {
        Self { running, recent, access, logging, viewers: live::Viewers::default() }
    }
}
