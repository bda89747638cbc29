//! All pods that events are about, and the sources that speak of them.
//!
//! Pods come and go by the fleet's configuration or discovery, never by an event: what is said of a pod
//! that is not known here is counted and has no effect. Each pod has a lock of its own, so that sources of
//! different pods do not wait for each other. A source that ends leaves every pod, and whoever fed a pod that
//! went is a stranger to the next one of its name.

use crate::checkpoint::PodCheckpoint;
use crate::feed::{FeedRules, FeedStatus, Resumed, SourceId};
use crate::message::{Capabilities, SourceMessage, SourceQuery};
use crate::pod::{PodFeed, ServedModel};
use crate::source_error::{SourceError, SourceErrors};
use crate::transport::{PodName, SourceSignal};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::mpsc;
use wornpath_index::{Index, IndexWriter, Moment, NoSlot, PodId};

/// The pods of one index.
pub struct EventPods {
    index: Index,
    rules: Mutex<FeedRules>,
    pods: Mutex<BTreeMap<PodName, Arc<Mutex<PodEntry>>>>,
    strangers: AtomicU64,
    /// Counts pods and transports as they come.
    comings: AtomicU64,
    /// What was written down of pods that have not come yet.
    recalled: Mutex<BTreeMap<String, PodCheckpoint>>,
}

struct PodEntry {
    pod: PodFeed,
    sources: Vec<Subscription>,
    troubles: SourceErrors,
    /// Its number among all who came.
    came: u64,
}

/// A source as one pod sees it.
struct Subscription {
    id: SourceId,
    voice: Arc<Source>,
}

/// A transport's place among the sources.
pub struct AttachedPod {
    pub(crate) voice: Arc<Source>,
    /// What the transport is to ask.
    pub asks: mpsc::Receiver<(PodName, SourceQuery)>,
}

/// Somebody who speaks of pods.
pub(crate) struct Source {
    name: Arc<str>,
    abilities: Capabilities,
    asks: mpsc::Sender<(PodName, SourceQuery)>,
    /// If it speaks only of pods that came before it, its number among all who came.
    came: Option<u64>,
    is_over: AtomicBool,
}

impl Source {
    fn may_speak_of(&self, known: &PodEntry) -> bool {
        !self.is_over.load(Ordering::Relaxed) && self.came.is_none_or(|came| known.came < came)
    }
}

/// The status of one pod.
#[derive(Clone, Debug)]
pub struct PodStatus {
    /// The pod.
    pub pod: PodName,
    /// Where its events come from.
    pub sources: Vec<Arc<str>>,
    /// From where they cannot be had, and why.
    pub troubles: Vec<SourceError>,
    /// How its events are.
    pub status: FeedStatus,
}

/// Questions that wait for one transport. A pod asks once a second, and asks again if this is lost.
const MOST_ASKS: usize = 4096;

impl EventPods {
    /// No pods yet.
    #[must_use]
    pub fn new(index: Index, rules: FeedRules) -> Self {
        let (pods, recalled) = (Mutex::default(), Mutex::default());
        let (strangers, comings) = (AtomicU64::new(0), AtomicU64::new(0));
        Self { index, rules: Mutex::new(rules), pods, strangers, comings, recalled }
    }

    /// Keeps what was written down, for the pods that come from now on, in the place of what was kept before.
    pub fn recall(&self, records: Vec<PodCheckpoint>) {
        let by_name = records.into_iter().map(|record| (record.pod.clone(), record));
        *lock(&self.recalled) = by_name.collect();
    }

    /// What is worth writing down of a pod, if anything is.
    #[must_use]
    pub fn record(&self, name: &str) -> Option<PodCheckpoint> {
        let known = self.get(name)?;
        let known = lock(&known);
        known.pod.record(name).ok().flatten()
    }

    /// Whether what is there of a pod is a checkpoint's, and not confirmed yet.
    #[must_use]
    pub fn is_only_recalled(&self, name: &str) -> bool {
        let recalled =
            self.get(name).and_then(|known| lock(&known).pod.status(Moment::ZERO).recalled);
        recalled == Some(Resumed::Waiting)
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

    /// Takes a pod in; if it is there already, as it is.
    ///
    /// # Errors
    /// The index has no slot left.
    pub fn add(&self, name: &PodName, serving: ServedModel) -> Result<PodId, NoSlot> {
        let mut pods = lock(&self.pods);
        if let Some(known) = pods.get(name) {
            return Ok(lock(known).pod.id());
        }
        let (id, rules) = (self.index.add_pod()?, *lock(&self.rules));
        // Only a pod that was removed by its id can be gone, and nobody has the id yet.
        if let Ok(mut pod) = PodFeed::new(&self.index, id, serving, rules) {
            if let Some(record) = lock(&self.recalled).remove(&**name) {
                let _ = pod.recall(&mut self.index.writer(), &record);
            }
            let known = PodEntry {
                pod,
                sources: Vec::new(),
                troubles: SourceErrors::default(),
                came: self.comes(),
            };
            pods.insert(Arc::clone(name), Arc::new(Mutex::new(known)));
        }
        Ok(id)
    }

    /// Goes by other rules from now on, also for the pods that are there.
    pub fn set_rules(&self, rules: FeedRules) {
        // First for those who come: whoever does so meanwhile is among those who are there.
        *lock(&self.rules) = rules;
        for (_, known) in self.all() {
            lock(&known).pod.set_rules(rules);
        }
    }

    /// Understands what is said of a pod otherwise from now on. If that is a change, all that was said is wanted again.
    pub fn serve(&self, name: &str, serving: ServedModel, now: Moment) {
        if let Some(known) = self.get(name) {
            // An error says that the pod has left the index.
            let _ = lock(&known).pod.serve(&mut self.index.writer(), serving, now);
        }
    }

    /// Takes a pod out, of the index too. Whether it was there.
    pub fn remove(&self, name: &str) -> bool {
        let removed = lock(&self.pods).remove(name);
        removed.is_some_and(|known| self.index.remove_pod(lock(&known).pod.id()))
    }

    /// A place for a transport that speaks of all pods, whenever they come.
    #[must_use]
    pub fn attach(&self, name: &str, abilities: Capabilities) -> AttachedPod {
        Self::place(name, abilities, None)
    }

    /// A place for a transport that was made for pods that are there: those that come later are another's.
    #[must_use]
    pub fn attach_to_present(&self, name: &str, abilities: Capabilities) -> AttachedPod {
        Self::place(name, abilities, Some(self.comes()))
    }

    fn place(name: &str, abilities: Capabilities, came: Option<u64>) -> AttachedPod {
        let (sender, asks) = mpsc::channel(MOST_ASKS);
        let is_over = AtomicBool::new(false);
        let voice = Source { name: name.into(), abilities, asks: sender, came, is_over };
        AttachedPod { voice: Arc::new(voice), asks }
    }

    fn comes(&self) -> u64 {
        self.comings.fetch_add(1, Ordering::Relaxed)
    }

    /// A transport ends: no pod asks it any more, and what it may still say is a stranger's.
    pub(crate) fn detach(&self, writer: &mut IndexWriter, voice: &Arc<Source>, now: Moment) {
        voice.is_over.store(true, Ordering::Relaxed);
        // Whoever did not see that yet holds the lock of its pod, so it is over before that pod's turn.
        for (_, known) in self.all() {
            lock(&known).leave(writer, voice, now);
        }
    }

    /// Takes in what a transport heard.
    pub fn hear(
        &self,
        writer: &mut IndexWriter,
        source: &AttachedPod,
        heard: SourceSignal,
        now: Moment,
    ) {
        let voice = &source.voice;
        match heard {
            SourceSignal::Of(name, said) => {
                let known = self.get(&name);
                if !known.is_some_and(|known| lock(&known).hear(writer, voice, said, now)) {
                    self.strangers.fetch_add(1, Ordering::Relaxed);
                }
            }
            SourceSignal::OfAll(said) => {
                for (_, known) in self.all() {
                    let mut known = lock(&known);
                    if known.sources.iter().any(|line| line.voice.name == voice.name) {
                        known.hear(writer, voice, said.clone(), now);
                    }
                }
            }
        }
    }

    /// Does what is due for every pod, and hands questions to the transports.
    pub fn tick(&self, writer: &mut IndexWriter, now: Moment) {
        for (name, known) in self.all() {
            let mut known = lock(&known);
            // A pod that has left the index is asked nothing more; a full queue is as good as a loss. It ends:
            // nothing else is asked of a pod before an ask is answered or has timed out.
            while let Ok(Some((source, ask))) = known.pod.tick(writer, now) {
                if let Some(line) = known.sources.iter().find(|line| line.id == source) {
                    let _ = line.voice.asks.try_send((Arc::clone(&name), ask));
                }
            }
        }
    }

    /// Every pod's status, by name.
    #[must_use]
    pub fn status(&self, now: Moment) -> Vec<PodStatus> {
        let status = |(pod, known): (PodName, Arc<Mutex<PodEntry>>)| {
            let known = lock(&known);
            let sources = known.sources.iter().map(|line| Arc::clone(&line.voice.name)).collect();
            let troubles = known.troubles.all().to_vec();
            PodStatus { pod, sources, troubles, status: known.pod.status(now) }
        };
        self.all().into_iter().map(status).collect()
    }

    /// How often something was said of a pod that is not known.
    #[must_use]
    pub fn strangers(&self) -> u64 {
        self.strangers.load(Ordering::Relaxed)
    }

    fn get(&self, name: &str) -> Option<Arc<Mutex<PodEntry>>> {
        lock(&self.pods).get(name).map(Arc::clone)
    }

    fn all(&self) -> Vec<(PodName, Arc<Mutex<PodEntry>>)> {
        let pods = lock(&self.pods);
        pods.iter().map(|(name, known)| (Arc::clone(name), Arc::clone(known))).collect()
    }
}

impl PodEntry {
    /// Whether whoever says it may speak of this pod.
    fn hear(
        &mut self,
        writer: &mut IndexWriter,
        voice: &Arc<Source>,
        said: SourceMessage,
        now: Moment,
    ) -> bool {
        if !voice.may_speak_of(self) {
            return false;
        }
        match said {
            SourceMessage::Unreachable(reason) => {
                // Whether it can be asked matters only once it was there.
                self.troubles.note(&voice.name, reason);
                return true;
            }
            SourceMessage::Connected => self.troubles.clear(&voice.name),
            _ => {}
        }
        let id = self.meet(voice);
        // An error says that the pod has left the index: then nothing said of it matters.
        let _ = self.pod.hear(writer, id, said, now);
        true
    }

    /// The source as this pod knows it: new, known, or started again under the same name.
    fn meet(&mut self, voice: &Arc<Source>) -> SourceId {
        if let Some(line) = self.sources.iter_mut().find(|line| line.voice.name == voice.name) {
            if !Arc::ptr_eq(&line.voice, voice) {
                line.voice = Arc::clone(voice);
            }
            return line.id;
        }
        let id = self.pod.add_source(voice.abilities);
        self.sources.push(Subscription { id, voice: Arc::clone(voice) });
        id
    }

    /// The source ends, unless another has its name and place already.
    fn leave(&mut self, writer: &mut IndexWriter, voice: &Arc<Source>, now: Moment) {
        self.troubles.clear(&voice.name);
        let is_it = |line: &Subscription| Arc::ptr_eq(&line.voice, voice);
        if let Some(at) = self.sources.iter().position(is_it) {
            let line = self.sources.remove(at);
            let _ = self.pod.remove_source(writer, line.id, now);
        }
    }
}

/// Whoever panicked with the lock left a pod that its next digest or replay puts right.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
