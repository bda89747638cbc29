//! What the admin plane works with.

use crate::access::AdminAccess;
use crate::live::LiveViewers;
use crate::recent::RecentDecisions;
use std::sync::Arc;
use wornpath_gateway::Gateway;
use wornpath_gateway::fleet::reload::RunningConfig;

/// What the admin plane works with.
pub struct Admin {
    pub(crate) gateway: Arc<Gateway>,
    pub(crate) running: Arc<RunningConfig>,
    pub(crate) recent: Arc<RecentDecisions>,
    pub(crate) access: AdminAccess,
    pub(crate) logging: Box<dyn Logging>,
    pub(crate) viewers: LiveViewers,
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
        gateway: Arc<Gateway>,
        running: Arc<RunningConfig>,
        recent: Arc<RecentDecisions>,
        access: AdminAccess,
        logging: Box<dyn Logging>,
    ) -> Self {
        Self { gateway, running, recent, access, logging, viewers: LiveViewers::default() }
    }
}
