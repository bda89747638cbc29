//! The beginning of a step: who decodes, who prefills how much, who is admitted.

use super::sequence::SequenceSlot;
use super::{Chunk, EngineAdmission, SimEngine};
use crate::cost::StepLoad;
use crate::pool::BlockId;
use crate::request::{Output, PromptSource, SimOutcome};
use std::time::Duration;

/// Whether decoding went on undisturbed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Growth {
    Fits,
    Preempts,
}

/// What a waiting request finds when its blocks fit.
struct Fit {
    /// Cached on the device.
    hits: Vec<BlockId>,
    /// To be had from the host tier or another engine, in tokens, and how long that takes.
    loaded_tokens: usize,
    load_time: Duration,
    /// Of the request in all.
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
        for place in 0..self.prefilling.len() {
            budget -= self.add_chunk(self.prefilling[place], budget, &mut load);
        }
        if growth == Growth::Fits {
            self.admit(budget, &mut load, outputs);
        }
        if self.chunks.is_empty() && self.decoding.len() == 0 {
            return;
        }
        let cost = self.profile.step_cost();
        if cost.per_longest_token > 0.0 || cost.cascade.is_some() {
            self.decoding.measure(&self.running, &self.sequences, self.block_size);
        }
        self.decoding.add_to(&mut load);
        self.step_end = Some(self.now + cost.of(&load).mul_f64(self.settings.slowdown));
    }

    fn expire_leases(&mut self) {
        while let Some(place) = self.leased.iter().position(|(until, ..)| *until <= self.now) {
            let (_, _, sequence) = self.leased.swap_remove(place);
            self.release(&sequence);
        }
    }

    fn accept_arrivals(&mut self) {
        while let Some((_, slot)) = self.arriving.pop_front_if(|(time, _)| *time <= self.now) {
            self.waiting.push_back(slot);
        }
    }

    fn finish_loads(&mut self, outputs: &mut Vec<Output>) {
        while let Some(place) = self.loading.iter().position(|(time, _)| *time <= self.now) {
            let (_, slot) = self.loading.remove(place);
            self.store_full_blocks(slot, self.sequences[slot].computed, outputs);
            self.running.push(slot);
            self.prefilling.push(slot);
        }
    }

    /// Gives a block to each decoding sequence that has filled its last one, if need be by preempting.
    fn grow_decoding(&mut self, outputs: &mut Vec<Output>) -> Growth {
        let mut growth = Growth::Fits;
        for slot in std::mem::take(&mut self.wanting) {
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
        (sequence.named, sequence.computed) = (0, 0);
        let request = sequence.request.id;
        for block in blocks.into_iter().rev() {
            self.device.release(block);
        }
        self.waiting.push_front(slot);
        self.load.preemptions += 1;
        self.emit(outputs, SimOutcome::Preempted { request });
    }

    /// As much of a prompt as the budget allows.
    fn add_chunk(&mut self, slot: SequenceSlot, budget: usize, load: &mut StepLoad) -> usize {
        let sequence = &self.sequences[slot];
        let tokens = budget.min(sequence.target() - sequence.computed);
        if tokens > 0 {
            load.add_chunk(sequence.computed, tokens);
            self.chunks.push(Chunk { slot, tokens });
        }
        tokens
    }

    /// First come, first served: a request that does not fit holds up those behind it.
    fn admit(&mut self, mut budget: usize, load: &mut StepLoad, outputs: &mut Vec<Output>) {
        while budget > 0
            && self.running.len() + self.loading.len() < self.profile.max_sequences()
            && let Some(slot) = self.waiting.front().copied()
            && self.blocked != Some((slot, self.device.version()))
        {
            let Some(fit) = self.fit(slot) else {
                self.blocked = Some((slot, self.device.version()));
                return;
            };
            self.waiting.pop_front();
            let load_time = fit.load_time;
            self.place(slot, fit, outputs);
            if load_time > Duration::ZERO {
                self.loading.push((self.now + load_time, slot));
            } else {
                self.running.push(slot);
                self.prefilling.push(slot);
                budget -= self.add_chunk(slot, budget, load);
            }
        }
    }

    /// Looks a request's chain up and counts whether its blocks fit.
    fn fit(&self, slot: SequenceSlot) -> Option<Fit> {
        let sequence = &self.sequences[slot];
        let target = sequence.target();
        // The last token is always computed: its output is the first thing asked for.
        let reusable = ((target - 1) / self.block_size).min(sequence.request.chain.len());
        let chain = &sequence.request.chain[..reusable];
        let hits: Vec<_> = chain.iter().map_while(|name| self.device.find(*name)).collect();
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
                let beyond = chain[hits.len()..].iter();
                let found = beyond.take_while(|name| self.host.find(**name).is_some()).count();
                (found * self.block_size, self.profile.host_time(found * self.block_size))
            }
        };
        Some(Fit { hits, loaded_tokens, load_time, blocks })
    }

    /// Gives a request its blocks.
    fn place(&mut self, slot: SequenceSlot, fit: Fit, outputs: &mut Vec<Output>) {
        let Fit { mut hits, loaded_tokens, blocks, .. } = fit;
        for block in &hits {
            self.device.take(*block);
        }
        let found = hits.len();
        while hits.len() < blocks {
            let block = self.device.allocate(&mut self.evicted);
            hits.push(block.expect("the blocks were counted"));
        }
        let sequence = &mut self.sequences[slot];
        sequence.blocks = hits;
        sequence.named = found;
        sequence.computed = found * self.block_size + loaded_tokens;
        let chain = sequence.request.chain.clone();
        for name in chain[found..].iter().take(loaded_tokens / self.block_size) {
            if let Some(block) = self.host.find(*name) {
                self.host.touch(block);
            }
        }
        if !std::mem::replace(&mut sequence.admitted, true) {
            let request = sequence.request.id;
            let cached_tokens = sequence.computed;
            self.load.asked_tokens += sequence.request.prompt_tokens as u64;
            if sequence.request.source == PromptSource::Computed {
                self.load.hit_tokens += cached_tokens as u64;
            }
            self.emit(outputs, SimOutcome::Admitted { request, cached_tokens });
        }
        self.emit_evicted(outputs);
    }
}
