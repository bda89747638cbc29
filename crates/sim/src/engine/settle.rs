//! The end of a step: tokens come out, full blocks enter the cache, requests end.

use super::sequence::SequenceSlot;
use super::{SimEngine, TokenReports};
use crate::request::{Output, RequestId, SimOutcome};
use std::ops::Range;
use std::sync::Arc;
use wornpath_index::{EngineHash, Tier};

/// Blocks of a chain that have just been filled.
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

impl SimEngine {
    /// Counts what the step has computed.
    pub(super) fn settle(&mut self, outputs: &mut Vec<Output>) {
        if self.decoding.len() > 0 {
            self.decoding.pass_step();
            if self.settings.tokens == TokenReports::Each {
                self.report_tokens(outputs);
            }
            while let Some(slot) = self.decoding.pop_due() {
                self.look_at(slot, outputs);
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

    /// A decoding sequence has all its tokens, or its last block is full.
    fn look_at(&mut self, slot: SequenceSlot, outputs: &mut Vec<Output>) {
        let step = self.decoding.step;
        self.store_full_blocks(slot, self.sequences[slot].context_by(step), outputs);
        let sequence = &self.sequences[slot];
        if sequence.generated_by(step) == sequence.request.output_tokens {
            self.finish(slot, outputs);
        } else {
            self.decoding.plan(slot, sequence, self.block_size);
            self.want_block_if_full(slot);
        }
    }

    fn end_prefill(&mut self, slot: SequenceSlot, outputs: &mut Vec<Output>) {
        self.prefilling.retain(|other| *other != slot);
        let sequence = &mut self.sequences[slot];
        let (request, asked) = (sequence.request.id, sequence.request.output_tokens);
        if asked == 0 {
            return self.finish(slot, outputs);
        }
        sequence.generated += 1;
        let index = sequence.generated - 1;
        if index == 0 || self.settings.tokens == TokenReports::Each {
            self.emit(outputs, SimOutcome::Token { request, index });
        }
        if index + 1 == asked {
            return self.finish(slot, outputs);
        }
        self.decoding.add(slot, &mut self.sequences[slot], self.block_size);
        self.want_block_if_full(slot);
    }

    fn want_block_if_full(&mut self, slot: SequenceSlot) {
        let sequence = &self.sequences[slot];
        if sequence.context_by(self.decoding.step) == sequence.blocks.len() * self.block_size {
            self.wanting.push(slot);
        }
    }

    fn finish(&mut self, slot: SequenceSlot, outputs: &mut Vec<Output>) {
        self.leave_queues(slot);
        let sequence = self.sequences.remove(slot);
        let request = sequence.request.id;
        match sequence.request.lease {
            Some(lease) => self.leased.push((self.now + lease, request, sequence)),
            None => self.release(&sequence),
        }
        self.emit(outputs, SimOutcome::Finished { request });
    }

    /// Names the blocks that `tokens` fill, as far as the chain names them.
    pub(super) fn store_full_blocks(
        &mut self,
        slot: SequenceSlot,
        tokens: usize,
        outputs: &mut Vec<Output>,
    ) {
        let sequence = &mut self.sequences[slot];
        let full = (tokens / self.block_size).min(sequence.request.chain.len());
        if full <= sequence.named {
            return;
        }
        let blocks = std::mem::replace(&mut sequence.named, full)..full;
        let chain = sequence.request.chain.clone();
        let request = sequence.request.id;
        for index in blocks.clone() {
            self.device.name(self.sequences[slot].blocks[index], chain[index]);
        }
        let stored = StoredRun { request, chain, blocks };
        self.emit(outputs, stored.outcome(stored.blocks.clone(), Tier::Gpu));
        if self.host.capacity() > 0 {
            self.copy_to_host(&stored, outputs);
        }
    }

    /// Keeps a second copy in host memory of what is not there yet. A host tier smaller than a prompt
    /// pushes out what it has just taken in, so removals are told where they happen.
    fn copy_to_host(&mut self, stored: &StoredRun, outputs: &mut Vec<Output>) {
        let mut copied = stored.blocks.start..stored.blocks.start;
        for index in stored.blocks.clone() {
            let name = stored.chain[index];
            if let Some(block) = self.host.find(name) {
                self.host.touch(block);
                self.emit_copied(stored, &mut copied, index + 1, outputs);
                continue;
            }
            let mut evicted = Vec::new();
            let block =
                self.host.allocate(&mut evicted).expect("no block of the host tier is in use");
            self.host.name(block, name);
            self.host.release(block);
            if !evicted.is_empty() {
                self.emit_copied(stored, &mut copied, index, outputs);
                self.emit(outputs, SimOutcome::Removed { blocks: evicted, tier: Tier::Host });
            }
            copied.end = index + 1;
        }
        self.emit_copied(stored, &mut copied, stored.blocks.end, outputs);
    }

    /// Reports the run of blocks copied so far and starts the next one at `next`.
    fn emit_copied(
        &self,
        stored: &StoredRun,
        copied: &mut Range<usize>,
        next: usize,
        outputs: &mut Vec<Output>,
    ) {
        let run = std::mem::replace(copied, next..next);
        if !run.is_empty() {
            self.emit(outputs, stored.outcome(run, Tier::Host));
        }
    }
}
