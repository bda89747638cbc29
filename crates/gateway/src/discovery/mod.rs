//! How pods come that nobody listed, and how pods are besides what the router sent them.
//!
//! Finders look at files and names and bring pods ([`found`], [`roll`]); readers ask engines for their own
//! figures, slowly ([`pace`], [`scrape`]); and events come from sidecars and brokers ([`sources`]). What decides
//! is pure; this file, [`reader`] and [`sources`] do the asking.

mod found;
mod pace;
mod reader;
mod roll;
mod scrape;
mod sources;

use std::path::Path;
use std::sync::Arc;

use tokio::task::JoinSet;

pub use found::{Change, Found, Sight};
pub use pace::{Pace, Reading};
pub use reader::read_engines;
pub use roll::{Bringer, Roll, Taken};
pub use scrape::{Reported, read};
pub use sources::{read_brokers, take_pushes};

use crate::config::{Beside, Finder, Look, PodConfig, Running, Watch};

/// Looks for pods in every way that is configured, for as long as it is polled.
pub async fn find_pods(running: Arc<Running>) {
    let mut changes = running.changes();
    loop {
        changes.mark_unchanged();
        let finders = running.config().finders().to_vec();
        let mut looking = JoinSet::new();
        for (number, finder) in finders.iter().cloned().enumerate() {
            looking.spawn(follow(Arc::clone(&running), number, finder));
        }
        // Another configuration may take over without changing how pods are found.
        loop {
            if changes.changed().await.is_err() {
                return;
            }
            if running.config().finders() != finders {
                break;
            }
        }
        looking.shutdown().await;
        for (number, _) in finders.iter().enumerate() {
            release_all(&running, Bringer::Finder(number));
        }
    }
}

async fn follow(running: Arc<Running>, number: usize, finder: Finder) {
    let mut found = Found::default();
    let mut file = FileSight::default();
    loop {
        let (seen, sight, every) = match &finder {
            Finder::File { path, every } => (file.look(&running, path), Sight::Sharp, *every),
            Finder::Dns { host, port, scheme, every, pod } => {
                (resolve((scheme, host, *port), pod).await, Sight::Blurred, *every)
            }
        };
        for change in seen.map(|seen| found.look(&seen, sight)).unwrap_or_default() {
            carry_out(&running, Bringer::Finder(number), change);
        }
        tokio::time::sleep(every).await;
    }
}

fn carry_out(running: &Running, bringer: Bringer, change: Change) {
    match change {
        Change::Add(pod) | Change::Replace(pod) => match running.bring(bringer, &pod) {
            Ok(()) => tracing::info!(pod = pod.name, url = pod.url, "found a pod"),
            Err(error) => tracing::error!("a pod was found that cannot come: {error}"),
        },
        Change::Remove(pod) => {
            running.release(bringer, &pod.name);
            tracing::info!(pod = pod.name, "a pod is no longer found");
        }
    }
}

fn release_all(running: &Running, bringer: Bringer) {
    for pod in running.roll().brought_by(bringer) {
        running.release(bringer, &pod.name);
    }
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
            tracing::warn!(host, "cannot be resolved, its pods stay as they are: {error}");
            None
        }
    }
}

/// A file of pods, read when it has changed.
#[derive(Default)]
struct FileSight {
    watch: Option<Watch>,
}

impl FileSight {
    /// The pods in the file, if it has changed and is good. A bad file changes nothing.
    fn look(&mut self, running: &Running, path: &Path) -> Option<Vec<PodConfig>> {
        let path =
            running.path().map_or_else(|| path.to_owned(), |config| Beside::new(config).path(path));
        let look = Look::at(std::slice::from_ref(&path));
        match &mut self.watch {
            None => self.watch = Some(Watch::new(look)),
            Some(watch) => {
                if !watch.look(look) {
                    return None;
                }
            }
        }
        let file = path.display().to_string();
        let text = match std::fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) => {
                tracing::error!("{file} cannot be read, its pods stay as they are: {error}");
                return None;
            }
        };
        match running.config().check_pods(&file, &text) {
            Ok(pods) => Some(pods),
            Err(refused) => {
                tracing::error!("{file} is refused, its pods stay as they are:\n{refused}");
                None
            }
        }
    }
}
