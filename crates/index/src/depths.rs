//! The answer to "who holds how much of this chain": pods by depth.

use crate::pod::{PodSet, PodSlot, place};

/// Who holds how much: the pods that hold the same number of leading blocks, level by level. Made to
/// be reused: after the first few queries, answering allocates nothing.
#[derive(Clone, Debug, Default)]
pub struct Depths {
    width: usize,
    depths: Vec<u32>,
    words: Vec<u64>,
}

/// The pods that hold exactly `depth` leading blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Level<'a> {
    /// How many blocks from the start of the chain, without a break. At least one.
    pub depth: usize,
    /// Those who hold that many and no more. At least one pod.
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

    /// The deepest level, if anybody holds anything.
    #[must_use]
    pub fn deepest(&self) -> Option<Level<'_>> {
        self.levels().next_back()
    }

    /// How many leading blocks one pod holds.
    #[must_use]
    pub fn depth(&self, slot: PodSlot) -> usize {
        let (word, bit) = place(slot);
        self.depths
            .iter()
            .enumerate()
            .find(|(at, _)| self.words[at * self.width + word] & bit != 0)
            .map_or(0, |(_, depth)| *depth as usize)
    }

    /// Writes every pod's depth to its slot's position; positions of pods that hold nothing become
    /// zero. Slots beyond the buffer are left out.
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

    /// Adds a level, unless nobody is in it.
    #[inline]
    pub(crate) fn push<const WORDS: usize>(&mut self, depth: usize, pods: [u64; WORDS]) {
        if pods != [0; WORDS] {
            self.depths.push(depth as u32);
            self.words.extend_from_slice(&pods);
        }
    }
}
