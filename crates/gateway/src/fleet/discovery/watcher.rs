//! One finder at work: where it looks, what it has found, and what could not come yet.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::fleet::discovery::diff::{DiscoveredPod, DiscoveredPods, PodDiff};
use crate::fleet::ownership::PodOwner;
use crate::fleet::reload::{AddPodError, RunningConfig};
use crate::fleet::snapshot::PodEntry;
use wornpath_config::{Config, DiscoveryConfig, FileState, FileWatch, PodConfig, RelativePaths};

/// A finder, and what it remembers from one look to the next.
pub(crate) struct Watcher {
    finder: DiscoveryConfig,
    bringer: PodOwner,
    found: DiscoveredPods,
    has_seen: bool,
    file: PodFileState,
    /// Why pods could not come the last time, so that each reason is told once and not with every look.
    refused: BTreeMap<String, String>,
}

impl Watcher {
    /// One that has found nothing yet. No other has its number.
    pub(crate) fn new(number: usize, finder: DiscoveryConfig) -> Self {
        let (found, file, refused) =
            (DiscoveredPods::default(), PodFileState::default(), BTreeMap::new());
        let bringer = PodOwner::Finder(number);
        Self { finder, bringer, found, has_seen: false, file, refused }
    }

    /// As whom it brings pods.
    pub(crate) const fn bringer(&self) -> PodOwner {
        self.bringer
    }

    /// How often it looks.
    pub(crate) const fn every(&self) -> Duration {
        match &self.finder {
            DiscoveryConfig::File { every, .. } | DiscoveryConfig::Dns { every, .. } => *every,
        }
    }

    /// Whether it finds what `finder` would, however often either looks.
    pub(crate) fn finds_as(&self, finder: &DiscoveryConfig) -> bool {
        at_pace(self.finder.clone(), Duration::ZERO) == at_pace(finder.clone(), Duration::ZERO)
    }

    /// From now on it looks as often as `finder`, and remembers what it knows.
    pub(crate) fn at_pace_of(self, finder: DiscoveryConfig) -> Self {
        Self { finder, ..self }
    }

    /// Looks once, and brings and releases pods accordingly. What could not come is tried again.
    pub(crate) async fn look(&mut self, running: &RunningConfig) {
        let (seen, sight) = match &self.finder {
            DiscoveryConfig::File { path, .. } => {
                (self.file.look(running, path), DiscoveredPod::Sharp)
            }
            DiscoveryConfig::Dns { host, port, scheme, pod, .. } => {
                (resolve((scheme, host, *port), pod).await, DiscoveredPod::Blurred)
            }
        };
        if let Some(seen) = seen {
            self.found.look(&seen, sight);
            self.has_seen = true;
        }
        // A look that fails changes nothing, and least of all the first.
        if self.has_seen {
            self.settle(running);
        }
    }

    /// Whether it ever saw where it looks.
    pub(crate) const fn has_seen(&self) -> bool {
        self.has_seen
    }

    fn settle(&mut self, running: &RunningConfig) {
        let came = running.roll().brought_by(self.bringer);
        let PodDiff { going, coming } = self.found.changes(&came);
        let former = running.pods().snapshot();
        for pod in going {
            running.release(self.bringer, &pod.name);
            tracing::info!(pod = pod.name, url = pod.url, "pod removed by discovery");
        }
        let mut refused = BTreeMap::new();
        for pod in coming {
            let Err(error) = bring(running, self.bringer, &pod, former.entries()) else { continue };
            let reason = error.to_string();
            if self.refused.get(&pod.name) != Some(&reason) {
                tracing::error!(pod = pod.name, reason, "discovered pod refused; retrying");
            }
            refused.insert(pod.name, reason);
        }
        self.refused = refused;
    }
}

const fn at_pace(mut finder: DiscoveryConfig, pace: Duration) -> DiscoveryConfig {
    let (DiscoveryConfig::File { every, .. } | DiscoveryConfig::Dns { every, .. }) = &mut finder;
    *every = pace;
    finder
}

/// Brings a pod, or takes it over from a finder that is no more: then nothing that is known of it is lost.
fn bring(
    running: &RunningConfig,
    bringer: PodOwner,
    pod: &PodConfig,
    former: &[PodEntry],
) -> Result<(), AddPodError> {
    if running.roll().adopt(bringer, pod) {
        return Ok(());
    }
    for former in running.roll().brought_by(PodOwner::FormerFinder) {
        if former.name == pod.name || former.url == pod.url {
            running.release(PodOwner::FormerFinder, &former.name);
        }
    }
    running.bring(bringer, pod, former)?;
    tracing::info!(pod = pod.name, url = pod.url, "pod discovered");
    Ok(())
}

/// Every address of a name as a pod. None if the name cannot be asked for: then nothing is known.
async fn resolve(
    (scheme, host, port): (&str, &str, u16),
    pod: &PodConfig,
) -> Option<Vec<PodConfig>> {
    match tokio::net::lookup_host((host, port)).await {
        Ok(addresses) => {
            let mut all: Vec<_> = addresses.map(|address| address.to_string()).collect();
            all.sort();
            all.dedup();
            let at =
                |address: &String| pod.clone().at(address.clone(), format!("{scheme}://{address}"));
            (!all.is_empty()).then(|| all.iter().map(at).collect())
        }
        Err(error) => {
            tracing::warn!(host, %error, "DNS lookup failed; keeping known pods");
            None
        }
    }
}

/// A file of pods, read when it has changed, or what its pods may refer to has.
#[derive(Default)]
struct PodFileState {
    watch: Option<FileWatch>,
    last: Option<FileState>,
    /// What it was checked against.
    checked_by: Option<Arc<Config>>,
}

impl PodFileState {
    /// The pods in the file, if it is to be read and is good. A bad file changes nothing.
    fn look(&mut self, running: &RunningConfig, path: &Path) -> Option<Vec<PodConfig>> {
        let path = running
            .path()
            .map_or_else(|| path.to_owned(), |config| RelativePaths::new(config).path(path));
        let config = running.config();
        if !self.is_to_be_read(FileState::at(std::slice::from_ref(&path)), &config) {
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

    fn is_to_be_read(&mut self, now: FileState, config: &Arc<Config>) -> bool {
        let is_checked = self.checked_by.as_ref().is_some_and(|by| Arc::ptr_eq(by, config));
        // Also a new configuration is no reason to read what is just being written.
        let is_at_rest = self.last.replace(now.clone()).is_none_or(|last| last == now);
        let watch = self.watch.get_or_insert_with(|| FileWatch::new(now.clone()));
        watch.look(now) || (!is_checked && is_at_rest)
    }
}
