//! What belongs to one request, and what belongs to one deciding thread.

use std::fmt;
use std::sync::Arc;

use wornpath_blocks::BlockHash;
use wornpath_index::{BlockLocation, Depths, Index, IndexReader, IndexWriter, Moment, PodId};

use crate::fleet::{Candidate, Fleet};
use crate::request::Request;
use crate::rng::Rng;
use crate::slot::Slots;
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

    /// Makes the context another request's, and gives back the last one. Its buffers are kept, so a
    /// server that reuses contexts allocates little.
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

/// What one deciding thread has of the index, and its buffers.
#[derive(Debug)]
pub struct DecisionState {
    pub(crate) index: Index,
    pub(crate) reader: IndexReader,
    writer: IndexWriter,
    expected: PredictedBlocks,
    memory: Option<Arc<dyn RoutingHistory>>,
    pub(crate) scratch: DecisionScratch,
}

/// Whoever remembers what was sent to pods that say nothing of their caches.
pub trait RoutingHistory: fmt::Debug + Send + Sync {
    /// A plan sends a prompt to a pod, in blocks of so many tokens. Whether it is remembered, and is in the index by
    /// that.
    fn sent(
        &self,
        writer: &mut IndexWriter,
        pod: PodId,
        chain: &[BlockHash],
        block_tokens: usize,
    ) -> bool;
    /// The pod has refused it. Whether it was remembered.
    fn refused(&self, writer: &mut IndexWriter, pod: PodId, chain: &[BlockHash]) -> bool;
}

/// What the pods of the last plan will hold, not yet told to the index.
#[derive(Debug, Default)]
struct PredictedBlocks {
    chain: Vec<BlockHash>,
    block_tokens: usize,
    pods: Vec<Prediction>,
    frontier: Option<PredictionFrontier>,
}

/// A pod that will hold a chain, and how much of it the pod had when the plan was made.
#[derive(Clone, Copy, Debug)]
struct Prediction {
    pod: PodId,
    known: usize,
    expires: Moment,
}

/// How far a chain was known when a plan was made.
#[derive(Clone, Copy, Debug)]
struct PredictionFrontier {
    /// The position of the first block that the plan's first pod has to compute.
    own: usize,
    /// The position of the first block that nobody held; the end of the chain if there was none. Another
    /// thread may have been telling the index just then, so somebody may have been seen to hold a part
    /// of what it will.
    nobody: usize,
}

impl PredictedBlocks {
    /// The block that the plan's first pod begins with.
    fn frontier(&self) -> Option<BlockHash> {
        self.frontier.map(|frontier| self.chain[frontier.own])
    }

    /// Whether somebody will hold more of the chain than anybody did when the plan was made. That may be
    /// the plan's own pod: then it was thought to have more to compute than it has.
    fn is_beaten(&self, reader: &mut IndexReader, answer: &mut Depths) -> bool {
        let block = self.frontier.and_then(|frontier| self.chain.get(frontier.nobody));
        let Some(block) = block else { return false };
        reader.lookup(std::slice::from_ref(block), answer);
        answer.deepest().is_some()
    }

    fn tell(&mut self, memory: Option<&dyn RoutingHistory>, writer: &mut IndexWriter) {
        self.frontier = None;
        for Prediction { pod, known, expires } in self.pods.drain(..) {
            if memory.is_some_and(|it| it.sent(writer, pod, &self.chain, self.block_tokens)) {
                continue;
            }
            // A pod that has gone meanwhile, or that is at its cap, is simply not expected to hold it.
            let _ = writer.insert_speculative_after(pod, &self.chain, known, expires);
        }
    }
}

/// What the index is still to be told about a plan.
#[derive(Debug)]
pub struct PendingInsert {
    expected: PredictedBlocks,
    memory: Option<Arc<dyn RoutingHistory>>,
}

impl PendingInsert {
    /// The first block that the plan's first pod has to compute. Threads that tell of plans with the same frontier
    /// one after the other, and make a plan that was beaten anew, send requests with one new prefix to one pod.
    #[must_use]
    pub fn frontier(&self) -> Option<BlockHash> {
        self.expected.frontier()
    }

    /// As [`Desk::tell`], without a desk.
    pub fn tell(mut self, index: &Index) {
        self.expected.tell(self.memory.as_deref(), &mut index.writer());
    }
}

/// A prompt that its pod has refused, so that it computed nothing of it.
#[derive(Debug)]
pub struct PredictionRollback {
    pod: PodId,
    chain: Vec<BlockHash>,
    memory: Option<Arc<dyn RoutingHistory>>,
}

impl PredictionRollback {
    /// Takes back what the pod was expected to hold for this prompt alone.
    pub fn tell(self, index: &Index) {
        withdraw(self.memory.as_deref(), &mut index.writer(), (self.pod, &self.chain));
    }
}

fn withdraw(
    memory: Option<&dyn RoutingHistory>,
    writer: &mut IndexWriter,
    (pod, chain): (PodId, &[BlockHash]),
) {
    if !memory.is_some_and(|memory| memory.refused(writer, pod, chain)) {
        // Of a pod that has gone nothing is expected.
        let _ = writer.rollback(pod, chain);
    }
}

/// Buffers that a decision fills and the next one fills again.
#[derive(Debug, Default)]
pub(crate) struct DecisionScratch {
    pub(crate) answer: Depths,
    /// Blocks held, by the slot of the index.
    pub(crate) depths: Vec<u32>,
    pub(crate) candidates: Vec<Candidate>,
    pub(crate) keep: Vec<bool>,
    pub(crate) scores: Vec<f64>,
    pub(crate) totals: Vec<f64>,
    pub(crate) fallbacks: Vec<usize>,
    pub(crate) holdings: Vec<BlockLocation>,
}

impl DecisionState {
    /// A desk of its own for each thread that decides.
    #[must_use]
    pub fn new(index: &Index) -> Self {
        Self {
            index: index.clone(),
            reader: index.reader(),
            writer: index.writer(),
            expected: PredictedBlocks::default(),
            memory: None,
            scratch: DecisionScratch::default(),
        }
    }

    /// The same, with somebody who remembers.
    #[must_use]
    pub fn with_memory(index: &Index, memory: Arc<dyn RoutingHistory>) -> Self {
        Self { memory: Some(memory), ..Self::new(index) }
    }

    /// Tells the index what the pods of the last plan are expected to hold. The next decision of this
    /// desk does it first; other desks know of it only once it is told.
    pub fn settle(&mut self) {
        self.expected.tell(self.memory.as_deref(), &mut self.writer);
    }

    /// Whether another request with the same prefix was sent somewhere since the plan was made. Deciding again
    /// will find it there.
    #[must_use]
    pub fn is_beaten(&mut self, unsettled: &PendingInsert) -> bool {
        unsettled.expected.is_beaten(&mut self.reader, &mut self.scratch.answer)
    }

    /// Tells the index what was to be told.
    pub fn tell(&mut self, mut unsettled: PendingInsert) {
        unsettled.expected.tell(unsettled.memory.as_deref(), &mut self.writer);
        // Its buffers are good for the next plan.
        if self.expected.pods.is_empty() {
            self.expected = unsettled.expected;
        }
    }

    /// What [`Desk::settle`] would tell, for whoever asks first whether it is beaten.
    #[must_use]
    pub fn unsettled(&mut self) -> Option<PendingInsert> {
        if self.expected.pods.is_empty() {
            return None;
        }
        let expected = std::mem::take(&mut self.expected);
        Some(PendingInsert { expected, memory: self.memory.clone() })
    }

    /// Notes that a pod will hold a chain of blocks, which is the same for all pods of a plan.
    pub(crate) fn expect(&mut self, pod: PodId, blocks: &BlockHashes, expires: Moment) {
        let known = self.scratch.answer.depth(pod.slot());
        if self.expected.pods.is_empty() {
            let chain = &blocks.chain;
            self.expected.block_tokens = blocks.block_tokens;
            self.expected.chain.clear();
            self.expected.chain.extend_from_slice(chain);
            let nobody = self.scratch.answer.deepest().map_or(0, |level| level.depth);
            self.expected.frontier =
                (known < chain.len()).then_some(PredictionFrontier { own: known, nobody });
        }
        self.expected.pods.push(Prediction { pod, known, expires });
    }

    /// A pod has refused a prompt that it was expected to hold: takes back what was expected for that alone.
    pub fn withdraw(&mut self, pod: PodId, chain: &[BlockHash]) {
        withdraw(self.memory.as_deref(), &mut self.writer, (pod, chain));
    }

    /// The same, for whoever does it elsewhere because the chain is long.
    #[must_use]
    pub fn withdrawal(&self, pod: PodId, chain: &[BlockHash]) -> PredictionRollback {
        PredictionRollback { pod, chain: chain.to_vec(), memory: self.memory.clone() }
    }

    /// Whether events have confirmed by now that a pod holds a block, and all that this follows, which it was expected to hold
    /// when a plan was made.
    #[must_use]
    pub fn is_confirmed(&mut self, pod: PodId, block: BlockHash) -> bool {
        self.reader.is_confirmed(pod, block, &mut self.scratch.answer)
    }

    /// Ends what pods were expected to hold and did not confirm by `now`. To be called now and then,
    /// by one thread. Returns how many blocks that were.
    pub fn expire(&mut self, now: Moment) -> usize {
        self.settle();
        self.writer.expire(now)
    }
}

/// What a decision looks at. Time and randomness are the caller's, so that the same world gives the
/// same decision.
#[derive(Debug)]
pub struct DecisionEnv<'a> {
    /// The pods.
    pub fleet: &'a Fleet,
    /// The index, through this thread's desk.
    pub desk: &'a mut DecisionState,
    /// The time, since whenever the caller counts from.
    pub now: Moment,
    /// Where chance comes from.
    pub rng: &'a mut Rng,
}
