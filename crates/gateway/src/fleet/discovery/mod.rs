//! How pods come that nobody listed, and how pods are besides what the router sent them.
//!
//! Finders look at files and names and bring pods ([`diff`], [`ownership`], [`watcher`]); readers ask engines for
//! their own figures, slowly ([`backoff`]); and events come from sidecars and brokers ([`sources`]).
//! What decides is pure; this file, [`watcher`], [`reader`] and [`sources`] do the asking.

mod backoff;
mod diff;
pub mod reader;
pub mod sources;
mod watcher;

use std::sync::Arc;

use tokio::sync::mpsc;
use tokio::task::JoinSet;

pub use backoff::{ScrapeBackoff, ScrapeReading};
pub use diff::{DiscoveredPod, DiscoveredPods, PodDiff};
pub use reader::read_engines;
pub use sources::{read_brokers, take_pushes};

use crate::fleet::ownership::PodOwner;
use crate::fleet::reload::RunningConfig;
pub use crate::fleet::scrape::{EngineMetrics, block_size, read};
use crate::watchdog::heartbeat::named;
use watcher::Watcher;
use wornpath_config::{Config, DiscoveryConfig};

/// Looks for pods in every way that is configured, for as long as it is polled.
///
/// With every configuration that takes over all finders look at once: a pod that could not come by the old one
/// may come by the new one. A finder that is still there goes on with what it knows, and the pods of one that
/// is not stay until all others have looked: one of them may find them too.
pub async fn find_pods(running: Arc<RunningConfig>) {
    let (mut seekers, mut count) = (Vec::new(), 0);
    // Whoever looked before a bug ended that. What they found stays until it can be looked for again.
    let mut must_see = running.roll().abandon_all();
    loop {
        let config = running.config();
        let (stay, former) = assign(config.finders(), seekers, &mut count);
        former.iter().for_each(|seeker| running.roll().abandon(seeker.bringer()));
        let mut looking = JoinSet::new();
        let (first_look, mut first_looks) = mpsc::channel::<()>(1);
        for seeker in stay {
            let (running, config) = (Arc::clone(&running), Arc::clone(&config));
            let follow = follow((running, config), seeker, first_look.clone(), must_see);
            looking.spawn(named("pod discovery", follow));
        }
        must_see = false;
        drop(first_look);
        let settled = async {
            // Nothing is ever sent: it ends when everybody who has looked has dropped their end.
            first_looks.recv().await;
            // Another configuration ends looks halfway; then those who look by it find what stays.
            if Arc::ptr_eq(&running.config(), &config) {
                release_all(&running, PodOwner::FormerFinder);
            }
        };
        (seekers, ()) = tokio::join!(until_replaced(&running, &config, &mut looking), settled);
        seekers.extend(looking.join_all().await);
    }
}

/// Waits until another configuration runs; who has ended by then. A finder that breaks off breaks all off, so that all
/// begin again.
async fn until_replaced(
    running: &RunningConfig,
    config: &Arc<Config>,
    looking: &mut JoinSet<Watcher>,
) -> Vec<Watcher> {
    let mut ended = Vec::new();
    let replaced = replaced(running, config);
    tokio::pin!(replaced);
    loop {
        tokio::select! {
            biased;
            () = &mut replaced => return ended,
            Some(joined) = looking.join_next() => match joined {
                Ok(seeker) => ended.push(seeker),
                Err(broken) => std::panic::resume_unwind(broken.into_panic()),
            },
        }
    }
}

/// Who seeks by each of `finders`, if need be somebody new; and who did and does no longer. `count` is how many
/// there ever were.
fn assign(
    finders: &[DiscoveryConfig],
    mut before: Vec<Watcher>,
    count: &mut usize,
) -> (Vec<Watcher>, Vec<Watcher>) {
    let mut seekers = Vec::new();
    for finder in finders.iter().cloned() {
        match before.iter().position(|seeker| seeker.finds_as(&finder)) {
            Some(at) => seekers.push(before.swap_remove(at).at_pace_of(finder)),
            None => {
                seekers.push(Watcher::new(*count, finder));
                *count += 1;
            }
        }
    }
    (seekers, before)
}

/// Looks again and again until another configuration runs. `first` is dropped after the first look, or if it must have
/// seen something once it has.
async fn follow(
    (running, config): (Arc<RunningConfig>, Arc<Config>),
    mut seeker: Watcher,
    first: mpsc::Sender<()>,
    must_see: bool,
) -> Watcher {
    let looks = async {
        let mut first = Some(first);
        loop {
            seeker.look(&running).await;
            if seeker.has_seen() || !must_see {
                drop(first.take());
            }
            tokio::time::sleep(seeker.every()).await;
        }
    };
    tokio::select! {
        () = looks => {}
        () = replaced(&running, &config) => {}
    }
    seeker
}

/// Waits until another configuration than `config` runs.
async fn replaced(running: &RunningConfig, config: &Arc<Config>) {
    let mut changes = running.changes();
    while Arc::ptr_eq(&running.config(), config) {
        changes.changed().await.expect("`running` holds the other end");
    }
}

fn release_all(running: &RunningConfig, bringer: PodOwner) {
    for pod in running.roll().brought_by(bringer) {
        running.release(bringer, &pod.name);
        tracing::info!(pod = pod.name, url = pod.url, "pod removed by discovery");
    }
}
