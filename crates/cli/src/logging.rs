//! Logging to standard error, with a level that the admin plane can change.

use tracing::Level;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::{Registry, fmt, layer::SubscriberExt, reload, util::SubscriberInitExt};
use wornpath_admin::Logging;

/// Handle to change the level.
pub(crate) struct LogLevel(reload::Handle<LevelFilter, Registry>);

impl LogLevel {
    /// Starts logging.
    pub(crate) fn start(level: Level) -> Self {
        let (filter, handle) = reload::Layer::new(LevelFilter::from_level(level));
        let lines = fmt::layer().with_writer(std::io::stderr).with_target(false).with_ansi(false);
        tracing_subscriber::registry().with(filter).with(lines).init();
        Self(handle)
    }
}

impl Logging for LogLevel {
    fn level(&self) -> String {
        self.0.clone_current().map_or_else(|| "unknown".to_owned(), |level| level.to_string())
    }

    fn set_level(&self, level: &str) -> Result<(), String> {
        let parsed: Level = level.parse().map_err(|_| {
            format!("unknown log level `{level}`; give error, warn, info, debug or trace")
        })?;
        self.0.reload(LevelFilter::from_level(parsed)).map_err(|error| error.to_string())
    }
}
