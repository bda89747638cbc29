//! The demo's gateway: that of `wornpath serve`, in a thread of this process.

use super::client::DemoClient;
use anyhow::{Context, anyhow, ensure};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, OnceLock};
use std::thread::{Builder, Scope, ScopedJoinHandle};
use std::time::Duration;
use wornpath_admin::{Logging, RecentDecisions, Setup, start};
use wornpath_batch::serve_batches;
use wornpath_config::Settings;
use wornpath_config::{Config, Tokenizers};
use wornpath_gateway::{Gateway, Readiness, RequestSummary, ServeError, serve};
use wornpath_routing::{BreakerState, Health};

const POLL_INTERVAL: Duration = Duration::from_millis(10);
const TIMEOUT: Duration = Duration::from_secs(10);

/// A gateway that serves until the process receives SIGINT or SIGTERM.
pub(super) struct DemoGateway<'scope> {
    /// Address of the client API.
    pub(super) client: SocketAddr,
    pub(super) chat: DemoClient,
    pub(super) admin: SocketAddr,
    pub(super) gateway: Arc<Gateway>,
    recent: Arc<RecentDecisions>,
    thread: ScopedJoinHandle<'scope, Result<(), ServeError>>,
}

impl<'scope> DemoGateway<'scope> {
    /// Starts the gateway, and waits until it listens.
    pub(super) fn start<'env>(
        scope: &'scope Scope<'scope, 'env>,
        settings: Settings,
        logging: Box<dyn Logging>,
    ) -> anyhow::Result<Self> {
        let (sender, started) = sync_channel(1);
        let thread = Builder::new().name("gateway".to_owned()).spawn_scoped(scope, move || {
            let handles = OnceLock::new();
            let batch = settings.batch.clone();
            let set_up = |gateway: &Arc<Gateway>| {
                let tokenizers = Tokenizers::new(Path::new(""));
                let setup = Setup {
                    path: None,
                    config: Config::bare(),
                    tokenizers,
                    logging,
                    options: Vec::new(),
                };
                let set_up = start(gateway, setup)?;
                if let Some(rules) = batch {
                    serve_batches(gateway, rules)?;
                }
                // Cannot fail: a gateway is set up once.
                let _ = handles.set((Arc::clone(gateway), set_up.recent, set_up.admin));
                Ok(())
            };
            serve(settings, set_up, |serving| {
                // The receiver may be gone.
                let _ = sender.send((serving.client, handles.get().cloned()));
            })
        })?;
        match started.recv() {
            Ok((client, Some((gateway, recent, Some(admin))))) => {
                let chat = DemoClient::new(client)?;
                Ok(Self { client, chat, admin, gateway, recent, thread })
            }
            Ok(_) => Err(anyhow!("the gateway has no admin address")),
            Err(_) => match thread.join() {
                Ok(Err(error)) => Err(error.into()),
                _ => Err(anyhow!("the gateway ended before it served")),
            },
        }
    }

    /// Replaces the settings.
    pub(super) fn apply(&self, settings: Settings) -> anyhow::Result<()> {
        Ok(self.gateway.pods().apply(settings)?)
    }

    /// Waits until every pod is up and its breaker closed.
    pub(super) async fn all_up(&self) -> anyhow::Result<()> {
        let is_up = || {
            let snapshot = self.gateway.snapshot();
            snapshot.entries().iter().map(|entry| entry.pod.state()).all(|pod_state| {
                pod_state.health() == Health::Up && pod_state.breaker() == BreakerState::Closed
            })
        };
        self.until(is_up).await.context("some pods are not up")
    }

    /// Waits until the index is empty.
    pub(super) async fn index_empty(&self) -> anyhow::Result<()> {
        let is_empty = || {
            let snapshot = self.gateway.snapshot();
            let blocks =
                |pod| self.gateway.pods().index().pod_stats(pod).map_or(0, |stats| stats.blocks);
            snapshot.entries().iter().all(|entry| blocks(entry.pod.id()) == 0)
        };
        self.until(is_empty).await.context("the index still holds blocks of caches that were reset")
    }

    /// The summary of a request, which is recorded a moment after its answer.
    pub(super) async fn record(&self, id: &str) -> anyhow::Result<Arc<RequestSummary>> {
        self.until(|| self.recent.find(id).is_some()).await?;
        self.recent.find(id).with_context(|| format!("no summary of request `{id}`"))
    }

    /// Whether the gateway drains, as after ctrl-C, or has ended.
    pub(super) fn is_stopping(&self) -> bool {
        self.gateway.readiness() == Readiness::Draining || self.thread.is_finished()
    }

    /// Waits until the gateway has ended.
    pub(super) fn wait(self) -> anyhow::Result<()> {
        self.thread.join().map_err(|_| anyhow!("the gateway panicked"))??;
        Ok(())
    }

    /// Ends the gateway by a signal to this process, the only way to stop one.
    pub(super) fn stop(self) -> anyhow::Result<()> {
        use rustix::process::{Signal, getpid, kill_process};
        kill_process(getpid(), Signal::TERM)?;
        self.wait()
    }

    async fn until(&self, condition: impl Fn() -> bool) -> anyhow::Result<()> {
        let waiting = async {
            while !condition() {
                ensure!(!self.is_stopping(), "interrupted");
                tokio::time::sleep(POLL_INTERVAL).await;
            }
            Ok(())
        };
        tokio::time::timeout(TIMEOUT, waiting)
            .await
            .with_context(|| format!("timeout after {} s", TIMEOUT.as_secs()))?
    }
}
