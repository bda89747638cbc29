//! Events pushed over HTTP, by engines with a small sidecar.
//!
//! A sidecar posts what happened, batched, and now and then everything or a sum of it. It cannot be asked:
//! the router's wish for a full state travels back in the answer to whatever it posts next
//! (`{"sync": true}`). The paths, each with a JSON object that names the `pod` and may give its `epoch`
//! (when the process started, in any unit that grows) and the request's `sequence`:
//!
//! | `POST` | fields | meaning |
//! |---|---|---|
//! | `/events/register` | | the engine has started, or found the router again |
//! | `/events/stored` | `stored`: list of `hashes`, `parent`, `tokens`, `block_size`, `tier`, `lora`, `salt` | blocks came |
//! | `/events/evicted` | `evicted`: hashes; `tier` | blocks went |
//! | `/events/sync` | `stored` as above, or `active`: hashes | everything it holds |
//! | `/events/digest` | `tiers`: by name `count` and `xor` of hashes | a sum, to compare |
//! | `/events/bye` | | the engine ends |
//! | `/internal/eviction` | `worker_id`, `evicted_hashes` | as `/events/evicted` |
//! | `/internal/sync` | `worker_id`, `active_hashes` | as `/events/sync` |
//!
//! Hashes are numbers or hexadecimal strings. With `sequence`, numbered from zero and without a gap, stores
//! and evictions are counted; without it, a block is there or not.

mod access;
mod request;
mod service;

pub use access::{Access, AccessError};
pub use request::{PushError, Pushed};
pub use service::PushService;

use crate::said::{Abilities, Ask, Said};
use crate::transport::{Heard, PodName, Transport};
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::mpsc;

/// Requests that wait to be applied; when there are more, sidecars are told to wait.
const MOST_WAITING: usize = 1024;

/// The receiving end: what sidecars post comes out of it as events.
pub struct Push {
    requests: mpsc::Receiver<(PodName, Vec<Said>)>,
    /// What one request said, in order.
    said: std::vec::IntoIter<(PodName, Said)>,
    wanted: Arc<Wanted>,
}

/// Pods whose full state is wanted.
#[derive(Default)]
struct Wanted(Mutex<BTreeSet<PodName>>);

impl Wanted {
    fn pods(&self) -> MutexGuard<'_, BTreeSet<PodName>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Push {
    /// A transport, and the service that fills it. `knows` says whether a pod is one of the fleet's.
    #[must_use]
    pub fn new(knows: impl Fn(&str) -> bool + Send + Sync + 'static) -> (Self, PushService) {
        let (sender, requests) = mpsc::channel(MOST_WAITING);
        let wanted = Arc::<Wanted>::default();
        let service = PushService::new(sender, Arc::clone(&wanted), Box::new(knows));
        (Self { requests, said: Vec::new().into_iter(), wanted }, service)
    }
}

impl Transport for Push {
    fn name(&self) -> &str {
        "http push"
    }

    fn abilities(&self) -> Abilities {
        Abilities { replay: false, snapshot: true }
    }

    async fn next(&mut self) -> Heard {
        loop {
            if let Some((pod, said)) = self.said.next() {
                return Heard::Of(pod, said);
            }
            let Some((pod, said)) = self.requests.recv().await else {
                return std::future::pending().await;
            };
            let named = said.into_iter().map(|said| (Arc::clone(&pod), said));
            self.said = named.collect::<Vec<_>>().into_iter();
        }
    }

    fn ask(&mut self, pod: &PodName, ask: Ask) {
        if ask == Ask::Snapshot {
            self.wanted.pods().insert(Arc::clone(pod));
        }
    }
}
