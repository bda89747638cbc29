//! Numbered batches: each applied once, in order, however they arrive.
//!
//! Copies are counted, so applying a batch twice or out of order would leave a wrong count. A batch
//! that was applied before is dropped; one that comes early is kept, a bounded number of them, until
//! those before it have come. What never comes is the caller's to fetch (a replay) or to give up
//! (a snapshot, or a new start at a later number).

use std::collections::BTreeMap;

use crate::event::{CacheEvent, Content, EngineHash, Location, StoredBlocks, Tier};
use wornpath_blocks::ContentHash;

/// What became of a batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Applied {
    /// It was applied, and with it this many that had been waiting for it.
    Now {
        /// Batches kept earlier that could be applied after it.
        caught_up: usize,
    },
    /// It had been applied before; nothing changed.
    Before,
    /// It came early and is kept. The batches from `speculative` up to it are missing.
    Early {
        /// The number that is to be applied next.
        expected: u64,
    },
    /// It came early and there was no room to keep it.
    Dropped {
        /// The number that is to be applied next.
        expected: u64,
    },
}

/// Where a batch stands in the order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Order {
    Now,
    Before,
    Early(u64),
}

#[derive(Debug)]
pub(crate) struct Sequence {
    /// The number expected next; any, before the first.
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

    /// Whose turn it is. A source's first batch sets the count.
    pub(crate) fn turn(&self, sequence: u64) -> Order {
        match self.next {
            None => Order::Now,
            Some(next) if sequence == next => Order::Now,
            Some(next) if sequence < next => Order::Before,
            Some(next) => Order::Early(next),
        }
    }

    pub(crate) fn advance(&mut self, sequence: u64) {
        self.next = Some(sequence.wrapping_add(1));
    }

    /// Goes on with `sequence`, whatever is missing before it.
    pub(crate) fn start_at(&mut self, sequence: u64) {
        self.next = Some(sequence);
        self.early = self.early.split_off(&sequence);
    }

    /// Keeps a batch that came early; `false` if there is no room.
    pub(crate) fn keep(&mut self, sequence: u64, events: &[CacheEvent<'_>]) -> bool {
        if self.early.len() >= self.window && !self.early.contains_key(&sequence) {
            return false;
        }
        let kept = || events.iter().map(EarlyEvent::from).collect();
        self.early.entry(sequence).or_insert_with(kept);
        true
    }

    /// The kept batch whose turn has come.
    pub(crate) fn take_due(&mut self) -> Option<(u64, Vec<EarlyEvent>)> {
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
    /// The content with its list taken out.
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
                    Content::Named => (Content::Named, &[][..]),
                    Content::Native => (Content::Native, &[][..]),
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
