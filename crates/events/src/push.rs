//! Push transport: sidecars inside engines post cache events over HTTP.
//!
//! A sidecar posts changes in batches, and from time to time the full state or a digest of it. The
//! router cannot connect to a sidecar, so it asks for a snapshot in the response to the sidecar's
//! next post (`{"sync": true}`). Hashes alone say nothing to a router that has not seen the tokens
//! behind them, for example because it has restarted: it then counts the pod as partial, and asks
//! for a snapshot whose blocks are `stored` with their tokens (`{"sync": true, "tokens": true}`).
//! If a sidecar's clock was set back, its epoch is lower than that of
//! an earlier process and its reports are ignored; once that process is silent the response says so
//! (`{"outdated": 17}`), and the sidecar chooses a greater epoch. Every path takes a JSON object
//! that names the `pod` and may give its `epoch` (when the process started, in any unit that grows)
//! and the request's `sequence`:
//!
//! | `POST` | fields | meaning |
//! |---|---|---|
//! | `/events/register` | | the engine has started, or reaches the router again |
//! | `/events/stored` | `stored`: list of `hashes`, `parent`, `tokens`, `block_size`, `tier`, `lora`, `salt` | blocks stored |
//! | `/events/evicted` | `evicted`: hashes; `tier` | blocks evicted |
//! | `/events/sync` | `stored` as above, or `active`: hashes; `part`, `parts` | snapshot of the whole cache |
//! | `/events/digest` | `tiers`: by name `count` and `xor` of hashes | digest, to compare |
//! | `/events/bye` | | the engine shuts down |
//! | `/internal/eviction` | `worker_id`, `evicted_hashes` | as `/events/evicted` |
//! | `/internal/sync` | `worker_id`, `active_hashes` | as `/events/sync` |
//!
//! A snapshot may be posted in parts, so that no post is large: `part` counts them from zero,
//! `parts` is their number, and all have the same `epoch` and `sequence`. Nothing of it counts
//! before the last part, and a first part starts over. A part that does not continue the one before
//! it is answered with status 409.
//!
//! With the feature `grpc` the same port also accepts streams of equivalent reports, as
//! `proto/events.proto` defines them; a snapshot is then requested over the stream at once.
//!
//! Hashes are numbers or hexadecimal strings. With `sequence`, numbered from zero and without a
//! gap, copies of blocks are counted; without it, a block is present or absent.

mod access;
mod epochs;
mod intake;
#[cfg(feature = "grpc")]
pub mod message;
#[cfg(feature = "grpc")]
#[rustfmt::skip]
#[allow(missing_docs, unreachable_pub, reason = "generated")]
mod proto;
mod parts;
mod request;
mod service;
#[cfg(feature = "grpc")]
mod streams;

pub use access::{PodTokens, PushAccess, PushAccessError, TokenDigest};
pub use request::{PushError, PushedReport};
pub use service::PushService;

use crate::message::{Capabilities, SourceMessage, SourceQuery};
use crate::transport::{PodName, SourceSignal, Transport};
use intake::{Intake, QueuedMessages, SnapshotRequest, SnapshotRequests};
use std::sync::Arc;
use tokio::sync::mpsc;

/// The receiving end: yields what sidecars post as messages of their pods.
pub struct Push {
    queue: mpsc::Receiver<QueuedMessages>,
    /// The rest of the request that was dequeued last.
    current: std::vec::IntoIter<(PodName, SourceMessage)>,
    snapshots: Arc<SnapshotRequests>,
}

impl Push {
    /// A transport, and the service that feeds it with reports about the pods in `tokens`.
    #[must_use]
    pub fn new(tokens: Arc<PodTokens>) -> (Self, PushService) {
        let (intake, queue) = Intake::new(tokens);
        let snapshots = Arc::clone(&intake.snapshots);
        let push = Self { queue, current: Vec::new().into_iter(), snapshots };
        (push, PushService::new(intake))
    }
}

impl Transport for Push {
    fn name(&self) -> &str {
        "push"
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { replay: false, snapshot: true, relayed: false }
    }

    async fn next(&mut self) -> SourceSignal {
        loop {
            if let Some((pod, message)) = self.current.next() {
                return SourceSignal::Pod(pod, message);
            }
            let Some(QueuedMessages { pod, messages, .. }) = self.queue.recv().await else {
                return std::future::pending().await;
            };
            let named = messages.into_iter().map(|message| (Arc::clone(&pod), message));
            self.current = named.collect::<Vec<_>>().into_iter();
        }
    }

    fn query(&mut self, pod: &PodName, query: SourceQuery) {
        match query {
            SourceQuery::Snapshot => self.snapshots.request(pod, SnapshotRequest::Any),
            SourceQuery::SnapshotWithTokens => {
                self.snapshots.request(pod, SnapshotRequest::WithTokens);
            }
            SourceQuery::Replay { .. } => {}
        }
    }
}
