//! The state of the admin plane.

use crate::access::AdminAccess;
use crate::history::ChartHistory;
use crate::recent::RecentDecisions;
use crate::viewers::{LiveViewers, RateWindow};
use std::sync::Arc;
use wornpath_config::EffectiveValue;
use wornpath_gateway::Gateway;
use wornpath_gateway::fleet::reload::RunningConfig;

/// The state of the admin plane.
pub struct Admin {
    pub(crate) gateway: Arc<Gateway>,
    pub(crate) running: Arc<RunningConfig>,
    pub(crate) recent: Arc<RecentDecisions>,
    pub(crate) access: AdminAccess,
    pub(crate) logging: Box<dyn Logging>,
    /// The options of the command line.
    pub(crate) options: Vec<EffectiveValue>,
    pub(crate) viewers: LiveViewers,
    pub(crate) history: ChartHistory,
    pub(crate) rates: RateWindow,
}

/// Reads and changes the log level.
pub trait Logging: Send + Sync {
    /// The current level.
    fn level(&self) -> String;

    /// Sets the level: `error`, `warn`, `info`, `debug` or `trace`.
    ///
    /// # Errors
    /// If the level is unknown.
    fn set_level(&self, level: &str) -> Result<(), String>;
}
