//! The demo's gateway: the one of `wornpath serve`, in a thread of this process.

use anyhow::{Context, anyhow};
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

const LOOK_AGAIN: Duration = Duration::from_millis(10);
const PATIENCE: Duration = Duration::from_secs(10);

/// A gateway that serves until the process is told to end.
pub(super) struct DemoGateway<'scope> {
    pub(super) client: SocketAddr,
    pub(super) admin: SocketAddr,
    pub(super) gateway: Arc<Gateway>,
    recent: Arc<RecentDecisions>,
    thread: ScopedJoinHandle<'scope, Result<(), ServeError>>,
}

impl<'scope> DemoGateway<'scope> {
    /// Starts it, and waits until it listens.
    pub(super) fn start<'env>(
        scope: &'scope Scope<'scope, 'env>,
        settings: Settings,
        logging: Box<dyn Logging>,
    ) -> anyhow::Result<Self> {
        let (tell, told) = sync_channel(1);
        let thread = Builder::new().name("gateway".to_owned()).spawn_scoped(scope, move || {
            let (around, batch) = (OnceLock::new(), settings.batch.clone());
            let set_up = |gateway: &Arc<Gateway>| {
                let (config, tokenizers) = (Config::bare(), Tokenizers::new(Path::new("")));
                let setup = Setup { path: None, config, tokenizers, logging };
                let set_up = start(gateway, setup)?;
                if let Some(rules) = batch {
                    serve_batches(gateway, rules)?;
                }
                // Set once: a gateway is set up once.
                let _ = around.set((Arc::clone(gateway), set_up.recent, set_up.admin));
                Ok(())
            };
            serve(settings, set_up, |serving| {
                // Whoever waits for it may have gone.
                let _ = tell.send((serving.client, around.get().cloned()));
            })
        })?;
        match told.recv() {
            Ok((client, Some((gateway, recent, Some(admin))))) => {
                Ok(Self { client, admin, gateway, recent, thread })
            }
            Ok(_) => Err(anyhow!("the gateway has no admin address")),
            Err(_) => match thread.join() {
                Ok(Err(error)) => Err(error.into()),
                _ => Err(anyhow!("the gateway ended before it served")),
            },
        }
    }

    /// Goes by other settings from now on.
    pub(super) fn apply(&self, settings: Settings) -> anyhow::Result<()> {
        Ok(self.gateway.pods().apply(settings)?)
    }

    /// Waits until requests go to all pods: they answer, and none is kept away for what it did before.
    pub(super) async fn all_up(&self) -> anyhow::Result<()> {
        let is_up = || {
            let snapshot = self.gateway.snapshot();
            snapshot.entries().iter().map(|entry| entry.pod.vitals()).all(|vitals| {
                vitals.health() == Health::Up && vitals.breaker() == BreakerState::Closed
            })
        };
        until(is_up).await.context("not all engines came up")
    }

    /// Waits until nothing is known to be cached.
    pub(super) async fn all_forgotten(&self) -> anyhow::Result<()> {
        let is_empty = || {
            let snapshot = self.gateway.snapshot();
            let blocks =
                |pod| self.gateway.pods().index().pod_stats(pod).map_or(0, |stats| stats.blocks);
            snapshot.entries().iter().all(|entry| blocks(entry.pod.id()) == 0)
        };
        until(is_empty).await.context("the index still holds blocks of caches that were emptied")
    }

    /// What became of a request, which is known a moment after its answer.
    pub(super) async fn record(&self, id: &str) -> anyhow::Result<Arc<RequestSummary>> {
        until(|| self.recent.find(id).is_some()).await?;
        self.recent.find(id).with_context(|| format!("request `{id}` is not remembered"))
    }

    /// Whether somebody pressed ctrl-C.
    pub(super) fn is_told_to_end(&self) -> bool {
        self.gateway.readiness() == Readiness::Draining || self.thread.is_finished()
    }

    /// Waits until the process is told to end and the gateway has.
    pub(super) fn wait(self) -> anyhow::Result<()> {
        self.thread.join().map_err(|_| anyhow!("the gateway panicked"))??;
        Ok(())
    }

    /// Tells it to end as a terminal would: a gateway listens to signals alone.
    pub(super) fn end(self) -> anyhow::Result<()> {
        use rustix::process::{Signal, getpid, kill_process};
        kill_process(getpid(), Signal::TERM)?;
        self.wait()
    }
}

async fn until(is_so: impl Fn() -> bool) -> anyhow::Result<()> {
    let waiting = async {
        while !is_so() {
            tokio::time::sleep(LOOK_AGAIN).await;
        }
    };
    tokio::time::timeout(PATIENCE, waiting)
        .await
        .with_context(|| format!("not within {} s", PATIENCE.as_secs()))
}
