//! What one thread decides with: its handles to the index, reused buffers, and the speculative
//! insert of its last plan.
//!
//! An engine reports a prompt's blocks only when it has computed them. Until then, a second request
//! with the same prefix would find it on no pod and might go elsewhere. So every plan inserts the
//! blocks that its pods are about to compute; the insert expires unless events confirm it.
//!
//! Two threads that decide at the same moment both find a new prefix on no pod. A caller with
//! several threads therefore takes a lock on [`SpeculativeInsert::first_missing`], asks whether the
//! plan has lost the race ([`DecisionState::has_lost_race`]), and commits under the lock, or
//! decides again.

use std::fmt;
use std::sync::Arc;

use wornpath_blocks::BlockHash;
use wornpath_index::{BlockLocation, Depths, Index, IndexReader, IndexWriter, Moment, PodId};

use crate::fleet::Fleet;
use crate::rng::Rng;
use crate::selector::SelectionBuffers;
use crate::slot::BlockHashes;

/// What one thread decides with: its handles to the index, and reused buffers.
#[derive(Debug)]
pub struct DecisionState {
    pub(crate) index: Index,
    pub(crate) reader: IndexReader,
    writer: IndexWriter,
    /// The insert of the last plan, until it is committed or taken.
    pending: SpeculativeInsert,
    history: Option<Arc<dyn RoutingHistory>>,
    effects: Effects,
    pub(crate) scratch: DecisionScratch,
}

/// Whether decisions count.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Effects {
    /// Plans reserve load, and become speculative inserts.
    Real,
    /// Plans change nothing.
    None,
}

/// Buffers that decisions reuse.
#[derive(Debug, Default)]
pub(crate) struct DecisionScratch {
    pub(crate) answer: Depths,
    /// The number of leading blocks that the index has for each pod, by its slot in the index.
    pub(crate) held: Vec<u32>,
    /// The same, less what has faded since the pod's events stopped.
    pub(crate) depths: Vec<u32>,
    pub(crate) selection: SelectionBuffers,
    pub(crate) holdings: Vec<BlockLocation>,
}

impl DecisionState {
    /// The state of one thread that decides.
    #[must_use]
    pub fn new(index: &Index) -> Self {
        Self::build(index, None)
    }

    /// The same, with a record of what was sent to pods without events.
    #[must_use]
    pub fn with_history(index: &Index, history: Arc<dyn RoutingHistory>) -> Self {
        Self::build(index, Some(history))
    }

    /// A state whose decisions change nothing: their plans reserve no load and insert nothing. For
    /// comparisons and explanations.
    #[must_use]
    pub fn rehearsing(index: &Index) -> Self {
        Self { effects: Effects::None, ..Self::build(index, None) }
    }

    pub(crate) fn has_effects(&self) -> bool {
        self.effects == Effects::Real
    }

    fn build(index: &Index, history: Option<Arc<dyn RoutingHistory>>) -> Self {
        Self {
            effects: Effects::Real,
            index: index.clone(),
            reader: index.reader(),
            writer: index.writer(),
            pending: SpeculativeInsert::new(history.clone()),
            history,
            scratch: DecisionScratch::default(),
        }
    }

    /// Commits the speculative insert of the last plan. The next decision does so first; other
    /// threads see the insert only once it is committed.
    pub fn commit_pending(&mut self) {
        self.pending.write(&mut self.writer);
    }

    /// Takes the speculative insert of the last plan, for callers that check for a race before they
    /// commit it.
    #[must_use]
    pub fn take_pending(&mut self) -> Option<SpeculativeInsert> {
        (!self.pending.is_empty()).then(|| self.pending.take())
    }

    /// Whether another thread has sent a request with the same prefix to a pod since the plan was
    /// made. A new decision will find it there.
    #[must_use]
    pub fn has_lost_race<L>(&mut self, insert: &SpeculativeInsert<L>) -> bool {
        insert.has_lost_race(&mut self.reader, &mut self.scratch.answer)
    }

    /// Commits an insert, then releases its lock.
    pub fn commit<L>(&mut self, mut insert: SpeculativeInsert<L>) {
        insert.write(&mut self.writer);
        let (buffers, _lock) = insert.unlock();
        if self.pending.is_empty() {
            self.pending = buffers;
        }
    }

    /// Adds a pod to the speculative insert of the plan that is being made.
    pub(crate) fn expect(&mut self, pod: PodId, blocks: &BlockHashes, expires: Moment) {
        self.pending.add(pod, blocks, &self.scratch.held, expires);
    }

    /// Rolls back what was committed for a prompt that its pod has refused.
    pub fn rollback(&mut self, pod: PodId, chain: &[BlockHash]) {
        rollback(self.history.as_deref(), &mut self.writer, pod, chain);
    }

    /// The committed insert of a prompt that its pod has refused, for callers that roll back a long
    /// prompt on another thread.
    #[must_use]
    pub fn committed(&self, pod: PodId, chain: &[BlockHash]) -> SpeculativeInsert {
        SpeculativeInsert::committed(pod, chain, self.history.clone())
    }

    /// Whether events have confirmed by now that a pod holds a block and the blocks before it,
    /// which was speculative when a plan was made.
    #[must_use]
    pub fn is_confirmed(&mut self, pod: PodId, block: BlockHash) -> bool {
        self.reader.is_confirmed(pod, block, &mut self.scratch.answer)
    }

    /// Removes the speculative blocks that expired before `now` without confirmation, and returns
    /// their number. One thread calls it now and then.
    pub fn expire(&mut self, now: Moment) -> usize {
        self.commit_pending();
        self.writer.expire(now)
    }
}

/// The inputs of a decision besides the request. Time and randomness are the caller's, so that
/// equal inputs give equal decisions.
#[derive(Debug)]
pub struct DecisionEnv<'a> {
    /// The pods.
    pub fleet: &'a Fleet,
    /// The state of this thread.
    pub state: &'a mut DecisionState,
    /// The time, on the caller's clock.
    pub now: Moment,
    /// The source of randomness.
    pub rng: &'a mut Rng,
}

/// A prompt that is sent to a pod.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SentChain<'a> {
    /// The hashes of its blocks.
    pub blocks: &'a [BlockHash],
    /// How many of them the pod held when it was decided.
    pub held: usize,
    /// Tokens per block.
    pub block_tokens: usize,
    /// Until when the pod is expected to hold them, unless events confirm it.
    pub expires: Moment,
}

/// A record of what was sent: pods without cache events have their caches approximated from it, and
/// other routers may want to know it.
pub trait RoutingHistory: fmt::Debug + Send + Sync {
    /// Records that a prompt is sent to a pod. Returns whether the pod is one without events; its
    /// blocks are in the index then.
    fn sent(&self, writer: &mut IndexWriter, pod: PodId, chain: SentChain<'_>) -> bool;

    /// Removes a prompt that the pod has refused. Returns whether it was recorded.
    fn refused(&self, writer: &mut IndexWriter, pod: PodId, chain: &[BlockHash]) -> bool;
}

/// The speculative insert of one plan, not yet in the index.
///
/// `commit` writes it. Dropping it uncommitted is its rollback: the index never learns of it. `L`
/// is the lock under which it is committed, if any; it is released after the commit.
#[derive(Debug)]
pub struct SpeculativeInsert<L = ()> {
    chain: Vec<BlockHash>,
    block_tokens: usize,
    /// The pods of the plan, each with the number of leading blocks that it held already.
    pods: Vec<(PodId, usize)>,
    /// The most leading blocks that any pod held. Another thread may have been committing just
    /// then, so that a part of its insert counts as held.
    deepest: usize,
    expires: Moment,
    history: Option<Arc<dyn RoutingHistory>>,
    lock: Option<L>,
}

impl SpeculativeInsert {
    pub(crate) const fn new(history: Option<Arc<dyn RoutingHistory>>) -> Self {
        Self {
            chain: Vec::new(),
            block_tokens: 0,
            pods: Vec::new(),
            deepest: 0,
            expires: Moment::ZERO,
            history,
            lock: None,
        }
    }

    /// The insert that was committed for a pod's prompt, to be rolled back on another thread.
    pub(crate) fn committed(
        pod: PodId,
        chain: &[BlockHash],
        history: Option<Arc<dyn RoutingHistory>>,
    ) -> Self {
        let chain = chain.to_vec();
        Self { pods: vec![(pod, chain.len())], chain, ..Self::new(history) }
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.pods.is_empty()
    }

    /// Takes the insert out and leaves an empty one.
    pub(crate) fn take(&mut self) -> Self {
        let history = self.history.clone();
        std::mem::replace(self, Self::new(history))
    }

    /// Adds a pod of the plan. All pods of a plan get the same chain, and the index has `held` of it.
    pub(crate) fn add(&mut self, pod: PodId, blocks: &BlockHashes, held: &[u32], expires: Moment) {
        if self.is_empty() {
            self.block_tokens = blocks.block_tokens;
            self.chain.clear();
            self.chain.extend_from_slice(&blocks.chain);
            self.deepest = held.iter().copied().max().unwrap_or(0) as usize;
            self.expires = expires;
        }
        let held = held.get(pod.slot().position()).copied().unwrap_or(0);
        self.pods.push((pod, held as usize));
    }

    /// Attaches the lock on [`Self::first_missing`], to be released after the commit.
    #[must_use]
    pub fn with_lock<L>(self, lock: Option<L>) -> SpeculativeInsert<L> {
        let Self { chain, block_tokens, pods, deepest, expires, history, lock: _ } = self;
        SpeculativeInsert { chain, block_tokens, pods, deepest, expires, history, lock }
    }
}

impl<L> SpeculativeInsert<L> {
    /// The first block that the plan's first pod has to compute. Threads that commit inserts with
    /// the same block one after the other, and decide a plan that has lost the race again, send
    /// requests with one new prefix to one pod.
    #[must_use]
    pub fn first_missing(&self) -> Option<BlockHash> {
        let (_, held) = self.pods.first()?;
        self.chain.get(*held).copied()
    }

    /// Whether a pod is now expected to hold more of the chain than any did when the plan was made.
    /// That may be the plan's own pod: then it has less to compute than the plan assumes.
    pub(crate) fn has_lost_race(&self, reader: &mut IndexReader, depths: &mut Depths) -> bool {
        let Some(block) = self.chain.get(self.deepest) else { return false };
        reader.lookup(std::slice::from_ref(block), depths);
        depths.deepest().is_some()
    }

    /// Writes the insert to the index.
    pub fn commit(mut self, index: &Index) {
        self.write(&mut index.writer());
    }

    /// Removes a committed insert from the index, as far as no other request relies on it: the pod
    /// has refused the prompt and computed none of it.
    pub fn rollback(self, index: &Index) {
        let mut writer = index.writer();
        for (pod, _) in &self.pods {
            rollback(self.history.as_deref(), &mut writer, *pod, &self.chain);
        }
    }

    /// Writes the insert with the caller's writer, and empties it; its buffers can be used again.
    pub(crate) fn write(&mut self, writer: &mut IndexWriter) {
        let Self { chain: blocks, block_tokens, pods, expires, history, .. } = self;
        for (pod, held) in pods.drain(..) {
            let chain = SentChain { blocks, held, block_tokens: *block_tokens, expires: *expires };
            let is_recorded =
                history.as_ref().is_some_and(|history| history.sent(writer, pod, chain));
            if !is_recorded {
                // Fails for a pod that was removed meanwhile or is at its cap: nothing is inserted.
                let _ = writer.insert_speculative_after(pod, blocks, held, *expires);
            }
        }
    }

    /// The emptied insert, whose buffers the next plan can use, and its lock.
    pub(crate) fn unlock(self) -> (SpeculativeInsert, Option<L>) {
        let Self { chain, block_tokens, pods, deepest, expires, history, lock } = self;
        let buffers =
            SpeculativeInsert { chain, block_tokens, pods, deepest, expires, history, lock: None };
        (buffers, lock)
    }
}

/// Removes what was inserted for one pod and prompt.
pub(crate) fn rollback(
    history: Option<&dyn RoutingHistory>,
    writer: &mut IndexWriter,
    pod: PodId,
    chain: &[BlockHash],
) {
    if !history.is_some_and(|history| history.refused(writer, pod, chain)) {
        // Fails for a pod that was removed: nothing of it is in the index.
        let _ = writer.rollback(pod, chain);
    }
}
