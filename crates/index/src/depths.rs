//! The result of a lookup: pods by the depth to which they hold a chain.

use crate::pod::{PodSet, PodSlot, word_and_bit};

/// The pods that hold a chain, grouped by the number of leading blocks they hold. Made to be
/// reused: after the first few queries, a lookup allocates nothing.
#[derive(Clone, Debug, Default)]
pub struct Depths {
    width: usize,
    depths: Vec<u32>,
    words: Vec<u64>,
}

/// The pods that hold exactly `depth` leading blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Level<'a> {
    /// Leading blocks of the chain, without a hole. At least one.
    pub depth: usize,
    /// The pods that hold exactly that many. At least one pod.
    pub pods: PodSet<'a>,
}

impl Depths {
    /// The levels, shallowest first. Pods that hold nothing are in none.
    pub fn levels(&self) -> impl DoubleEndedIterator<Item = Level<'_>> {
        self.depths.iter().enumerate().map(|(at, depth)| Level {
            depth: *depth as usize,
            pods: PodSet::new(&self.words[at * self.width..(at + 1) * self.width]),
        })
    }

    /// The deepest level, if any pod holds the first block.
    #[must_use]
    pub fn deepest(&self) -> Option<Level<'_>> {
        self.levels().next_back()
    }

    /// How many leading blocks one pod holds.
    #[must_use]
    pub fn depth(&self, slot: PodSlot) -> usize {
        let (word, bit) = word_and_bit(slot);
        self.depths
            .iter()
            .enumerate()
            .find(|(at, _)| self.words[at * self.width + word] & bit != 0)
            .map_or(0, |(_, depth)| *depth as usize)
    }

    /// Writes the depth of each pod to the position of its slot, zero for pods that hold nothing.
    /// Ignores slots beyond the buffer.
    pub fn depths_into(&self, depths: &mut [u32]) {
        depths.fill(0);
        for level in self.levels() {
            for slot in level.pods.iter() {
                if let Some(depth) = depths.get_mut(slot.position()) {
                    *depth = level.depth as u32;
                }
            }
        }
    }

    pub(crate) fn reset(&mut self, width: usize) {
        self.width = width;
        self.depths.clear();
        self.words.clear();
    }

    /// Adds a level, unless it has no pod.
    #[inline]
    pub(crate) fn push<const WORDS: usize>(&mut self, depth: usize, pods: [u64; WORDS]) {
        if pods != [0; WORDS] {
            self.depths.push(depth as u32);
            self.words.extend_from_slice(&pods);
        }
    }
}
