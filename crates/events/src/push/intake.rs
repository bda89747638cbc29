//! What HTTP posts and gRPC streams share: who may report on a pod, and the bounded queue to the
//! index.

use super::access::{PodTokens, PushAccess};
use super::epochs::LatestEpochs;
use crate::message::{Epoch, SourceMessage};
use crate::transport::PodName;
use std::collections::BTreeSet;
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
    let total: usize = messages.iter().map(items).sum();
    u32::try_from(total.min(MAX_QUEUED_ITEMS)).unwrap_or(u32::MAX)
}

/// Pods whose sidecar should send a snapshot.
pub(super) struct SnapshotRequests {
    pods: Mutex<BTreeSet<PodName>>,
    changed: watch::Sender<()>,
}

impl Default for SnapshotRequests {
    fn default() -> Self {
        Self { pods: Mutex::default(), changed: watch::Sender::new(()) }
    }
}

impl SnapshotRequests {
    fn pods(&self) -> MutexGuard<'_, BTreeSet<PodName>> {
        self.pods.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn request(&self, pod: &PodName) {
        self.pods().insert(Arc::clone(pod));
        self.changed.send_replace(());
    }

    /// Removes the request for a pod. Returns whether there was one, which the caller must then
    /// pass on.
    pub(super) fn take(&self, pod: &str) -> bool {
        self.pods().remove(pod)
    }

    #[cfg(feature = "grpc")]
    pub(super) fn changes(&self) -> watch::Receiver<()> {
        self.changed.subscribe()
    }
}
