//! Events pushed over HTTP, by engines with a small sidecar.
//!
//! A sidecar posts what happened, batched, and now and then everything or a sum of it. It cannot be asked:
//! the router's wish for a full state travels back in the answer to whatever it posts next
//! (`{"sync": true}`). One whose clock was set back since another process spoke for the pod is told that process's epoch
//! (`{"outdated": 17}`), and chooses a greater one. The paths, each with a JSON object that names the `pod` and may give its `epoch`
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
//! With the feature `grpc` the same port also takes streams of reports that mean the same, as
//! `proto/events.proto` says; the wish for a full state travels back over the stream at once.
//!
//! Hashes are numbers or hexadecimal strings. With `sequence`, numbered from zero and without a gap, stores
//! and evictions are counted; without it, a block is there or not.

mod access;
mod epochs;
#[cfg(feature = "grpc")]
pub mod message;
mod request;
mod service;
#[cfg(feature = "grpc")]
mod streams;

pub use access::{PodTokens, PushAccess, PushAccessError, TokenDigest};
pub use request::{PushError, PushedMessage};
pub use service::PushService;

use crate::message::{Capabilities, SourceMessage, SourceQuery};
use crate::transport::{PodName, SourceSignal, Transport};
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::{OwnedSemaphorePermit, mpsc, watch};

/// Requests that wait to be applied, and items (hashes and tokens) in them; when there are more, sidecars are
/// told to wait.
const MOST_WAITING: usize = 1024;
const MOST_WAITING_ITEMS: usize = 16 << 20;

/// The receiving end: what sidecars post comes out of it as events.
pub struct Push {
    requests: mpsc::Receiver<PushWaiter>,
    /// What one request said, in order.
    said: std::vec::IntoIter<(PodName, SourceMessage)>,
    wanted: Arc<PushQuery>,
}

/// What one request said, on its way to the index.
struct PushWaiter {
    pod: PodName,
    said: Vec<SourceMessage>,
    /// Its room among the items that wait; free again when it is taken in.
    _room: Option<OwnedSemaphorePermit>,
}

/// How many items some sayings have, for the room they take.
fn items(said: &[SourceMessage]) -> u32 {
    let one = |said: &SourceMessage| match said {
        SourceMessage::Batch { batch, .. } | SourceMessage::Snapshot { batch, .. } => batch.items(),
        _ => 0,
    };
    u32::try_from(said.iter().map(one).sum::<usize>().min(MOST_WAITING_ITEMS)).unwrap_or(u32::MAX)
}

/// Pods whose full state is wanted.
struct PushQuery {
    pods: Mutex<BTreeSet<PodName>>,
    changed: watch::Sender<()>,
}

impl PushQuery {
    fn pods(&self) -> MutexGuard<'_, BTreeSet<PodName>> {
        self.pods.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn want(&self, pod: &PodName) {
        self.pods().insert(Arc::clone(pod));
        self.changed.send_replace(());
    }

    /// Whether a pod's state is wanted; whoever asks will tell the pod.
    fn take(&self, pod: &str) -> bool {
        self.pods().remove(pod)
    }

    #[cfg(feature = "grpc")]
    fn changed(&self) -> watch::Receiver<()> {
        self.changed.subscribe()
    }
}

impl Push {
    /// A transport, and the service that fills it with what is said of `guests`.
    #[must_use]
    pub fn new(guests: Arc<PodTokens>) -> (Self, PushService) {
        let (sender, requests) = mpsc::channel(MOST_WAITING);
        let wanted = PushQuery { pods: Mutex::default(), changed: watch::Sender::new(()) };
        let wanted = Arc::new(wanted);
        let service = PushService::new(sender, Arc::clone(&wanted), guests);
        (Self { requests, said: Vec::new().into_iter(), wanted }, service)
    }
}

impl Transport for Push {
    fn name(&self) -> &str {
        "push"
    }

    fn abilities(&self) -> Capabilities {
        Capabilities { replay: false, snapshot: true, relayed: false }
    }

    async fn next(&mut self) -> SourceSignal {
        loop {
            if let Some((pod, said)) = self.said.next() {
                return SourceSignal::Of(pod, said);
            }
            let Some(PushWaiter { pod, said, .. }) = self.requests.recv().await else {
                return std::future::pending().await;
            };
            let named = said.into_iter().map(|said| (Arc::clone(&pod), said));
            self.said = named.collect::<Vec<_>>().into_iter();
        }
    }

    fn ask(&mut self, pod: &PodName, ask: SourceQuery) {
        if ask == SourceQuery::Snapshot {
            self.wanted.want(pod);
        }
    }
}
