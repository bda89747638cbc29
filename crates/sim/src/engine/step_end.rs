//! The end of a step: tokens are reported, full blocks enter the cache, requests finish.

use super::sequence::SequenceSlot;
use super::{Lease, SimEngine, TokenReports};
use crate::request::{Output, RequestId, SimOutcome};
use std::ops::Range;
use std::sync::Arc;
use wornpath_index::{EngineHash, Tier};

/// A run of blocks of a chain that have just been filled.
struct StoredRun {
    request: RequestId,
    chain: Arc<[EngineHash]>,
    blocks: Range<usize>,
}

impl StoredRun {
    fn outcome(&self, blocks: Range<usize>, tier: Tier) -> SimOutcome {
        SimOutcome::Stored { request: self.request, chain: self.chain.clone(), blocks, tier }
    }
}

/// Neighbouring blocks of a stored run that were copied to a slower tier and are not reported yet.
struct CopiedRun<'a> {
    stored: &'a StoredRun,
    tier: Tier,
    blocks: Range<usize>,
}

impl CopiedRun<'_> {
    /// What has been copied so far, if anything; the next run starts at `next`.
    fn end_before(&mut self, next: usize) -> Option<SimOutcome> {
        let blocks = std::mem::replace(&mut self.blocks, next..next);
        (!blocks.is_empty()).then(|| self.stored.outcome(blocks, self.tier))
    }
}

impl SimEngine {
    /// Applies what the step has computed.
    pub(super) fn end_step(&mut self, outputs: &mut Vec<Output>) {
        if self.decoding.len() > 0 {
            self.decoding.advance_step();
            if self.settings.tokens == TokenReports::Each {
                self.report_tokens(outputs);
            }
            while let Some(slot) = self.decoding.pop_due() {
                self.finish_or_grow(slot, outputs);
            }
        }
        for chunk in std::mem::take(&mut self.chunks) {
            self.sequences[chunk.slot].computed += chunk.tokens;
            self.store_full_blocks(chunk.slot, self.sequences[chunk.slot].computed, outputs);
            if self.sequences[chunk.slot].computed == self.sequences[chunk.slot].target() {
                self.end_prefill(chunk.slot, outputs);
            }
        }
    }

    fn report_tokens(&self, outputs: &mut Vec<Output>) {
        for slot in &self.running {
            let sequence = &self.sequences[*slot];
            if sequence.decodes_since.is_some() {
                let index = sequence.generated_by(self.decoding.step) - 1;
                self.emit(outputs, SimOutcome::Token { request: sequence.request.id, index });
            }
        }
    }

    /// Handles a decoding sequence that has all its tokens or has filled its last block.
    fn finish_or_grow(&mut self, slot: SequenceSlot, outputs: &mut Vec<Output>) {
        let step = self.decoding.step;
        self.store_full_blocks(slot, self.sequences[slot].context_by(step), outputs);
        let sequence = &self.sequences[slot];
        if sequence.generated_by(step) == sequence.request.output_tokens {
            self.finish(slot, outputs);
        } else {
            self.decoding.schedule_visit(slot, sequence, self.block_size);
            self.request_block_if_full(slot);
        }
    }

    fn end_prefill(&mut self, slot: SequenceSlot, outputs: &mut Vec<Output>) {
        self.prefilling.retain(|other| *other != slot);
        let sequence = &mut self.sequences[slot];
        let request = sequence.request.id;
        let output_tokens = sequence.request.output_tokens;
        if output_tokens == 0 {
            return self.finish(slot, outputs);
        }
        sequence.generated += 1;
        let index = sequence.generated - 1;
        if index == 0 || self.settings.tokens == TokenReports::Each {
            self.emit(outputs, SimOutcome::Token { request, index });
        }
        if index + 1 == output_tokens {
            return self.finish(slot, outputs);
        }
        self.decoding.add(slot, &mut self.sequences[slot], self.block_size);
        self.request_block_if_full(slot);
    }

    fn request_block_if_full(&mut self, slot: SequenceSlot) {
        let sequence = &self.sequences[slot];
        if sequence.context_by(self.decoding.step) == sequence.blocks.len() * self.block_size {
            self.needs_block.push(slot);
        }
    }

    fn finish(&mut self, slot: SequenceSlot, outputs: &mut Vec<Output>) {
        self.leave_queues(slot);
        let sequence = self.sequences.remove(slot);
        let request = sequence.request.id;
        match sequence.request.lease {
            Some(lease) => {
                self.leases.push(Lease { expires: self.now + lease, request, sequence });
            }
            None => self.release(&sequence),
        }
        self.emit(outputs, SimOutcome::Finished { request });
    }

    /// Registers the blocks that `tokens` fill, as far as the chain has their hashes.
    pub(super) fn store_full_blocks(
        &mut self,
        slot: SequenceSlot,
        tokens: usize,
        outputs: &mut Vec<Output>,
    ) {
        let sequence = &mut self.sequences[slot];
        let full = (tokens / self.block_size).min(sequence.request.chain.len());
        if full <= sequence.stored_blocks {
            return;
        }
        let blocks = std::mem::replace(&mut sequence.stored_blocks, full)..full;
        let chain = sequence.request.chain.clone();
        let request = sequence.request.id;
        for index in blocks.clone() {
            self.device.register(self.sequences[slot].blocks[index], chain[index]);
        }
        let stored = StoredRun { request, chain, blocks };
        self.emit(outputs, stored.outcome(stored.blocks.clone(), Tier::Gpu));
        for tier in [Tier::Host, Tier::Disk] {
            if self.lower_tier(tier).capacity() > 0 {
                self.copy_to(tier, &stored, outputs);
            }
        }
    }

    /// Copies the blocks that are missing there to a slower tier. One that is smaller than a prompt
    /// evicts what it has just stored, so evictions are reported where they happen.
    fn copy_to(&mut self, tier: Tier, stored: &StoredRun, outputs: &mut Vec<Output>) {
        let start = stored.blocks.start;
        let mut run = CopiedRun { stored, tier, blocks: start..start };
        for index in stored.blocks.clone() {
            let hash = stored.chain[index];
            let pool = self.lower_tier(tier);
            if let Some(block) = pool.find(hash) {
                pool.touch(block);
                self.emit_copied(run.end_before(index + 1), outputs);
                continue;
            }
            let mut evicted = Vec::new();
            let block = pool.allocate(&mut evicted).expect("no block of a slower tier is in use");
            pool.register(block, hash);
            pool.release(block);
            if !evicted.is_empty() {
                self.emit_copied(run.end_before(index), outputs);
                self.emit(outputs, SimOutcome::Removed { blocks: evicted, tier });
            }
            run.blocks.end = index + 1;
        }
        self.emit_copied(run.end_before(stored.blocks.end), outputs);
    }

    fn emit_copied(&self, copied: Option<SimOutcome>, outputs: &mut Vec<Output>) {
        if let Some(copied) = copied {
            self.emit(outputs, copied);
        }
    }
}
