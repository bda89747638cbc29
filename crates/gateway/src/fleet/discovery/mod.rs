//! Discovery: pods that the configuration does not list, and state that only engines and brokers
//! know.
//!
//! Watchers read files and DNS names, or watch a Kubernetes cluster ([`kubernetes`]), and add pods
//! ([`diff`], [`watcher`]); the scraper reads the
//! engines' own metrics with a backoff ([`backoff`], [`reader`]); and [`sources`] receives the
//! events of sidecars and brokers. [`diff`] is pure; the other files do the I/O.

mod diff;
#[cfg(feature = "kubernetes")]
pub mod kubernetes;
pub mod reader;
pub mod sources;
mod watcher;

use std::sync::Arc;

use tokio::sync::mpsc;
use tokio::task::JoinSet;

pub use diff::{Completeness, DiscoveredPods, PodDiff};
pub use reader::scrape_engines;
pub use reader::{ScrapeReading, ScrapeSchedule};
pub use sources::{consume_brokers, serve_pushes};

use crate::fleet::ownership::PodOwner;
use crate::fleet::reload::RunningConfig;
pub use crate::fleet::scrape::{EngineMetrics, block_size, read};
use crate::watchdog::heartbeat::named;
use watcher::Watcher;
use wornpath_config::{Config, DiscoveryConfig};

/// Runs all configured watchers; never returns.
///
/// Every applied configuration makes all watchers poll at once: a pod that the old one refused may
/// be valid now. A watcher that is still configured keeps its state. The pods of one that is not
/// stay until all others have polled, since one of them may find them too.
pub async fn discover_pods(running: Arc<RunningConfig>) {
    let mut watchers = Vec::new();
    let mut created = 0;
    // This task restarts after a panic. The pods found before stay until their sources can be read
    // again.
    let mut must_see = running.ownership().orphan_all();
    loop {
        let config = running.config();
        let assigned = assign(config.discovery(), watchers, &mut created);
        assigned.removed.iter().for_each(|watcher| running.ownership().orphan(watcher.owner()));
        let mut polling = JoinSet::new();
        let (first_poll, mut first_polls) = mpsc::channel::<()>(1);
        for watcher in assigned.active {
            let poll = WatcherTask {
                running: Arc::clone(&running),
                config: Arc::clone(&config),
                watcher,
                must_see,
            };
            polling.spawn(named("pod discovery", poll.run(first_poll.clone())));
        }
        must_see = false;
        drop(first_poll);
        let release_orphans = async {
            // Nothing is ever sent: the channel closes when every watcher has polled once.
            first_polls.recv().await;
            // A new configuration interrupts polls; then the watchers of that one decide which pods
            // stay.
            if Arc::ptr_eq(&running.config(), &config) {
                release_all(&running, PodOwner::Orphaned);
            }
        };
        (watchers, ()) =
            tokio::join!(until_replaced(&running, &config, &mut polling), release_orphans);
        watchers.extend(polling.join_all().await);
    }
}

/// Waits until another configuration is in force, and returns the watchers that have stopped by
/// then. A panic of one watcher is propagated, so that all of them restart.
async fn until_replaced(
    running: &RunningConfig,
    config: &Arc<Config>,
    polling: &mut JoinSet<Watcher>,
) -> Vec<Watcher> {
    let mut stopped = Vec::new();
    let replaced = replaced(running, config);
    tokio::pin!(replaced);
    loop {
        tokio::select! {
            biased;
            () = &mut replaced => return stopped,
            Some(joined) = polling.join_next() => match joined {
                Ok(watcher) => stopped.push(watcher),
                Err(error) => std::panic::resume_unwind(error.into_panic()),
            },
        }
    }
}

/// The watchers of a configuration.
struct Assigned {
    /// One for each configured source.
    active: Vec<Watcher>,
    /// Those whose source is no longer configured.
    removed: Vec<Watcher>,
}

/// Assigns a watcher to each configured source, an existing one where possible. `created` counts
/// all watchers ever made, so that each has a number of its own.
fn assign(sources: &[DiscoveryConfig], mut before: Vec<Watcher>, created: &mut usize) -> Assigned {
    let mut active = Vec::new();
    for source in sources.iter().cloned() {
        match before.iter().position(|watcher| watcher.has_source(&source)) {
            Some(at) => active.push(before.swap_remove(at).with_interval_of(source)),
            None => {
                active.push(Watcher::new(*created, source));
                *created += 1;
            }
        }
    }
    Assigned { active, removed: before }
}

/// A watcher that polls its source until another configuration is in force.
struct WatcherTask {
    running: Arc<RunningConfig>,
    config: Arc<Config>,
    watcher: Watcher,
    /// Whether the first poll counts only once it has succeeded.
    must_see: bool,
}

impl WatcherTask {
    /// Drops `first_poll` after the first poll that counts.
    async fn run(self, first_poll: mpsc::Sender<()>) -> Watcher {
        let Self { running, config, mut watcher, must_see } = self;
        let polls = async {
            let mut first_poll = Some(first_poll);
            loop {
                watcher.poll(&running).await;
                if watcher.has_seen() || !must_see {
                    drop(first_poll.take());
                }
                tokio::time::sleep(watcher.interval()).await;
            }
        };
        tokio::select! {
            () = polls => {}
            () = replaced(&running, &config) => {}
        }
        watcher
    }
}

/// Waits until another configuration than `config` is in force.
async fn replaced(running: &RunningConfig, config: &Arc<Config>) {
    let mut changes = running.changes();
    while Arc::ptr_eq(&running.config(), config) {
        changes.changed().await.expect("`running` holds the sender");
    }
}

fn release_all(running: &RunningConfig, owner: PodOwner) {
    for pod in running.ownership().owned_by(owner) {
        running.release(owner, pod.name());
        tracing::info!(pod = pod.name(), url = pod.url(), "pod removed by discovery");
    }
}
