//! The pods that events are about, and the sources that feed them.
//!
//! Configuration or discovery adds and removes pods, an event never does: a message about an
//! unknown pod is counted and has no effect. Each pod has a lock of its own, so that sources of
//! different pods do not wait for each other. A source that ends is detached from every pod. A pod
//! that is removed and added again under the same name is a new pod: sources that were made for the
//! earlier one do not feed it.

use crate::checkpoint::{self, CheckpointSize, PodCheckpoint};
use crate::feed::{FeedRules, FeedStatus, Resumed, SourceId};
use crate::message::{Capabilities, SourceMessage, SourceQuery};
use crate::pod::{PodFeed, ServedModel};
use crate::transport::{PodName, SourceSignal};
use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::MutexGuard;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use tokio::sync::mpsc;
use wornpath_index::{Index, IndexWriter, Moment, NoSlot, PodId};

/// The pods of one index.
pub struct EventPods {
    index: Index,
    rules: Mutex<FeedRules>,
    pods: Mutex<BTreeMap<PodName, Arc<Mutex<PodEntry>>>>,
    unknown_pod_messages: AtomicU64,
    /// Numbers pods and transports in the order in which they are added.
    generations: AtomicU64,
    /// Records of pods that have not been added yet.
    checkpoints: Mutex<BTreeMap<String, PodCheckpoint>>,
}

struct PodEntry {
    pod: PodFeed,
    subscriptions: Vec<Subscription>,
    errors: SourceErrors,
    generation: u64,
}

/// A source as one pod sees it.
struct Subscription {
    id: SourceId,
    source: Arc<Source>,
}

/// A transport that is attached to the pods.
pub struct AttachedSource {
    pub(crate) source: Arc<Source>,
    /// Queries that the transport is to send.
    pub queries: mpsc::Receiver<(PodName, SourceQuery)>,
}

/// An attached transport, as the pods see it.
pub(crate) struct Source {
    name: Arc<str>,
    capabilities: Capabilities,
    queries: mpsc::Sender<(PodName, SourceQuery)>,
    /// If set, it feeds only pods of an earlier generation.
    generation: Option<u64>,
    has_ended: AtomicBool,
}

impl Source {
    fn may_feed(&self, entry: &PodEntry) -> bool {
        let is_older = |generation| entry.generation < generation;
        !self.has_ended.load(Ordering::Relaxed) && self.generation.is_none_or(is_older)
    }
}

/// The status of one pod.
#[derive(Clone, Debug)]
pub struct PodStatus {
    /// The pod.
    pub pod: PodName,
    /// The transports that feed it.
    pub sources: Vec<Arc<str>>,
    /// The transports that should feed it and are unreachable.
    pub errors: Vec<SourceError>,
    /// The state of its events.
    pub status: FeedStatus,
}

/// Capacity of a transport's query queue. A query that does not fit is lost, and times out.
const MAX_QUERIES: usize = 4096;

impl EventPods {
    /// Has no pods yet.
    #[must_use]
    pub fn new(index: Index, rules: FeedRules) -> Self {
        Self {
            index,
            rules: Mutex::new(rules),
            pods: Mutex::default(),
            unknown_pod_messages: AtomicU64::new(0),
            generations: AtomicU64::new(0),
            checkpoints: Mutex::default(),
        }
    }

    /// Keeps records for pods that are added from now on, and drops those kept before.
    pub fn load_checkpoint(&self, records: Vec<PodCheckpoint>) {
        let by_name = records.into_iter().map(|record| (record.pod.clone(), record));
        *lock(&self.checkpoints) = by_name.collect();
    }

    /// The record of a pod, unless its state is too uncertain to be worth one.
    #[must_use]
    pub fn checkpoint(&self, name: &str) -> Option<PodCheckpoint> {
        let entry = self.get(name)?;
        let entry = lock(&entry);
        entry.pod.checkpoint(name).ok().flatten()
    }

    /// Writes a checkpoint of all pods, which replaces the file.
    ///
    /// # Errors
    /// The file system's. The previous file is unchanged then.
    pub fn write_checkpoint(&self, path: &Path) -> io::Result<CheckpointSize> {
        checkpoint::write(path, self.names().iter().map(|name| self.checkpoint(name)))
    }

    /// Whether the state of a pod comes from a checkpoint and no source has confirmed it yet.
    #[must_use]
    pub fn is_unconfirmed(&self, name: &str) -> bool {
        let resumed =
            self.get(name).and_then(|entry| lock(&entry).pod.status(Moment::ZERO).resumed);
        resumed == Some(Resumed::Waiting)
    }

    /// The names of all pods, in order.
    #[must_use]
    pub fn names(&self) -> Vec<PodName> {
        lock(&self.pods).keys().map(Arc::clone).collect()
    }

    /// The index that the pods are in.
    #[must_use]
    pub fn index(&self) -> &Index {
        &self.index
    }

    /// Adds a pod. One that is there already stays as it is.
    ///
    /// # Errors
    /// The index has no slot left.
    pub fn add(&self, name: &PodName, model: ServedModel) -> Result<PodId, NoSlot> {
        let mut pods = lock(&self.pods);
        if let Some(entry) = pods.get(name) {
            return Ok(lock(entry).pod.id());
        }
        let id = self.index.add_pod()?;
        let rules = *lock(&self.rules);
        // It fails only for a pod that was removed by its id, which no caller has yet.
        if let Ok(mut pod) = PodFeed::new(&self.index, id, model, rules) {
            if let Some(record) = lock(&self.checkpoints).remove(&**name) {
                let _ = pod.restore(&mut self.index.writer(), &record);
            }
            let entry = PodEntry {
                pod,
                subscriptions: Vec::new(),
                errors: SourceErrors::default(),
                generation: self.next_generation(),
            };
            pods.insert(Arc::clone(name), Arc::new(Mutex::new(entry)));
        }
        Ok(id)
    }

    /// Changes the rules, for existing pods too.
    pub fn set_rules(&self, rules: FeedRules) {
        // The rules for new pods come first: a pod that is added meanwhile is among the existing
        // ones below.
        *lock(&self.rules) = rules;
        for (_, entry) in self.all() {
            lock(&entry).pod.set_rules(rules);
        }
    }

    /// Changes the model by which a pod's events are translated. If it differs, the pod's state is
    /// fetched again.
    pub fn set_served_model(&self, name: &str, model: ServedModel, now: Moment) {
        if let Some(entry) = self.get(name) {
            // It fails only for a pod that has left the index.
            let _ = lock(&entry).pod.set_served_model(&mut self.index.writer(), model, now);
        }
    }

    /// Removes a pod, from the index too. Returns whether it was there.
    pub fn remove(&self, name: &str) -> bool {
        let removed = lock(&self.pods).remove(name);
        removed.is_some_and(|entry| self.index.remove_pod(lock(&entry).pod.id()))
    }

    /// Attaches a transport that feeds all pods, those added later too.
    #[must_use]
    pub fn attach(&self, name: &str, capabilities: Capabilities) -> AttachedSource {
        Self::attach_source(name, capabilities, None)
    }

    /// Attaches a transport that was made for the pods that exist now, and does not feed those
    /// added later.
    #[must_use]
    pub fn attach_to_existing(&self, name: &str, capabilities: Capabilities) -> AttachedSource {
        Self::attach_source(name, capabilities, Some(self.next_generation()))
    }

    fn attach_source(
        name: &str,
        capabilities: Capabilities,
        generation: Option<u64>,
    ) -> AttachedSource {
        let (sender, receiver) = mpsc::channel(MAX_QUERIES);
        let source = Source {
            name: name.into(),
            capabilities,
            queries: sender,
            generation,
            has_ended: AtomicBool::new(false),
        };
        AttachedSource { source: Arc::new(source), queries: receiver }
    }

    fn next_generation(&self) -> u64 {
        self.generations.fetch_add(1, Ordering::Relaxed)
    }

    /// Detaches a transport: no pod queries it any more, and its messages have no effect.
    pub(crate) fn detach(&self, writer: &mut IndexWriter, source: &Arc<Source>, now: Moment) {
        source.has_ended.store(true, Ordering::Relaxed);
        // A thread that has not seen the flag yet holds its pod's lock, so it is done before that
        // pod is unsubscribed.
        for (_, entry) in self.all() {
            lock(&entry).unsubscribe(writer, source, now);
        }
    }

    /// Handles a signal of a transport.
    pub fn handle(
        &self,
        writer: &mut IndexWriter,
        from: &AttachedSource,
        signal: SourceSignal,
        now: Moment,
    ) {
        let source = &from.source;
        match signal {
            SourceSignal::Pod(name, message) => {
                let entry = self.get(&name);
                if !entry.is_some_and(|entry| lock(&entry).handle(writer, source, message, now)) {
                    self.unknown_pod_messages.fetch_add(1, Ordering::Relaxed);
                }
            }
            SourceSignal::AllPods(message) => {
                for (_, entry) in self.all() {
                    let mut entry = lock(&entry);
                    if entry.subscriptions.iter().any(|one| one.source.name == source.name) {
                        entry.handle(writer, source, message.clone(), now);
                    }
                }
            }
        }
    }

    /// Runs the due timers of every pod, and hands queries to the transports.
    pub fn tick(&self, writer: &mut IndexWriter, now: Moment) {
        for (name, entry) in self.all() {
            let mut entry = lock(&entry);
            // The loop ends: a pod has no second query before the first is answered or has timed
            // out. An error means that the pod has left the index; a query that finds the queue
            // full times out.
            while let Ok(Some((id, query))) = entry.pod.tick(writer, now) {
                if let Some(subscription) = entry.subscriptions.iter().find(|one| one.id == id) {
                    let _ = subscription.source.queries.try_send((Arc::clone(&name), query));
                }
            }
        }
    }

    /// The status of every pod, by name.
    #[must_use]
    pub fn status(&self, now: Moment) -> Vec<PodStatus> {
        let status = |(pod, entry): (PodName, Arc<Mutex<PodEntry>>)| {
            let entry = lock(&entry);
            let sources = entry.subscriptions.iter().map(|one| Arc::clone(&one.source.name));
            PodStatus {
                pod,
                sources: sources.collect(),
                errors: entry.errors.all().to_vec(),
                status: entry.pod.status(now),
            }
        };
        self.all().into_iter().map(status).collect()
    }

    /// How many messages were about a pod that is not known.
    #[must_use]
    pub fn unknown_pod_messages(&self) -> u64 {
        self.unknown_pod_messages.load(Ordering::Relaxed)
    }

    fn get(&self, name: &str) -> Option<Arc<Mutex<PodEntry>>> {
        lock(&self.pods).get(name).map(Arc::clone)
    }

    fn all(&self) -> Vec<(PodName, Arc<Mutex<PodEntry>>)> {
        let pods = lock(&self.pods);
        pods.iter().map(|(name, entry)| (Arc::clone(name), Arc::clone(entry))).collect()
    }
}

impl PodEntry {
    /// Returns whether the source may feed this pod.
    fn handle(
        &mut self,
        writer: &mut IndexWriter,
        source: &Arc<Source>,
        message: SourceMessage,
        now: Moment,
    ) -> bool {
        if !source.may_feed(self) {
            return false;
        }
        match message {
            SourceMessage::Unreachable(reason) => {
                // A source that was never connected is not subscribed, so the feed does not wait
                // for it.
                self.errors.set(&source.name, reason);
                return true;
            }
            SourceMessage::Connected => self.errors.clear(&source.name),
            _ => {}
        }
        let id = self.subscribe(source);
        // It fails only for a pod that has left the index.
        let _ = self.pod.handle(writer, id, message, now);
        true
    }

    /// The id of the source for this pod, which a transport that was restarted under the same name
    /// keeps.
    fn subscribe(&mut self, source: &Arc<Source>) -> SourceId {
        let is_it = |one: &&mut Subscription| one.source.name == source.name;
        if let Some(subscription) = self.subscriptions.iter_mut().find(is_it) {
            if !Arc::ptr_eq(&subscription.source, source) {
                subscription.source = Arc::clone(source);
            }
            return subscription.id;
        }
        let id = self.pod.add_source(source.capabilities);
        self.subscriptions.push(Subscription { id, source: Arc::clone(source) });
        id
    }

    /// Ends the subscription, unless another source of the same name has taken it over.
    fn unsubscribe(&mut self, writer: &mut IndexWriter, source: &Arc<Source>, now: Moment) {
        self.errors.clear(&source.name);
        let is_it = |one: &Subscription| Arc::ptr_eq(&one.source, source);
        if let Some(at) = self.subscriptions.iter().position(is_it) {
            let subscription = self.subscriptions.remove(at);
            let _ = self.pod.remove_source(writer, subscription.id, now);
        }
    }
}

/// Ignores poisoning: a thread that panicked under the lock left a pod whose next digest or replay
/// corrects it.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// An unreachable source.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SourceError {
    /// The transport's name.
    pub source: Arc<str>,
    /// Why it is unreachable.
    pub reason: String,
}

/// The errors of one pod's sources, at most one per source.
#[derive(Default)]
pub(crate) struct SourceErrors(Vec<SourceError>);

impl SourceErrors {
    pub(crate) fn set(&mut self, source: &Arc<str>, reason: String) {
        self.clear(source);
        self.0.push(SourceError { source: Arc::clone(source), reason });
    }

    pub(crate) fn clear(&mut self, source: &str) {
        self.0.retain(|error| *error.source != *source);
    }

    pub(crate) fn all(&self) -> &[SourceError] {
        &self.0
    }
}
