//! The values of one request, and the state of one thread that decides.

use std::fmt;
use std::sync::Arc;

use wornpath_blocks::BlockHash;
use wornpath_index::{BlockLocation, Depths, Index, IndexReader, IndexWriter, Moment, PodId};

use crate::fleet::Fleet;
use crate::request::Request;
use crate::rng::Rng;
use crate::selector::SelectionBuffers;
use crate::slot::Slots;
use crate::speculative_insert::{RoutingHistory, SpeculativeInsert, rollback};
use crate::values::BlockHashes;

/// One request's values, from its arrival to the end of its response. Made by
/// [`Profile::context`](crate::Profile::context) and usable with that profile only.
pub struct RoutingContext {
    pub(crate) request: Request,
    pub(crate) slots: Slots,
}

impl RoutingContext {
    /// The request.
    #[must_use]
    pub const fn request(&self) -> &Request {
        &self.request
    }

    /// Replaces the request and returns the last one. Buffers are kept, so a server that reuses
    /// contexts allocates little.
    pub fn reuse(&mut self, request: Request) -> Request {
        self.slots.clear();
        std::mem::replace(&mut self.request, request)
    }
}

impl fmt::Debug for RoutingContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RoutingContext").field("slots", &self.slots).finish_non_exhaustive()
    }
}

/// What one thread decides with: its handles to the index, and reused buffers.
#[derive(Debug)]
pub struct DecisionState {
    pub(crate) index: Index,
    pub(crate) reader: IndexReader,
    writer: IndexWriter,
    /// Of the last plan, until it is committed or taken.
    pending: SpeculativeInsert,
    history: Option<Arc<dyn RoutingHistory>>,
    pub(crate) scratch: DecisionScratch,
}

/// Buffers that decisions reuse.
#[derive(Debug, Default)]
pub(crate) struct DecisionScratch {
    pub(crate) answer: Depths,
    /// The number of leading blocks that each pod holds, by its slot in the index.
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

    fn build(index: &Index, history: Option<Arc<dyn RoutingHistory>>) -> Self {
        Self {
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
        self.pending.add(pod, blocks, &self.scratch.answer, expires);
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
