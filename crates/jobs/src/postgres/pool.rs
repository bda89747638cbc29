//! Connections to the database, for callers that may block.
//!
//! A call takes an idle connection, or makes one. One that broke is dropped; whoever had it is told that the store does
//! not answer, and may ask again. What a call may take in all is bounded, so that nobody waits on a dead network.

use crate::problem::StoreError;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use tokio::runtime::{Handle, Runtime};
use tokio::time::timeout;
use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, Config, NoTls};

/// Connections that are kept without work.
const MOST_IDLE: usize = 8;
/// A connection is made in this time or not.
const CONNECTING: Duration = Duration::from_secs(5);
/// A call is over in this time or has failed.
const CALL: Duration = Duration::from_secs(60);

pub(super) struct Pool {
    config: Config,
    idle: Mutex<Vec<Client>>,
    /// Set until it is dropped.
    runtime: Option<Runtime>,
}

impl Pool {
    pub(super) fn new(address: &str) -> Result<Self, StoreError> {
        let mut config: Config = address.parse().map_err(|error: tokio_postgres::Error| {
            // Not the address itself: a password may stand in it.
            let cause =
                std::error::Error::source(&error).map_or_else(String::new, |it| format!(": {it}"));
            StoreError::Refused(format!(
                "{error}{cause}; write it like postgres://user@host:5432/name"
            ))
        })?;
        config.connect_timeout(CONNECTING).application_name("wornpath");
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

    /// Does something with a connection.
    pub(super) fn with<T>(
        &self,
        work: impl AsyncFnOnce(&mut Client) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let runtime = self.runtime();
        runtime.block_on(async {
            let mut client = match self.idle_one() {
                Some(client) => client,
                None => self.connect(runtime).await?,
            };
            let worked = timeout(CALL, work(&mut client)).await;
            let worked = worked.unwrap_or_else(|_| {
                let seconds = CALL.as_secs();
                Err(StoreError::Unreachable(format!("no answer within {seconds} s")))
            });
            if !matches!(worked, Err(StoreError::Unreachable(_))) {
                self.keep(client);
            }
            worked
        })
    }

    fn idle_one(&self) -> Option<Client> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        idle.retain(|client| !client.is_closed());
        idle.pop()
    }

    fn keep(&self, client: Client) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < MOST_IDLE {
            idle.push(client);
        }
    }

    async fn connect(&self, runtime: &Runtime) -> Result<Client, StoreError> {
        let (client, connection) = self.config.connect(NoTls).await?;
        // It ends when the client is dropped, or breaks with the client's calls.
        runtime.spawn(async move { drop(connection.await) });
        Ok(client)
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        // Whoever drops it may be a task, which must not wait for threads.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl From<tokio_postgres::Error> for StoreError {
    fn from(error: tokio_postgres::Error) -> Self {
        let Some(said) = error.as_db_error() else { return Self::Unreachable(error.to_string()) };
        let message = format!("{} ({})", said.message(), said.code().code());
        match said.code() {
            &SqlState::DISK_FULL => Self::Full { path: PathBuf::from("the database") },
            // It starts, ends, has too many clients, or two of them stood in each other's way.
            code if ["08", "40", "53", "57", "55"].contains(&&code.code()[..2]) => {
                Self::Unreachable(message)
            }
            _ => Self::Refused(message),
        }
    }
}
