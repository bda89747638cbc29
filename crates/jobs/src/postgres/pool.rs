//! A pool of connections to the database, for callers that may block.
//!
//! A call takes an idle connection, or opens one. A connection that is lost is dropped, and the
//! call fails as unreachable, so that the caller can retry. Every call has a timeout, so that none
//! hangs on a dead network.

use crate::store_error::StoreError;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use tokio::runtime::{Handle, Runtime};
use tokio::time::timeout;
use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, Config, NoTls};

/// The most idle connections.
const MAX_IDLE: usize = 8;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const CALL_TIMEOUT: Duration = Duration::from_secs(60);

pub(super) struct Pool {
    config: Config,
    idle: Mutex<Vec<Client>>,
    /// Taken when the pool is dropped.
    runtime: Option<Runtime>,
}

impl Pool {
    pub(super) fn new(address: &str) -> Result<Self, StoreError> {
        let mut config: Config = address.parse().map_err(|error: tokio_postgres::Error| {
            // Not the address itself: it may contain a password.
            let cause =
                std::error::Error::source(&error).map_or_else(String::new, |it| format!(": {it}"));
            StoreError::Refused(format!(
                "{error}{cause}; write it like postgres://user@host:5432/name"
            ))
        })?;
        config.connect_timeout(CONNECT_TIMEOUT).application_name("wornpath");
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("postgres")
            .enable_all()
            .build()
            .map_err(|error| StoreError::Unreachable(error.to_string()))?;
        Ok(Self { config, idle: Mutex::default(), runtime: Some(runtime) })
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
        let runtime = self.runtime();
        runtime.block_on(async {
            let mut client = match self.take_idle() {
                Some(client) => client,
                None => self.connect(runtime).await?,
            };
            let worked = timeout(CALL_TIMEOUT, work(&mut client)).await;
            let worked = worked.unwrap_or_else(|_| {
                let seconds = CALL_TIMEOUT.as_secs();
                Err(StoreError::Unreachable(format!("timeout after {seconds} s")))
            });
            if !matches!(worked, Err(StoreError::Unreachable(_))) {
                self.put_idle(client);
            }
            worked
        })
    }

    fn take_idle(&self) -> Option<Client> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        idle.retain(|client| !client.is_closed());
        idle.pop()
    }

    fn put_idle(&self, client: Client) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < MAX_IDLE {
            idle.push(client);
        }
    }

    async fn connect(&self, runtime: &Runtime) -> Result<Client, StoreError> {
        let (client, connection) = self.config.connect(NoTls).await?;
        // It ends when the client is dropped, or fails together with the client's calls.
        runtime.spawn(async move { drop(connection.await) });
        Ok(client)
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

impl From<tokio_postgres::Error> for StoreError {
    fn from(error: tokio_postgres::Error) -> Self {
        let Some(reported) = error.as_db_error() else {
            return Self::Unreachable(error.to_string());
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
