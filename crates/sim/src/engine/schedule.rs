//! The beginning of a step: decoding, prefill chunks within the token budget, and admission.

use super::sequence::SequenceSlot;
use super::{BlockedHead, Chunk, EngineAdmission, KvReads, SimEngine};
use crate::cost::StepLoad;
use crate::pool::BlockId;
use crate::request::{Output, PromptSource, SimOutcome};
use std::time::Duration;

/// Whether every decoding sequence got its next block without a preemption.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Growth {
    Fits,
    Preempts,
}

/// The blocks and copies that admit a waiting request.
struct Fit {
    /// Cached on the device.
    hits: Vec<BlockId>,
    /// Tokens that a slower tier or another engine provides.
    loaded_tokens: usize,
    load_time: Duration,
    /// All blocks of the request, hits included.
    blocks: usize,
}

impl SimEngine {
    /// Starts a step if there is anything to compute.
    pub(super) fn begin_step(&mut self, outputs: &mut Vec<Output>) {
        if std::mem::take(&mut self.cleared) {
            self.emit(outputs, SimOutcome::Cleared);
        }
        self.expire_leases();
        self.accept_arrivals();
        self.finish_loads(outputs);
        let growth = self.grow_decoding(outputs);
        let mut load = StepLoad::default();
        let mut budget = self.profile.max_step_tokens().saturating_sub(self.decoding.len());
        self.chunks.clear();
        for index in 0..self.prefilling.len() {
            budget -= self.add_chunk(self.prefilling[index], budget, &mut load);
        }
        if growth == Growth::Fits {
            self.admit(budget, &mut load, outputs);
        }
        if self.chunks.is_empty() && self.decoding.len() == 0 {
            return;
        }
        let cost = self.profile.step_cost();
        if cost.per_longest_token > 0.0 || cost.cascade.is_some() {
            self.decoding.update_shape(&self.running, &self.sequences, self.block_size);
        }
        self.decoding.add_to(&mut load);
        if load.sequences > 0 {
            let read = cost.read(&load);
            self.load.kv_reads += KvReads {
                steps: 1,
                cascade_steps: u64::from(read.is_cascade),
                tokens: read.tokens as u64,
            };
        }
        self.step_end = Some(self.now + cost.of(&load).mul_f64(self.settings.slowdown));
    }

    fn expire_leases(&mut self) {
        while let Some(index) = self.leases.iter().position(|lease| lease.expires <= self.now) {
            let lease = self.leases.swap_remove(index);
            self.release(&lease.sequence);
        }
    }

    fn accept_arrivals(&mut self) {
        while let Some((_, slot)) = self.arriving.pop_front_if(|(time, _)| *time <= self.now) {
            self.waiting.push_back(slot);
        }
    }

    fn finish_loads(&mut self, outputs: &mut Vec<Output>) {
        while let Some(index) = self.loading.iter().position(|(time, _)| *time <= self.now) {
            let (_, slot) = self.loading.remove(index);
            self.store_full_blocks(slot, self.sequences[slot].computed, outputs);
            self.running.push(slot);
            self.prefilling.push(slot);
        }
    }

    /// Gives a block to each decoding sequence that has filled its last one, preempting if none is
    /// free.
    fn grow_decoding(&mut self, outputs: &mut Vec<Output>) -> Growth {
        let mut growth = Growth::Fits;
        for slot in std::mem::take(&mut self.needs_block) {
            while self.sequences[slot].decodes_since.is_some() {
                if let Some(block) = self.device.allocate(&mut self.evicted) {
                    self.sequences[slot].blocks.push(block);
                    break;
                }
                growth = Growth::Preempts;
                let last = *self.running.last().expect("a decoding sequence is running");
                self.preempt(last, outputs);
            }
        }
        self.emit_evicted(outputs);
        growth
    }

    fn preempt(&mut self, slot: SequenceSlot, outputs: &mut Vec<Output>) {
        self.leave_queues(slot);
        let sequence = &mut self.sequences[slot];
        let blocks = std::mem::take(&mut sequence.blocks);
        sequence.stored_blocks = 0;
        sequence.computed = 0;
        let request = sequence.request.id;
        for block in blocks.into_iter().rev() {
            self.device.release(block);
        }
        self.waiting.push_front(slot);
        self.load.preemptions += 1;
        self.emit(outputs, SimOutcome::Preempted { request });
    }

    /// Schedules as much of a prompt as the budget allows; returns the number of tokens.
    fn add_chunk(&mut self, slot: SequenceSlot, budget: usize, load: &mut StepLoad) -> usize {
        let sequence = &self.sequences[slot];
        let tokens = budget.min(sequence.target() - sequence.computed);
        if tokens > 0 {
            load.add_chunk(sequence.computed, tokens);
            self.chunks.push(Chunk { slot, tokens });
        }
        tokens
    }

    /// Admits waiting requests first come, first served: one that does not fit blocks those behind
    /// it.
    fn admit(&mut self, mut budget: usize, load: &mut StepLoad, outputs: &mut Vec<Output>) {
        while budget > 0
            && self.running.len() + self.loading.len() < self.profile.max_sequences()
            && let Some(slot) = self.waiting.front().copied()
        {
            let head = BlockedHead { slot, pool_version: self.device.version() };
            if self.blocked == Some(head) {
                return;
            }
            let Some(fit) = self.fit(slot) else {
                self.blocked = Some(head);
                return;
            };
            self.waiting.pop_front();
            let load_time = fit.load_time;
            self.allocate(slot, fit, outputs);
            if load_time > Duration::ZERO {
                self.loading.push((self.now + load_time, slot));
            } else {
                self.running.push(slot);
                self.prefilling.push(slot);
                budget -= self.add_chunk(slot, budget, load);
            }
        }
    }

    /// Looks up a request's chain and checks whether its blocks fit.
    fn fit(&self, slot: SequenceSlot) -> Option<Fit> {
        let sequence = &self.sequences[slot];
        let target = sequence.target();
        // The last token is always computed: its output is the first token.
        let reusable = ((target - 1) / self.block_size).min(sequence.request.chain.len());
        let chain = &sequence.request.chain[..reusable];
        let hits: Vec<_> = chain.iter().map_while(|hash| self.device.find(*hash)).collect();
        let tokens = match self.settings.admission {
            EngineAdmission::PromptFits => target,
            EngineAdmission::WholeFits => sequence.total_tokens().max(target),
        };
        let blocks = tokens.div_ceil(self.block_size);
        let free_hits = hits.iter().filter(|block| self.device.is_free(**block)).count();
        if blocks - hits.len() > self.device.available() - free_hits {
            return None;
        }
        let cached = hits.len() * self.block_size;
        let (loaded_tokens, load_time) = match sequence.request.source {
            PromptSource::Transferred if sequence.generated == 0 => {
                let tokens = target - 1 - cached;
                (tokens, self.profile.network_time(tokens))
            }
            _ => {
                let mut found = [0, 0];
                for hash in &chain[hits.len()..] {
                    let tiers = [&self.host, &self.disk];
                    let Some(at) = tiers.iter().position(|tier| tier.find(*hash).is_some()) else {
                        break;
                    };
                    found[at] += self.block_size;
                }
                let [host, disk] = found;
                (host + disk, self.profile.host_time(host) + self.profile.disk_time(disk))
            }
        };
        Some(Fit { hits, loaded_tokens, load_time, blocks })
    }

    /// Gives a request its blocks and reports its admission.
    fn allocate(&mut self, slot: SequenceSlot, fit: Fit, outputs: &mut Vec<Output>) {
        let Fit { mut hits, loaded_tokens, blocks, .. } = fit;
        for block in &hits {
            self.device.acquire(*block);
        }
        let found = hits.len();
        while hits.len() < blocks {
            let block = self.device.allocate(&mut self.evicted);
            hits.push(block.expect("the blocks were counted"));
        }
        let sequence = &mut self.sequences[slot];
        sequence.blocks = hits;
        sequence.stored_blocks = found;
        sequence.computed = found * self.block_size + loaded_tokens;
        let chain = sequence.request.chain.clone();
        for hash in chain[found..].iter().take(loaded_tokens / self.block_size) {
            for tier in [&mut self.host, &mut self.disk] {
                if let Some(block) = tier.find(*hash) {
                    tier.touch(block);
                }
            }
        }
        if !std::mem::replace(&mut sequence.admitted, true) {
            let request = sequence.request.id;
            let cached_tokens = sequence.computed;
            self.load.prompt_tokens += sequence.request.prompt_tokens as u64;
            if sequence.request.source == PromptSource::Computed {
                self.load.hit_tokens += cached_tokens as u64;
            }
            self.emit(outputs, SimOutcome::Admitted { request, cached_tokens });
        }
        self.emit_evicted(outputs);
    }
}
