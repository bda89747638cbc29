//! What HTTP posts and gRPC streams share: who may report on a pod, and the bounded queue to the
//! index.

use super::access::{PodTokens, PushAccess};
use super::epochs::LatestEpochs;
use super::parts::{OutOfOrder, SnapshotPart, SnapshotParts};
use crate::message::{Epoch, SourceMessage};
use crate::transport::PodName;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};
use tokio::time::Instant;

/// Requests in the queue.
const MAX_QUEUED: usize = 1024;
/// Items (hashes and tokens) in the queue.
const MAX_QUEUED_ITEMS: usize = 16 << 20;

/// The messages of one request, in the queue.
pub(super) struct QueuedMessages {
    pub(super) pod: PodName,
    pub(super) messages: Vec<SourceMessage>,
    /// Its share of the queued items, released when it is dequeued.
    _items: Option<OwnedSemaphorePermit>,
}

/// Why a report was not queued.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum IntakeError {
    /// The queue is full.
    Full,
    /// A part of a snapshot does not continue what the pod has begun.
    OutOfOrder,
    /// The router shuts down.
    #[cfg_attr(not(feature = "grpc"), allow(dead_code, reason = "posts do not wait for room"))]
    Closed,
}

/// The sending end of the queue. Cheap to clone.
#[derive(Clone)]
pub(super) struct Intake {
    pub(super) snapshots: Arc<SnapshotRequests>,
    tokens: Arc<PodTokens>,
    epochs: Arc<LatestEpochs>,
    parts: Arc<SnapshotParts>,
    queue: mpsc::Sender<QueuedMessages>,
    items: Arc<Semaphore>,
}

impl Intake {
    pub(super) fn new(tokens: Arc<PodTokens>) -> (Self, mpsc::Receiver<QueuedMessages>) {
        let (sender, receiver) = mpsc::channel(MAX_QUEUED);
        let intake = Self {
            snapshots: Arc::default(),
            tokens,
            epochs: Arc::default(),
            parts: Arc::default(),
            queue: sender,
            items: Arc::new(Semaphore::new(MAX_QUEUED_ITEMS)),
        };
        (intake, receiver)
    }

    pub(super) fn has_pod(&self, pod: &str) -> bool {
        self.tokens.contains(pod)
    }

    /// Whether a caller with this header may report on at least one pod.
    pub(super) fn admits_any(&self, access: &PushAccess, authorization: Option<&[u8]>) -> bool {
        access.admits(authorization) | self.tokens.has_token(authorization)
    }

    /// Whether a caller with this header may report on this pod.
    pub(super) fn admits(
        &self,
        access: &PushAccess,
        pod: &str,
        authorization: Option<&[u8]>,
    ) -> bool {
        access.admits_to(&self.tokens, pod, authorization)
    }

    /// Queues a report if there is room now. Returns the epoch that outdates it, if its sender
    /// should choose a greater one.
    pub(super) fn try_submit(
        &self,
        pod: &PodName,
        messages: Vec<SourceMessage>,
    ) -> Result<Option<Epoch>, IntakeError> {
        let outdated = self.epochs.note(pod, &messages, Instant::now());
        let items = Arc::clone(&self.items).try_acquire_many_owned(item_count(&messages));
        let items = items.map_err(|_| IntakeError::Full)?;
        let queued = QueuedMessages { pod: Arc::clone(pod), messages, _items: Some(items) };
        self.queue.try_send(queued).map_err(|_| IntakeError::Full)?;
        Ok(outdated)
    }

    /// Keeps a part of a snapshot, and queues the snapshot if that was the last one. A snapshot
    /// whose parts do not fit together is dropped.
    pub(super) fn try_submit_part(
        &self,
        pod: &PodName,
        part: SnapshotPart,
    ) -> Result<Option<Epoch>, IntakeError> {
        let alive = vec![SourceMessage::Connected, SourceMessage::Alive];
        let room = Arc::clone(&self.items).try_acquire_many_owned(items_of(part.batch.items()));
        let room = room.map_err(|_| IntakeError::Full)?;
        match self.parts.add(pod, part, room, Instant::now()) {
            Ok(None) => self.try_submit(pod, alive),
            Ok(Some(whole)) => {
                // It answers what was asked while it was being posted.
                self.snapshots.take(pod);
                // Its room is free for the moment that it takes to queue it as one message.
                let (snapshot, room) = whole.into_message();
                drop(room);
                self.try_submit(pod, vec![SourceMessage::Connected, snapshot])
            }
            Err(OutOfOrder) => Err(IntakeError::OutOfOrder),
        }
    }

    /// Queues a report, and waits for room.
    #[cfg(feature = "grpc")]
    pub(super) async fn submit(
        &self,
        pod: &PodName,
        messages: Vec<SourceMessage>,
    ) -> Result<Option<Epoch>, IntakeError> {
        let outdated = self.epochs.note(pod, &messages, Instant::now());
        let items = Arc::clone(&self.items).acquire_many_owned(item_count(&messages)).await;
        let items = items.map_err(|_| IntakeError::Closed)?;
        let queued = QueuedMessages { pod: Arc::clone(pod), messages, _items: Some(items) };
        self.queue.send(queued).await.map_err(|_| IntakeError::Closed)?;
        Ok(outdated)
    }

    /// Reports that a pod's stream has ended. If the queue is full the report is lost, and the pod
    /// goes stale instead.
    #[cfg(feature = "grpc")]
    pub(super) fn disconnected(&self, pod: PodName) {
        let messages = vec![SourceMessage::Disconnected];
        let _ = self.queue.try_send(QueuedMessages { pod, messages, _items: None });
    }
}

/// How many items the messages hold. A report with more than the whole queue may have counts as
/// that much.
fn item_count(messages: &[SourceMessage]) -> u32 {
    let items = |message: &SourceMessage| match message {
        SourceMessage::Batch { batch, .. } | SourceMessage::Snapshot { batch, .. } => batch.items(),
        _ => 0,
    };
    items_of(messages.iter().map(items).sum())
}

fn items_of(items: usize) -> u32 {
    u32::try_from(items.min(MAX_QUEUED_ITEMS)).unwrap_or(u32::MAX)
}

/// What a sidecar should send.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum SnapshotRequest {
    /// A snapshot; hashes suffice where the router knows their tokens.
    Any,
    /// A snapshot with the tokens of every block.
    WithTokens,
}

/// Pods whose sidecar should send a snapshot.
pub(super) struct SnapshotRequests {
    pods: Mutex<BTreeMap<PodName, SnapshotRequest>>,
    changed: watch::Sender<()>,
}

impl Default for SnapshotRequests {
    fn default() -> Self {
        Self { pods: Mutex::default(), changed: watch::Sender::new(()) }
    }
}

impl SnapshotRequests {
    fn pods(&self) -> MutexGuard<'_, BTreeMap<PodName, SnapshotRequest>> {
        self.pods.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn request(&self, pod: &PodName, request: SnapshotRequest) {
        let mut pods = self.pods();
        let pending = pods.entry(Arc::clone(pod)).or_insert(request);
        *pending = request.max(*pending);
        drop(pods);
        self.changed.send_replace(());
    }

    /// Removes the request for a pod, which the caller must then pass on.
    pub(super) fn take(&self, pod: &str) -> Option<SnapshotRequest> {
        self.pods().remove(pod)
    }

    #[cfg(feature = "grpc")]
    pub(super) fn changes(&self) -> watch::Receiver<()> {
        self.changed.subscribe()
    }
}
