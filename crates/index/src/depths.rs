//! The answer of a lookup: how many leading blocks of a chain each pod holds.
//!
//! It comes in two forms: [`Depths`], the pods grouped by depth, which is small for any number of
//! pods; and an array with the depth of every slot, which a decision over all pods reads.

use crate::pod::{PodSet, PodSlot, word_and_bit};
use crate::sync::{AtomicU64, Ordering};

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
    /// Ignores slots beyond the buffer. [`crate::IndexReader::depths`] gives the same at once.
    pub fn depths_into(&self, depths: &mut [u32]) {
        depths.fill(0);
        for level in self.levels() {
            expand(level.pods.words(), level.depth as u32, depths);
        }
    }
}

/// Receives the pods of an answer with their depths.
pub(crate) trait Answer {
    /// Starts an answer of sets of `words` words.
    fn begin(&mut self, words: usize);

    /// Adds pods with a depth larger than all before.
    fn push<const WORDS: usize>(&mut self, depth: usize, pods: [u64; WORDS]);

    /// Removes from `pods` those that are not in `row`, and adds them with a depth larger than all
    /// before.
    fn narrow<const WORDS: usize>(
        &mut self,
        depth: usize,
        pods: &mut [u64; WORDS],
        row: &[AtomicU64; WORDS],
    );

    /// Adds pods with any depth.
    fn add<const WORDS: usize>(&mut self, depth: usize, pods: [u64; WORDS]);

    /// Limits the depth of a pod.
    fn limit(&mut self, slot: PodSlot, depth: usize);
}

impl Answer for Depths {
    fn begin(&mut self, words: usize) {
        self.width = words;
        self.depths.clear();
        self.words.clear();
    }

    #[inline]
    fn push<const WORDS: usize>(&mut self, depth: usize, pods: [u64; WORDS]) {
        if pods != [0; WORDS] {
            self.depths.push(depth as u32);
            self.words.extend_from_slice(&pods);
        }
    }

    #[inline]
    fn narrow<const WORDS: usize>(
        &mut self,
        depth: usize,
        pods: &mut [u64; WORDS],
        row: &[AtomicU64; WORDS],
    ) {
        let mut left = [0; WORDS];
        for ((left, pods), row) in left.iter_mut().zip(pods).zip(row) {
            let row = row.load(Ordering::Acquire);
            *left = *pods & !row;
            *pods &= row;
        }
        self.push(depth, left);
    }

    fn add<const WORDS: usize>(&mut self, depth: usize, pods: [u64; WORDS]) {
        let at = self.depths.partition_point(|other| (*other as usize) < depth);
        let words = at * self.width;
        if self.depths.get(at).is_some_and(|other| *other as usize == depth) {
            self.words[words..].iter_mut().zip(&pods).for_each(|(word, more)| *word |= more);
        } else if pods != [0; WORDS] {
            self.depths.insert(at, depth as u32);
            self.words.splice(words..words, pods);
        }
    }

    fn limit(&mut self, slot: PodSlot, depth: usize) {
        let (word, bit) = word_and_bit(slot);
        let width = self.width;
        let has = |at: &usize| self.words[at * width + word] & bit != 0;
        let Some(at) = (0..self.depths.len()).find(has) else { return };
        if self.depths[at] as usize <= depth {
            return;
        }
        self.words[at * width + word] &= !bit;
        if self.words[at * width..(at + 1) * width].iter().all(|word| *word == 0) {
            self.depths.remove(at);
            self.words.drain(at * width..(at + 1) * width);
        }
        if depth == 0 {
            return;
        }
        let at = self.depths.partition_point(|other| (*other as usize) < depth);
        if self.depths.get(at).is_none_or(|other| *other as usize != depth) {
            self.depths.insert(at, depth as u32);
            self.words.splice(at * width..at * width, (0..width).map(|_| 0));
        }
        self.words[at * width + word] |= bit;
    }
}

/// An array with the depth of every slot.
pub(crate) struct Dense<'a>(pub(crate) &'a mut [u32]);

impl Answer for Dense<'_> {
    #[inline]
    fn begin(&mut self, _words: usize) {
        self.0.fill(0);
    }

    #[inline]
    fn push<const WORDS: usize>(&mut self, depth: usize, pods: [u64; WORDS]) {
        expand(&pods, depth as u32, self.0);
    }

    #[inline]
    fn narrow<const WORDS: usize>(
        &mut self,
        depth: usize,
        pods: &mut [u64; WORDS],
        row: &[AtomicU64; WORDS],
    ) {
        // By position: a zipped iterator of atomics takes twice the instructions.
        for at in 0..WORDS {
            let left = pods[at] & !row[at].load(Ordering::Acquire);
            if left != 0 {
                pods[at] ^= left;
                if let Some(depths) = self.0.get_mut(64 * at..) {
                    expand_word(left, depth as u32, depths);
                }
            }
        }
    }

    fn add<const WORDS: usize>(&mut self, depth: usize, pods: [u64; WORDS]) {
        expand(&pods, depth as u32, self.0);
    }

    fn limit(&mut self, slot: PodSlot, depth: usize) {
        if let Some(known) = self.0.get_mut(slot.position()) {
            *known = (*known).min(depth as u32);
        }
    }
}

/// A word with more pods is expanded as a whole, one with fewer pod by pod.
const FEW: u32 = 4;

/// For each byte, its bits as masks of whole numbers.
static MASKS: [[u32; 8]; 256] = {
    let mut masks = [[0; 8]; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut bit = 0;
        while bit < 8 {
            if byte >> bit & 1 == 1 {
                masks[byte][bit] = u32::MAX;
            }
            bit += 1;
        }
        byte += 1;
    }
    masks
};

/// Writes a depth to the positions of a set, which are zero.
#[inline]
fn expand(pods: &[u64], depth: u32, depths: &mut [u32]) {
    for (word, depths) in pods.iter().zip(depths.chunks_mut(64)) {
        if *word != 0 {
            expand_word(*word, depth, depths);
        }
    }
}

#[inline]
fn expand_word(mut word: u64, depth: u32, depths: &mut [u32]) {
    // Most words have few bits: whether they have more than a few is found by removing those.
    for _ in 0..FEW {
        if word == 0 {
            return;
        }
        if let Some(known) = depths.get_mut(word.trailing_zeros() as usize) {
            *known = depth;
        }
        word &= word - 1;
    }
    if let Some(depths) = depths.first_chunk_mut::<64>() {
        for (byte, eight) in word.to_le_bytes().into_iter().zip(depths.as_chunks_mut::<8>().0) {
            // Without branches, so that it becomes a few vector instructions.
            let masks = &MASKS[usize::from(byte)];
            for (known, mask) in eight.iter_mut().zip(masks) {
                *known |= mask & depth;
            }
        }
        return;
    }
    while word != 0 {
        if let Some(known) = depths.get_mut(word.trailing_zeros() as usize) {
            *known = depth;
        }
        word &= word - 1;
    }
}
