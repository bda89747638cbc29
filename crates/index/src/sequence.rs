//! Sequence numbers: each batch is applied once and in order, however batches arrive.
//!
//! Copies are counted, so applying a batch twice or out of order would leave a wrong count. A
//! duplicate is dropped; an early batch is kept, up to a limit, until those before it have arrived.
//! The caller fetches missing batches (a replay) or skips them (a snapshot, or a start at a later
//! number).

use std::collections::BTreeMap;

use crate::event::{CacheEvent, Content, EngineHash, Location, StoredBlocks, Tier};
use wornpath_blocks::ContentHash;

/// What became of a batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Applied {
    /// The batch was applied, followed by kept batches that were next.
    Now {
        /// The number of kept batches applied after it.
        caught_up: usize,
    },
    /// The batch had been applied before; nothing changed.
    Duplicate,
    /// The batch arrived early and is kept. The batches from `expected` up to it are missing.
    Early {
        /// The sequence number to apply next.
        expected: u64,
    },
    /// The batch arrived early and was dropped, because the limit on kept batches is reached.
    Dropped {
        /// The sequence number to apply next.
        expected: u64,
    },
}

/// The position of a batch relative to the next sequence number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Order {
    Now,
    Duplicate,
    Early(u64),
}

#[derive(Debug)]
pub(crate) struct Sequence {
    /// The next sequence number; `None` before the first batch.
    next: Option<u64>,
    early: BTreeMap<u64, Vec<EarlyEvent>>,
    window: usize,
}

impl Sequence {
    pub(crate) fn new(window: usize) -> Self {
        Self { next: None, early: BTreeMap::new(), window }
    }

    pub(crate) fn last(&self) -> Option<u64> {
        self.next.and_then(|next| next.checked_sub(1))
    }

    pub(crate) fn early(&self) -> usize {
        self.early.len()
    }

    /// The order of a batch. A source's first batch sets the sequence number.
    pub(crate) fn order(&self, sequence: u64) -> Order {
        match self.next {
            None => Order::Now,
            Some(next) if sequence == next => Order::Now,
            Some(next) if sequence < next => Order::Duplicate,
            Some(next) => Order::Early(next),
        }
    }

    pub(crate) fn advance(&mut self, sequence: u64) {
        self.next = Some(sequence.wrapping_add(1));
    }

    /// Continues with `sequence`; skips whatever is missing before it.
    pub(crate) fn start_at(&mut self, sequence: u64) {
        self.next = Some(sequence);
        self.early = self.early.split_off(&sequence);
    }

    /// Keeps an early batch; `false` if the limit is reached.
    pub(crate) fn keep(&mut self, sequence: u64, events: &[CacheEvent<'_>]) -> bool {
        if self.early.len() >= self.window && !self.early.contains_key(&sequence) {
            return false;
        }
        let kept = || events.iter().map(EarlyEvent::from).collect();
        self.early.entry(sequence).or_insert_with(kept);
        true
    }

    /// Removes the kept batch that is next.
    pub(crate) fn take_next(&mut self) -> Option<(u64, Vec<EarlyEvent>)> {
        let next = self.next?;
        self.early.remove(&next).map(|events| (next, events))
    }
}

/// An event that owns its lists.
#[derive(Debug)]
pub(crate) enum EarlyEvent {
    Stored(EarlyStored),
    Removed { tier: Tier, blocks: Box<[EngineHash]> },
    Cleared,
}

#[derive(Debug)]
pub(crate) struct EarlyStored {
    tier: Tier,
    blocks: Box<[EngineHash]>,
    contents: Box<[ContentHash]>,
    locations: Box<[Location]>,
    /// The content with an empty list.
    shape: Content<'static>,
}

impl From<&CacheEvent<'_>> for EarlyEvent {
    fn from(event: &CacheEvent<'_>) -> Self {
        match event {
            CacheEvent::Stored(stored) => {
                let (shape, contents) = match stored.content {
                    Content::Chained { parent, contents } => {
                        (Content::Chained { parent, contents: &[] }, contents)
                    }
                    Content::KnownAliases => (Content::KnownAliases, &[][..]),
                    Content::IndexHashes => (Content::IndexHashes, &[][..]),
                };
                Self::Stored(EarlyStored {
                    tier: stored.tier,
                    blocks: stored.blocks.into(),
                    contents: contents.into(),
                    locations: stored.locations.into(),
                    shape,
                })
            }
            CacheEvent::Removed { tier, blocks } => {
                Self::Removed { tier: *tier, blocks: (*blocks).into() }
            }
            CacheEvent::Cleared => Self::Cleared,
        }
    }
}

impl EarlyEvent {
    pub(crate) fn as_event(&self) -> CacheEvent<'_> {
        match self {
            Self::Stored(kept) => CacheEvent::Stored(StoredBlocks {
                tier: kept.tier,
                blocks: &kept.blocks,
                content: match kept.shape {
                    Content::Chained { parent, .. } => {
                        Content::Chained { parent, contents: &kept.contents }
                    }
                    other => other,
                },
                locations: &kept.locations,
            }),
            Self::Removed { tier, blocks } => CacheEvent::Removed { tier: *tier, blocks },
            Self::Cleared => CacheEvent::Cleared,
        }
    }
}
