//! The decoding sequences, at a cost per step that does not grow with their number.
//!
//! All of them gain one token per step, so only sums are updated, and a sequence is visited again
//! when it ends or when its last block is full. A queue by step number orders these visits.

use super::sequence::{SequenceSlot, Sequences, SimSequence};
use crate::cost::StepLoad;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// The decoding sequences together.
#[derive(Clone, Debug, Default)]
pub(super) struct Decoding {
    /// Steps done since the engine's start.
    pub(super) step: u64,
    count: usize,
    /// Their tokens with key/value vectors, summed.
    context_tokens: usize,
    /// The step after which each sequence is visited next; one entry for each.
    due: BinaryHeap<Reverse<(u64, SequenceSlot)>>,
    /// Longest context and shared prefix, as of the step in which the batch last changed.
    shape: Option<BatchShape>,
}

#[derive(Clone, Copy, Debug)]
struct BatchShape {
    step: u64,
    longest: usize,
    shared_prefix: usize,
}

impl Decoding {
    pub(super) fn len(&self) -> usize {
        self.count
    }

    /// Adds a sequence that has its first token, or one more after a preemption.
    pub(super) fn add(
        &mut self,
        slot: SequenceSlot,
        sequence: &mut SimSequence,
        block_size: usize,
    ) {
        sequence.decodes_since = Some(self.step);
        self.count += 1;
        self.context_tokens += sequence.context_by(self.step);
        self.shape = None;
        self.schedule_visit(slot, sequence, block_size);
    }

    /// Removes a sequence, if it decodes.
    pub(super) fn remove(&mut self, slot: SequenceSlot, sequence: &mut SimSequence) {
        if sequence.decodes_since.is_none() {
            return;
        }
        self.count -= 1;
        self.context_tokens -= sequence.context_by(self.step);
        sequence.generated = sequence.generated_by(self.step);
        sequence.decodes_since = None;
        self.shape = None;
        self.due.retain(|Reverse((_, other))| *other != slot);
    }

    /// Schedules the next visit of a sequence: when it has all its tokens or its last block is
    /// full.
    pub(super) fn schedule_visit(
        &mut self,
        slot: SequenceSlot,
        sequence: &SimSequence,
        block_size: usize,
    ) {
        let missing = sequence.request.output_tokens - sequence.generated_by(self.step);
        let to_boundary = block_size - sequence.context_by(self.step) % block_size;
        let step = self.step + missing.min(to_boundary) as u64;
        self.due.push(Reverse((step, slot)));
    }

    /// Gives every sequence a token.
    pub(super) fn advance_step(&mut self) {
        self.step += 1;
        self.context_tokens += self.count;
    }

    /// The next sequence whose visit is due after the current step.
    pub(super) fn pop_due(&mut self) -> Option<SequenceSlot> {
        match self.due.peek() {
            Some(Reverse((step, slot))) if *step <= self.step => {
                let slot = *slot;
                self.due.pop();
                Some(slot)
            }
            _ => None,
        }
    }

    /// Adds the decoding of the coming step to its load; the shape only if
    /// [`update_shape`](Self::update_shape) was called, which costs time per sequence.
    pub(super) fn add_to(&self, load: &mut StepLoad) {
        load.sequences = self.count;
        load.context_tokens = self.context_tokens + self.count;
        if let Some(shape) = self.shape {
            load.longest_context = shape.longest + (self.step - shape.step) as usize + 1;
            load.shared_prefix = shape.shared_prefix;
        }
    }

    /// Finds the longest context and the shared prefix, if the batch has changed since.
    pub(super) fn update_shape(
        &mut self,
        running: &[SequenceSlot],
        sequences: &Sequences,
        block_size: usize,
    ) {
        if self.shape.is_some() {
            return;
        }
        let all = running.iter().map(|slot| &sequences[*slot]);
        let mut decoding = all.filter(|sequence| sequence.decodes_since.is_some());
        let Some(first) = decoding.next() else { return };
        let mut longest = first.context_by(self.step);
        let mut shared = first.blocks.len();
        for sequence in decoding {
            longest = longest.max(sequence.context_by(self.step));
            let pairs = first.blocks.iter().zip(&sequence.blocks).take(shared);
            shared = pairs.take_while(|(one, other)| one == other).count();
        }
        let shared_prefix = if self.count > 1 { shared * block_size } else { 0 };
        self.shape = Some(BatchShape { step: self.step, longest, shared_prefix });
    }
}
