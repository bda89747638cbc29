//! Pods in the index: numbered slots, and sets of slots as bitmaps.
//!
//! A slot is reused after its pod was removed and all its bits are cleared. A [`PodId`] therefore
//! names a slot together with an incarnation: late events of a removed incarnation have no effect.

/// A pod's position in every bitmap of one index.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct PodSlot(pub(crate) u16);

impl PodSlot {
    /// The slot as an array position, below the index's capacity.
    #[must_use]
    pub fn position(self) -> usize {
        usize::from(self.0)
    }
}

/// One incarnation of a pod: an engine that restarts in place gets a new one.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct PodId {
    pub(crate) slot: PodSlot,
    pub(crate) incarnation: u64,
}

impl PodId {
    /// The slot under which [`crate::Depths`] reports this pod.
    #[must_use]
    pub fn slot(self) -> PodSlot {
        self.slot
    }
}

/// The number of pods that one index can hold at a time.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Capacity {
    /// 64 pods: one word per set.
    Pods64,
    /// 256 pods: four words per set.
    #[default]
    Pods256,
    /// 1024 pods: sixteen words per set.
    Pods1024,
    /// 4096 pods: sixty-four words per set.
    Pods4096,
}

impl Capacity {
    /// The smallest capacity for `pods` pods, if there is one.
    #[must_use]
    pub fn for_pods(pods: usize) -> Option<Self> {
        [Self::Pods64, Self::Pods256, Self::Pods1024, Self::Pods4096]
            .into_iter()
            .find(|capacity| pods <= capacity.pods())
    }

    /// The number of slots.
    #[must_use]
    #[cfg(not(loom))]
    pub fn pods(self) -> usize {
        self.words() * 64
    }

    /// The number of slots: few, because a model checker explores each.
    #[cfg(loom)]
    pub fn pods(self) -> usize {
        3
    }

    pub(crate) fn words(self) -> usize {
        match self {
            Self::Pods64 => 1,
            Self::Pods256 => 4,
            Self::Pods1024 => 16,
            Self::Pods4096 => 64,
        }
    }
}

/// A set of pods: one bit per slot. A view of words owned by a lookup result or the index.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PodSet<'a> {
    words: &'a [u64],
}

impl<'a> PodSet<'a> {
    pub(crate) fn new(words: &'a [u64]) -> Self {
        Self { words }
    }

    /// Whether `slot` is in the set.
    #[must_use]
    pub fn contains(self, slot: PodSlot) -> bool {
        let (word, bit) = word_and_bit(slot);
        self.words.get(word).is_some_and(|bits| bits & bit != 0)
    }

    /// The number of pods in the set.
    #[must_use]
    pub fn len(self) -> usize {
        self.words.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// Whether the set has no pod.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.words.iter().all(|word| *word == 0)
    }

    /// The slots in the set, in order.
    pub fn iter(self) -> impl Iterator<Item = PodSlot> + 'a {
        self.words.iter().enumerate().flat_map(|(position, word)| {
            PodBits(*word).map(move |bit| PodSlot((position * 64) as u16 + bit))
        })
    }

    /// The bitmap itself, least significant bit of the first word first.
    #[must_use]
    pub fn words(self) -> &'a [u64] {
        self.words
    }
}

/// The word that holds a slot's bit, and the bit.
pub(crate) fn word_and_bit(slot: PodSlot) -> (usize, u64) {
    (usize::from(slot.0 >> 6), 1 << (slot.0 & 63))
}

/// The positions of the set bits of a word.
struct PodBits(u64);

impl Iterator for PodBits {
    type Item = u16;

    fn next(&mut self) -> Option<u16> {
        if self.0 == 0 {
            return None;
        }
        let position = self.0.trailing_zeros() as u16;
        self.0 &= self.0 - 1;
        Some(position)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_lists_what_it_contains() {
        let words = [1 << 63 | 1, 0, 0, 1 << 5];
        let set = PodSet::new(&words);
        let slots: Vec<_> = set.iter().collect();
        assert_eq!(slots, [PodSlot(0), PodSlot(63), PodSlot(197)]);
        assert_eq!(set.len(), 3);
        assert!(set.contains(PodSlot(63)) && !set.contains(PodSlot(62)));
        assert!(!set.contains(PodSlot(4000)), "a slot beyond the words is in no set");
    }

    #[test]
    fn capacities_are_chosen_by_the_number_of_pods() {
        assert_eq!(Capacity::for_pods(64), Some(Capacity::Pods64));
        assert_eq!(Capacity::for_pods(65), Some(Capacity::Pods256));
        assert_eq!(Capacity::for_pods(1000), Some(Capacity::Pods1024));
        assert_eq!(Capacity::for_pods(4097), None);
    }
}
