//! One engine: requests go in, virtual time passes, tokens and cache events come out.
//!
//! Work happens in steps. A step gives every decoding sequence one token and spends the rest of its
//! token budget on prefill, first come first served; how long it takes follows from the profile.
//! Waiting requests are admitted at the beginning of a step, when their blocks fit; the results of
//! a step take effect at its end. Between steps nothing happens, so
//! [`SimEngine::next_event_time`] is all that a driver needs.

mod decoding;
mod schedule;
mod sequence;
mod step_end;

use crate::pool::BlockPool;
use crate::profile::EngineProfile;
use crate::request::{Output, RequestId, SimOutcome, SimRefused, SimRequest};
use decoding::Decoding;
use sequence::{SequenceSlot, Sequences, SimSequence};
use std::collections::VecDeque;
use std::num::NonZeroUsize;
use std::time::Duration;
use wornpath_index::{EngineHash, Tier};

/// When a waiting request is admitted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum EngineAdmission {
    /// When its prompt fits. Output takes blocks as it grows, and when there are none, the request
    /// that arrived last is preempted and recomputed later: what vLLM does.
    #[default]
    PromptFits,
    /// When prompt and output fit. Nothing is ever preempted.
    WholeFits,
}

/// Which tokens an engine reports.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum TokenReports {
    /// The first of each request, which is enough to compute TTFT and TPOT.
    #[default]
    First,
    /// Every one.
    Each,
}

/// The configuration of an engine, beside its profile.
#[derive(Clone, PartialEq, Debug)]
pub struct EngineSettings {
    /// Tokens per block.
    pub block_size: NonZeroUsize,
    /// KV capacity of device memory in tokens; the profile's capacity if `None`.
    pub kv_tokens: Option<usize>,
    /// KV capacity of host memory in tokens, as a second tier; zero disables the tier.
    pub host_tokens: usize,
    /// KV capacity of a disk in tokens, as a third tier; zero disables the tier.
    pub disk_tokens: usize,
    /// When a waiting request is admitted.
    pub admission: EngineAdmission,
    /// Which tokens are reported.
    pub tokens: TokenReports,
    /// Factor on the profile's time of every step.
    pub slowdown: f64,
}

impl Default for EngineSettings {
    /// Blocks of 16 tokens and no other tier than the device, at the profile's size and speed.
    fn default() -> Self {
        Self {
            block_size: const { NonZeroUsize::new(16).expect("16 is not zero") },
            kv_tokens: None,
            host_tokens: 0,
            disk_tokens: 0,
            admission: EngineAdmission::default(),
            tokens: TokenReports::default(),
            slowdown: 1.0,
        }
    }
}

/// Queue lengths, block usage and cache hits of an engine.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct EngineLoad {
    /// Requests that wait to be admitted.
    pub waiting: usize,
    /// Requests that are being computed.
    pub running: usize,
    /// Blocks in use.
    pub used_blocks: usize,
    /// Blocks in all.
    pub total_blocks: usize,
    /// Prompt tokens of all requests admitted so far.
    pub prompt_tokens: u64,
    /// Those of them that were cached.
    pub hit_tokens: u64,
    /// Preemptions so far.
    pub preemptions: u64,
    /// What decode steps have read so far.
    pub kv_reads: KvReads,
}

/// What decode steps have read.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct KvReads {
    /// Steps in which a sequence decoded.
    pub steps: u64,
    /// Those of them that read a shared prefix once for all sequences.
    pub cascade_steps: u64,
    /// Tokens of context that all of them read.
    pub tokens: u64,
}

impl KvReads {
    /// Tokens of context per decode step.
    #[must_use]
    pub fn tokens_per_step(&self) -> f64 {
        self.tokens as f64 / self.steps.max(1) as f64
    }

    /// The share of decode steps that read a shared prefix once.
    #[must_use]
    pub fn cascade_share(&self) -> f64 {
        self.cascade_steps as f64 / self.steps.max(1) as f64
    }
}

impl std::ops::AddAssign for KvReads {
    fn add_assign(&mut self, other: Self) {
        self.steps += other.steps;
        self.cascade_steps += other.cascade_steps;
        self.tokens += other.tokens;
    }
}

/// A chunk of a prompt in the current step.
#[derive(Clone, Copy, Debug)]
struct Chunk {
    slot: SequenceSlot,
    tokens: usize,
}

/// A finished request whose blocks another engine may still fetch.
#[derive(Clone, Debug)]
struct Lease {
    expires: Duration,
    request: RequestId,
    sequence: SimSequence,
}

/// The head of the waiting queue that did not fit, and the version of the device's pool then.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct BlockedHead {
    slot: SequenceSlot,
    pool_version: u64,
}

/// A model of one engine.
#[derive(Clone, Debug)]
pub struct SimEngine {
    profile: EngineProfile,
    settings: EngineSettings,
    block_size: usize,
    device: BlockPool,
    host: BlockPool,
    disk: BlockPool,
    now: Duration,
    sequences: Sequences,
    /// Submitted requests and when they enter the waiting queue.
    arriving: VecDeque<(Duration, SequenceSlot)>,
    waiting: VecDeque<SequenceSlot>,
    /// Admitted requests and when their blocks have been copied to the device.
    loading: Vec<(Duration, SequenceSlot)>,
    /// All sequences that decode or prefill, in the order of admission.
    running: Vec<SequenceSlot>,
    prefilling: Vec<SequenceSlot>,
    decoding: Decoding,
    leases: Vec<Lease>,
    /// The prompt chunks of the current step.
    chunks: Vec<Chunk>,
    /// The end of the current step, if one runs.
    step_end: Option<Duration>,
    /// Decoding sequences whose blocks are all full.
    needs_block: Vec<SequenceSlot>,
    blocked: Option<BlockedHead>,
    /// Hashes that allocations evicted and no output has reported yet.
    evicted: Vec<EngineHash>,
    /// The cache was cleared and no output has reported it yet.
    cleared: bool,
    load: EngineLoad,
}

impl SimEngine {
    /// An engine without requests and with empty caches.
    #[must_use]
    pub fn new(profile: &EngineProfile, settings: &EngineSettings) -> Self {
        let block_size = settings.block_size.get();
        let device_tokens = settings.kv_tokens.unwrap_or(profile.kv_tokens());
        Self {
            profile: profile.clone(),
            settings: settings.clone(),
            block_size,
            device: BlockPool::new((device_tokens / block_size).max(1)),
            host: BlockPool::new(settings.host_tokens / block_size),
            disk: BlockPool::new(settings.disk_tokens / block_size),
            now: Duration::ZERO,
            sequences: Sequences::default(),
            arriving: VecDeque::new(),
            waiting: VecDeque::new(),
            loading: Vec::new(),
            running: Vec::new(),
            prefilling: Vec::new(),
            decoding: Decoding::default(),
            leases: Vec::new(),
            chunks: Vec::new(),
            step_end: None,
            needs_block: Vec::new(),
            blocked: None,
            evicted: Vec::new(),
            cleared: false,
            load: EngineLoad::default(),
        }
    }

    /// Submits a request at `now`, which is not before the last [`advance`](Self::advance).
    ///
    /// # Errors
    /// If the engine could never serve it.
    pub fn submit(&mut self, now: Duration, request: SimRequest) -> Result<(), SimRefused> {
        if request.prompt_tokens == 0 {
            return Err(SimRefused::EmptyPrompt);
        }
        let tokens = request.prompt_tokens.saturating_add(request.output_tokens);
        let capacity = self.device.capacity().saturating_mul(self.block_size);
        if tokens > capacity {
            return Err(SimRefused::TooLong { tokens, capacity });
        }
        let slot = self.sequences.insert(SimSequence::new(request));
        self.arriving.push_back((now + self.profile.request_time(), slot));
        Ok(())
    }

    /// Cancels a request in any state, at `now`, and frees its blocks; what it computed stays
    /// cached. The current step keeps its length.
    pub fn cancel(&mut self, now: Duration, request: RequestId) {
        if let Some(slot) = self.sequences.find(request) {
            self.leave_queues(slot);
            let sequence = self.sequences.remove(slot);
            self.release(&sequence);
        }
        self.release_lease(now, request);
    }

    /// Ends a lease at `now`: the other engine has fetched the blocks. Returns whether there was
    /// one.
    pub fn release_lease(&mut self, now: Duration, request: RequestId) -> bool {
        self.now = now.max(self.now);
        let Some(index) = self.leases.iter().position(|lease| lease.request == request) else {
            return false;
        };
        let lease = self.leases.swap_remove(index);
        self.release(&lease.sequence);
        true
    }

    /// Clears the cache of an engine without running requests.
    ///
    /// # Errors
    /// If blocks are in use: their number. The cache stays as it is.
    pub fn clear_cache(&mut self) -> Result<(), usize> {
        self.device.clear().map_err(|in_use| in_use.0)?;
        self.host = BlockPool::new(self.host.capacity());
        self.disk = BlockPool::new(self.disk.capacity());
        self.cleared = true;
        Ok(())
    }

    /// Sets the factor on the profile's time of every later step.
    pub fn set_slowdown(&mut self, slowdown: f64) {
        self.settings.slowdown = slowdown;
    }

    /// The time of the next event, unless a request arrives before; `None` for an idle engine.
    #[must_use]
    pub fn next_event_time(&self) -> Option<Duration> {
        if self.step_end.is_some() {
            return self.step_end;
        }
        if self.may_admit() {
            return Some(self.now);
        }
        let arrival = self.arriving.front().map(|(time, _)| *time);
        let loaded = self.loading.iter().map(|(time, _)| *time).min();
        let lease = self.leases.iter().map(|lease| lease.expires).min();
        [arrival, loaded, lease].into_iter().flatten().min()
    }

    /// Whether blocks were released since the first waiting request did not fit.
    fn may_admit(&self) -> bool {
        let has_room = self.running.len() + self.loading.len() < self.profile.max_sequences();
        self.waiting.front().is_some_and(|slot| {
            let head = BlockedHead { slot: *slot, pool_version: self.device.version() };
            has_room && self.blocked != Some(head)
        })
    }

    /// Advances virtual time to `now` and appends what happened to `outputs`, in order.
    pub fn advance(&mut self, now: Duration, outputs: &mut Vec<Output>) {
        while let Some(time) = self.next_event_time().filter(|time| *time <= now) {
            self.now = time.max(self.now);
            if self.step_end.take().is_some() {
                self.end_step(outputs);
            }
            self.begin_step(outputs);
        }
        self.now = now.max(self.now);
    }

    /// The present load.
    #[must_use]
    pub fn load(&self) -> EngineLoad {
        EngineLoad {
            waiting: self.arriving.len() + self.waiting.len() + self.loading.len(),
            running: self.running.len(),
            used_blocks: self.device.in_use(),
            total_blocks: self.device.capacity(),
            ..self.load
        }
    }

    fn leave_queues(&mut self, slot: SequenceSlot) {
        self.blocked = None;
        self.arriving.retain(|(_, other)| *other != slot);
        self.waiting.retain(|other| *other != slot);
        self.loading.retain(|(_, other)| *other != slot);
        self.running.retain(|other| *other != slot);
        self.prefilling.retain(|other| *other != slot);
        self.chunks.retain(|chunk| chunk.slot != slot);
        self.decoding.remove(slot, &mut self.sequences[slot]);
    }

    fn release(&mut self, sequence: &SimSequence) {
        for block in sequence.blocks.iter().rev() {
            self.device.release(*block);
        }
    }

    fn emit(&self, outputs: &mut Vec<Output>, outcome: SimOutcome) {
        outputs.push(Output { at: self.now, outcome });
    }

    /// The pool of a tier below the device.
    fn lower_tier(&mut self, tier: Tier) -> &mut BlockPool {
        if tier == Tier::Disk { &mut self.disk } else { &mut self.host }
    }

    /// Reports the blocks that allocations have evicted from the device since the last call.
    fn emit_evicted(&mut self, outputs: &mut Vec<Output>) {
        if !self.evicted.is_empty() {
            let blocks = std::mem::take(&mut self.evicted);
            self.emit(outputs, SimOutcome::Removed { blocks, tier: Tier::Gpu });
        }
    }
}

#[cfg(test)]
mod tests;
