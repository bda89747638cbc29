//! Starts the services of a gateway: metrics, the admin plane, discovery, event sources, engine
//! scrapes.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use tokio::net::TcpListener;
use tokio::sync::watch;
use wornpath_events::{PushAccess as EventAccess, PushAccessError as EventAccessError};

use crate::access::{AdminAccess, AdminAccessError};
use crate::admin::{Admin, Logging};
use crate::history::ChartHistory;
use crate::recent::RecentDecisions;
use crate::sampling;
use crate::serve;
use crate::viewers::{LiveViewers, RateWindow};
use wornpath_config::{Config, EffectiveValue, Settings, Tokenizers};
use wornpath_gateway::fleet::alerts;
use wornpath_gateway::fleet::discovery::discover_pods;
use wornpath_gateway::fleet::discovery::reader::scrape_engines;
use wornpath_gateway::fleet::discovery::sources::{consume_brokers, serve_pushes};
use wornpath_gateway::fleet::reload::{CommandLineOverrides, RunningConfig, StartConfig};
use wornpath_gateway::http::export;
use wornpath_gateway::observe::access_log::AccessLog;
use wornpath_gateway::observe::metrics::Metrics;
use wornpath_gateway::observe::summary::SummaryObserver;
use wornpath_gateway::proxy::gateway::Gateway;
use wornpath_gateway::watchdog::supervise;

/// What a gateway was started with.
pub struct Setup {
    /// The configuration file, if there is one.
    pub path: Option<PathBuf>,
    /// The configuration; [`Config::bare`] without a file.
    pub config: Config,
    /// Its loaded tokenizers.
    pub tokenizers: Tokenizers,
    /// Changes the log level.
    pub logging: Box<dyn Logging>,
    /// The options of the command line, each with the key that it overrides.
    pub options: Vec<EffectiveValue>,
}

/// The running services.
pub struct AdminContext {
    /// The metrics.
    pub metrics: Arc<Metrics>,
    /// The running configuration.
    pub running: Arc<RunningConfig>,
    /// The last requests.
    pub recent: Arc<RecentDecisions>,
    /// The bound address of the admin plane, if enabled.
    pub admin: Option<SocketAddr>,
}

/// A service cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The admin plane would be reachable without authentication.
    #[error(transparent)]
    Access(#[from] AdminAccessError),
    /// The event listener would be reachable without authentication.
    #[error(transparent)]
    EventAccess(#[from] EventAccessError),
    /// The access log cannot be opened.
    #[error("access log: cannot open {target}: {cause}; check that the router may write there")]
    AccessLog {
        /// The file, or the stream.
        target: String,
        /// The error of the system.
        cause: std::io::Error,
    },
    /// The event listener cannot bind its address.
    #[error("event listener: cannot bind {address}: {cause}; is another process using it?")]
    Events {
        /// The address.
        address: SocketAddr,
        /// The error of the system.
        cause: std::io::Error,
    },
    /// The admin listener cannot bind its address.
    #[error("admin listener: cannot bind {address}: {cause}; is another process using it?")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The error of the system.
        cause: std::io::Error,
    },
}

impl StartError {
    /// Whether the configuration is at fault, so that a restart would fail again.
    #[must_use]
    pub const fn is_of_configuration(&self) -> bool {
        match self {
            Self::Access(_) | Self::EventAccess(_) => true,
            Self::AccessLog { .. } | Self::Events { .. } | Self::Listen { .. } => false,
        }
    }
}

/// Starts the services on the gateway's background event loop. Call it before the first request,
/// and not from within an event loop.
///
/// # Errors
/// If a service cannot start.
pub fn start(gateway: &Arc<Gateway>, setup: Setup) -> Result<AdminContext, StartError> {
    start_with(gateway, setup, Box::new(Ok))
}

/// Like [`start`], with command-line options that override every reloaded configuration.
///
/// # Errors
/// If a service cannot start.
pub fn start_with(
    gateway: &Arc<Gateway>,
    setup: Setup,
    overrides: CommandLineOverrides,
) -> Result<AdminContext, StartError> {
    let metrics = Arc::<Metrics>::default();
    let recent = Arc::<RecentDecisions>::default();
    let settings = gateway.settings();
    metrics.set_limits(settings.metrics);
    let access_log = access_log(&settings, &metrics)?;
    let mut observers: Vec<Arc<dyn SummaryObserver>> =
        vec![Arc::clone(&metrics) as _, Arc::clone(&recent) as _];
    observers.extend(access_log.iter().map(|log| Arc::clone(log) as _));
    observers.extend(export::start(gateway, &metrics));
    gateway.observe(observers);
    gateway.count(Arc::clone(&metrics));
    let Setup { path, config, tokenizers, logging, options } = setup;
    let start = StartConfig { path, config, tokenizers, overrides };
    let running = RunningConfig::new(Arc::clone(gateway.pods()), Arc::clone(&metrics), start);
    let running = Arc::new(running);
    let background = gateway.pods().background();
    if let Some(log) = access_log {
        let running = Arc::clone(&running);
        supervise(background, "access log rotation", &log, move |log| {
            reopen_on_reload(log, running.reload_attempts())
        });
    }
    let admin = match settings.admin {
        None => None,
        Some(address) => {
            let access =
                AdminAccess::new(address, settings.admin_token, settings.tls.admin.as_ref())?;
            let listener = background.block_on(TcpListener::bind(address));
            let failed = |cause| StartError::Listen { address, cause };
            let listener = listener.map_err(failed)?;
            let bound = listener.local_addr().map_err(failed)?;
            let admin = Admin {
                gateway: Arc::clone(gateway),
                running: Arc::clone(&running),
                recent: Arc::clone(&recent),
                access,
                logging,
                options,
                viewers: LiveViewers::default(),
                history: ChartHistory::default(),
                rates: RateWindow::default(),
            };
            let listener = Arc::new(listener);
            let admin = Arc::new(admin);
            supervise(background, "admin listener", &admin, move |admin| {
                serve(admin, Arc::clone(&listener))
            });
            supervise(background, "chart history", &admin, sampling::run);
            Some(bound)
        }
    };
    supervise(background, "configuration watcher", &running, RunningConfig::follow);
    if let Some(guarded) = running.config().listen().events.clone() {
        let address = guarded.address;
        let access = match (guarded.token, &guarded.tls) {
            (None, Some(tls)) if tls.is_mutual() => EventAccess::client_certificates_verified(),
            (token, _) => EventAccess::of_digest(address, token.map(|digest| digest.0))?,
        };
        let listener = background.block_on(TcpListener::bind(address));
        let listener = listener.map_err(|cause| StartError::Events { address, cause })?;
        let listener = Arc::new(listener);
        supervise(background, "event listener", &running, move |running| {
            serve_pushes(running, Arc::clone(&listener), access.clone())
        });
    }
    supervise(background, "event brokers", &running, consume_brokers);
    supervise(background, "pod discovery", &running, discover_pods);
    supervise(background, "engine scrapes", &running, scrape_engines);
    let counts = Arc::clone(&metrics);
    supervise(background, "prediction watch", gateway.pods(), move |pods| {
        alerts::watch(pods, Arc::clone(&counts))
    });
    Ok(AdminContext { metrics, running, recent, admin })
}

/// The access log, if it is configured.
fn access_log(
    settings: &Settings,
    metrics: &Metrics,
) -> Result<Option<Arc<AccessLog>>, StartError> {
    let Some(settings) = &settings.access_log else { return Ok(None) };
    let log = AccessLog::start(settings, metrics);
    let failed = |cause| StartError::AccessLog { target: settings.to.to_string(), cause };
    log.map(|log| Some(Arc::new(log))).map_err(failed)
}

/// Opens the file of the access log again with every reload, also with one that is refused: a
/// rotated file must not be written to.
async fn reopen_on_reload(log: Arc<AccessLog>, mut attempts: watch::Receiver<u64>) {
    while attempts.changed().await.is_ok() {
        log.reopen();
    }
}
