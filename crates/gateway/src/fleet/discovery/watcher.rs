//! A discovery watcher: polls one file or DNS name, or waits for changes in a Kubernetes cluster,
//! and adds, drains and removes pods accordingly.
//!
//! A poll that fails changes nothing. A pod that cannot be added is retried with every poll.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::fleet::discovery::diff::{Completeness, DiscoveredPods, PodDiff};
#[cfg(feature = "kubernetes")]
use crate::fleet::discovery::kubernetes::KubernetesWatch;
use crate::fleet::ownership::{PodOwner, is_same};
use crate::fleet::reload::{AddPodError, RunningConfig};
use crate::fleet::snapshot::PodEntry;
use wornpath_config::{Config, DiscoveryConfig, FileState, FileWatch, PodConfig, RelativePaths};

/// One configured source of pods, and the state kept between polls.
pub(crate) struct Watcher {
    source: DiscoveryConfig,
    owner: PodOwner,
    found: DiscoveredPods,
    has_seen: bool,
    file: PodFileState,
    #[cfg(feature = "kubernetes")]
    kubernetes: KubernetesWatch,
    /// The pods that the source says get no new requests.
    draining: BTreeSet<String>,
    /// The pods that were drained because of that, which an operator may also do.
    drained: BTreeSet<String>,
    /// Why pods were refused at the last poll, so that each reason is logged once.
    refused: BTreeMap<String, String>,
}

impl Watcher {
    /// A watcher that has not polled yet. `number` is unique.
    pub(crate) fn new(number: usize, source: DiscoveryConfig) -> Self {
        Self {
            source,
            owner: PodOwner::Watcher(number),
            found: DiscoveredPods::default(),
            has_seen: false,
            file: PodFileState::default(),
            #[cfg(feature = "kubernetes")]
            kubernetes: KubernetesWatch::default(),
            draining: BTreeSet::new(),
            drained: BTreeSet::new(),
            refused: BTreeMap::new(),
        }
    }

    /// The owner of the pods that it adds.
    pub(crate) const fn owner(&self) -> PodOwner {
        self.owner
    }

    /// The time between two polls.
    pub(crate) const fn interval(&self) -> Duration {
        match &self.source {
            DiscoveryConfig::File { every, .. } | DiscoveryConfig::Dns { every, .. } => *every,
            // A poll waits for a change.
            DiscoveryConfig::Kubernetes(_) => Duration::ZERO,
        }
    }

    /// Whether `source` is its source, at whatever interval.
    pub(crate) fn has_source(&self, source: &DiscoveryConfig) -> bool {
        let without_interval =
            |source: &DiscoveryConfig| at_interval(source.clone(), Duration::ZERO);
        without_interval(&self.source) == without_interval(source)
    }

    /// Polls at the interval of `source` from now on, and keeps its state.
    pub(crate) fn with_interval_of(self, source: DiscoveryConfig) -> Self {
        Self { source, ..self }
    }

    /// Reads the source once, and adds and removes pods accordingly.
    pub(crate) async fn poll(&mut self, running: &RunningConfig) {
        let (listed, completeness) = match &self.source {
            DiscoveryConfig::File { path, .. } => {
                (self.file.read(running, path), Completeness::Complete)
            }
            DiscoveryConfig::Dns { host, port, scheme, pod, .. } => {
                (resolve(scheme, host, *port, pod).await, Completeness::Lossy)
            }
            #[cfg(feature = "kubernetes")]
            DiscoveryConfig::Kubernetes(source) => {
                let listing = self.kubernetes.next(source, &running.config(), running.path()).await;
                let listed = listing.map(|listing| {
                    self.draining = listing.draining;
                    listing.pods
                });
                (listed, Completeness::Complete)
            }
            // The check of the configuration refuses it.
            #[cfg(not(feature = "kubernetes"))]
            DiscoveryConfig::Kubernetes(_) => std::future::pending().await,
        };
        if let Some(listed) = listed {
            self.found.update(&listed, completeness);
            self.has_seen = true;
        }
        // A failed poll changes nothing; before the first success nothing is known.
        if self.has_seen {
            self.reconcile(running);
        }
    }

    /// Whether any poll has succeeded.
    pub(crate) const fn has_seen(&self) -> bool {
        self.has_seen
    }

    fn reconcile(&mut self, running: &RunningConfig) {
        let current = running.ownership().owned_by(self.owner);
        let PodDiff { removed, added } = self.found.diff(&current);
        let former = running.pods().snapshot();
        for pod in removed {
            running.release(self.owner, pod.name());
            tracing::info!(pod = pod.name(), url = pod.url(), "pod removed by discovery");
        }
        let mut refused = BTreeMap::new();
        for pod in added {
            let Err(error) = add(running, self.owner, &pod, former.entries()) else { continue };
            let reason = error.to_string();
            if self.refused.get(pod.name()) != Some(&reason) {
                tracing::error!(pod = pod.name(), reason, "discovered pod refused; retrying");
            }
            refused.insert(pod.name().to_owned(), reason);
        }
        self.refused = refused;
        self.drain(running);
    }

    /// Drains the pods that the source says, and resumes those that it says no longer. A pod that
    /// an operator drained stays so.
    fn drain(&mut self, running: &RunningConfig) {
        let pods = running.ownership().owned_by(self.owner);
        self.drained.retain(|name| pods.iter().any(|pod| pod.name() == name));
        for pod in &pods {
            let name = pod.name();
            let ranks = pod.per_rank();
            if self.draining.contains(name) {
                if self.drained.insert(name.to_owned()) {
                    tracing::info!(pod = name, "pod draining: not ready, terminating or marked");
                }
                // Also those that were added again meanwhile.
                for rank in &ranks {
                    running.pods().drain_pod(rank.name());
                }
            } else if self.drained.remove(name) {
                tracing::info!(pod = name, "pod resumed by discovery");
                for rank in &ranks {
                    running.pods().resume_pod(rank.name());
                }
            }
        }
    }
}

fn at_interval(mut source: DiscoveryConfig, interval: Duration) -> DiscoveryConfig {
    if let DiscoveryConfig::File { every, .. } | DiscoveryConfig::Dns { every, .. } = &mut source {
        *every = interval;
    }
    source
}

/// Adds a pod, or adopts it if it is an orphan: then it keeps all its state.
fn add(
    running: &RunningConfig,
    owner: PodOwner,
    pod: &PodConfig,
    former: &[PodEntry],
) -> Result<(), AddPodError> {
    if running.ownership().adopt(owner, pod) {
        return Ok(());
    }
    for orphan in running.ownership().owned_by(PodOwner::Orphaned) {
        if is_same(&orphan, pod) {
            running.release(PodOwner::Orphaned, orphan.name());
        }
    }
    running.add_pod(owner, pod, former)?;
    tracing::info!(pod = pod.name(), url = pod.url(), "pod discovered");
    Ok(())
}

/// One pod for each address of a DNS name; none if the lookup fails or is empty.
async fn resolve(scheme: &str, host: &str, port: u16, pod: &PodConfig) -> Option<Vec<PodConfig>> {
    match tokio::net::lookup_host((host, port)).await {
        Ok(addresses) => {
            let mut all: Vec<_> = addresses.map(|address| address.to_string()).collect();
            all.sort();
            all.dedup();
            let at = |address: &String| pod.clone().at(address, &format!("{scheme}://{address}"));
            (!all.is_empty()).then(|| all.iter().map(at).collect())
        }
        Err(error) => {
            tracing::warn!(host, %error, "DNS lookup failed; keeping known pods");
            None
        }
    }
}

/// A pod file, read when it or the configuration that its pods refer to has changed.
#[derive(Default)]
struct PodFileState {
    watch: Option<FileWatch>,
    last: Option<FileState>,
    /// The configuration that its pods were checked against.
    checked_by: Option<Arc<Config>>,
}

impl PodFileState {
    /// The pods in the file; none if it is unchanged, unreadable or invalid.
    fn read(&mut self, running: &RunningConfig, path: &Path) -> Option<Vec<PodConfig>> {
        let path = running
            .path()
            .map_or_else(|| path.to_owned(), |config| RelativePaths::new(config).path(path));
        let config = running.config();
        if !self.is_due(FileState::at(std::slice::from_ref(&path)), &config) {
            return None;
        }
        self.checked_by = Some(Arc::clone(&config));
        let file = path.display().to_string();
        let text = match std::fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) => {
                tracing::error!(file, %error, "pod file unreadable; keeping known pods");
                return None;
            }
        };
        match config.check_pods(&file, &text) {
            Ok(pods) => Some(pods),
            Err(refused) => {
                tracing::error!(file, "pod file refused; keeping known pods:\n{refused}");
                None
            }
        }
    }

    fn is_due(&mut self, now: FileState, config: &Arc<Config>) -> bool {
        let is_checked = self.checked_by.as_ref().is_some_and(|by| Arc::ptr_eq(by, config));
        // Even after a reload, a file that is being written is not read.
        let is_stable = self.last.replace(now.clone()).is_none_or(|last| last == now);
        let watch = self.watch.get_or_insert_with(|| FileWatch::new(now.clone()));
        watch.look(now) || (!is_checked && is_stable)
    }
}
