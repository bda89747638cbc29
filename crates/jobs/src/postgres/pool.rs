//! The pool of connections to the database, for callers that may block.
//!
//! A connection that is lost is dropped, and the call fails as unreachable, so that the caller can
//! retry. Every call has a timeout, so that none hangs on a dead network.

use super::PostgresServer;
use crate::store_error::StoreError;
use deadpool_postgres::{
    Manager, ManagerConfig, Object, PoolError, RecyclingMethod, Runtime as PoolRuntime,
    TimeoutType, Timeouts,
};
use rustls::ClientConfig;
use std::path::PathBuf;
use std::time::Duration;
use tokio::runtime::{Handle, Runtime};
use tokio::time::timeout;
use tokio_postgres::config::SslMode;
use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, Config, NoTls};
use tokio_postgres_rustls::MakeRustlsConnect;
use wornpath_tls::explain;

/// The most connections of one gateway.
const MAX_CONNECTIONS: usize = 16;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const CALL_TIMEOUT: Duration = Duration::from_secs(60);

pub(super) struct Pool {
    connections: deadpool_postgres::Pool,
    /// Taken when the pool is dropped.
    runtime: Option<Runtime>,
}

impl Pool {
    pub(super) fn new(server: &PostgresServer) -> Result<Self, StoreError> {
        let timeouts = Timeouts {
            wait: Some(CALL_TIMEOUT),
            create: Some(CONNECT_TIMEOUT),
            recycle: Some(CONNECT_TIMEOUT),
        };
        let connections = deadpool_postgres::Pool::builder(manager(server)?)
            .max_size(MAX_CONNECTIONS)
            .timeouts(timeouts)
            .runtime(PoolRuntime::Tokio1)
            .build()
            .map_err(|error| StoreError::Unreachable(error.to_string()))?;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("postgres")
            .enable_all()
            .build()
            .map_err(|error| StoreError::Unreachable(error.to_string()))?;
        Ok(Self { connections, runtime: Some(runtime) })
    }

    pub(super) fn event_loop(&self) -> &Handle {
        self.runtime().handle()
    }

    fn runtime(&self) -> &Runtime {
        self.runtime.as_ref().expect("it is taken only when the pool is dropped")
    }

    /// Runs one call on a connection.
    pub(super) fn with<T>(
        &self,
        work: impl AsyncFnOnce(&mut Client) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        self.runtime().block_on(async {
            let mut connection = self.connections.get().await?;
            let worked = timeout(CALL_TIMEOUT, work(&mut connection)).await;
            let worked = worked.unwrap_or_else(|_| {
                let seconds = CALL_TIMEOUT.as_secs();
                Err(StoreError::Unreachable(format!("timeout after {seconds} s")))
            });
            if matches!(worked, Err(StoreError::Unreachable(_))) {
                // Not back to the pool: a reply to this call may still arrive on it.
                drop(Object::take(connection));
            }
            worked
        })
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        // A task may drop it, and tasks must not wait for threads.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// What opens connections: encrypted ones if the server has `tls`, else plain ones.
fn manager(server: &PostgresServer) -> Result<Manager, StoreError> {
    let mut config: Config = server.address.parse().map_err(|error: tokio_postgres::Error| {
        // Not the address itself: it may contain a password.
        let error = with_causes(&error);
        StoreError::Refused(format!("{error}; write it like postgres://user@host:5432/name"))
    })?;
    if config.get_password().is_some() {
        return Err(StoreError::Refused(
            "the address contains a password; remove it, and give `password_file` or \
             `password_env` in `batch`, or PGPASSWORD"
                .to_owned(),
        ));
    }
    if let Some(password) = &server.password {
        config.password(password);
    }
    config.connect_timeout(CONNECT_TIMEOUT).application_name("wornpath");
    let rules = ManagerConfig { recycling_method: RecyclingMethod::Fast };
    match (&server.tls, config.get_ssl_mode()) {
        (None, SslMode::Disable | SslMode::Prefer) => {
            config.ssl_mode(SslMode::Disable);
            Ok(Manager::from_config(config, NoTls, rules))
        }
        (None, _) => Err(StoreError::Refused(
            "the address has `sslmode=require`, but there is no CA to trust; set `ca` in `tls` of \
             `batch`"
                .to_owned(),
        )),
        (Some(_), SslMode::Disable) => Err(StoreError::Refused(
            "the address has `sslmode=disable`, but `tls` is set; remove one of them".to_owned(),
        )),
        (Some(tls), _) => {
            config.ssl_mode(SslMode::Require);
            let connect = MakeRustlsConnect::new(ClientConfig::clone(tls.config()));
            Ok(Manager::from_config(config, connect, rules))
        }
    }
}

/// The text of an error and of its sources.
fn with_causes(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |cause| cause.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}

impl From<PoolError> for StoreError {
    fn from(error: PoolError) -> Self {
        match error {
            PoolError::Backend(error) => error.into(),
            PoolError::Timeout(TimeoutType::Wait) => Self::Unreachable(format!(
                "timeout: none of {MAX_CONNECTIONS} connections was free within {} s",
                CALL_TIMEOUT.as_secs()
            )),
            PoolError::Timeout(_) => Self::Unreachable(format!(
                "timeout: no connection within {} s",
                CONNECT_TIMEOUT.as_secs()
            )),
            other => Self::Unreachable(other.to_string()),
        }
    }
}

impl From<tokio_postgres::Error> for StoreError {
    fn from(error: tokio_postgres::Error) -> Self {
        let Some(reported) = error.as_db_error() else {
            return Self::Unreachable(match explain(&error) {
                Some(explained) => explained,
                None => without_tls(with_causes(&error)),
            });
        };
        let message = format!("{} ({})", reported.message(), reported.code().code());
        match reported.code() {
            &SqlState::DISK_FULL => Self::Full { path: PathBuf::from("the database") },
            // It is starting or shutting down, has too many clients, or two transactions
            // conflicted.
            code if ["08", "40", "53", "57", "55"].contains(&&code.code()[..2]) => {
                Self::Unreachable(message)
            }
            _ => Self::Refused(message),
        }
    }
}

/// Adds the cure to the error of a server that has no TLS, which is not a TLS error.
fn without_tls(error: String) -> String {
    if error.contains("server does not support TLS") {
        return format!("{error}; set `ssl = on` in its postgresql.conf, or remove `tls`");
    }
    error
}
