//! The cache index: which pod holds which block, now.
//!
//! Engines report blocks that enter and leave their caches; a query finds, for the chain of block
//! hashes of a prompt, how many leading blocks each pod holds. The result is exact at all times:
//! equal to a scan of every pod's cache, also when evictions left holes, copies are on several
//! tiers, events were duplicated, late or without their parents, or a pod was just removed.
//!
//! The table of blocks ([`table`]) stores the number of a set ([`sets`]) for each block; a
//! query searches for the depths where that number changes ([`lookup`]). Each pod has a [`ledger`]
//! that resolves its engine's own hashes and counts copies. Readers and writers keep references to
//! the current tables ([`directory`]), so queries run without locks. The only unsafe code
//! prefetches cache lines ([`prefetch`]).
//!
//! ```
//! use wornpath_blocks::{BlockHash, ContentHash};
//! use wornpath_index::{
//!     CacheEvent, Content, Depths, EngineHash, Index, IndexLimits, Parent, StoredBlocks, Tier,
//! };
//!
//! let index = Index::new(IndexLimits::default(), 7);
//! let pod = index.add_pod()?;
//! let seed = BlockHash(1);
//! let contents = [ContentHash(10), ContentHash(11), ContentHash(12)];
//! let stored = CacheEvent::Stored(StoredBlocks {
//!     tier: Tier::Gpu,
//!     blocks: &[EngineHash(0xa), EngineHash(0xb)],
//!     content: Content::Chained { parent: Parent::Root(seed), contents: &contents[..2] },
//!     locations: &[],
//! });
//! index.writer().apply(pod, Some(0), &[stored])?;
//!
//! let prompt: Vec<_> = seed.chain(&contents).collect();
//! let mut depths = Depths::default();
//! index.reader().lookup(&prompt, &mut depths);
//! assert_eq!(depths.depth(pod.slot()), 2);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![deny(unsafe_code)]

mod alias_table;
mod aliases;
mod bits;
mod block_map;
mod depths;
mod directory;
mod entry;
mod event;
mod export;
mod holes;
mod index;
mod insert;
mod ledger;
mod lookup;
mod members;
mod orphans;
mod pages;
mod pod;
mod prefetch;
mod prefixes;
mod removed;
mod replicas;
mod search;
mod sequence;
mod sets;
mod slab;
mod speculative;
mod state;
mod steps;
mod sync;
mod table;
mod writer;

pub use depths::{Depths, Level};
pub use event::{CacheEvent, Content, EngineHash, Location, Parent, StoredBlocks, Tier};
pub use export::{ExportedBlock, ExportedParent, RestoreError};
pub use index::{Index, PodStats, Stats};
pub use ledger::{BlockDigest, PodCounters, PodDigest};
pub use lookup::IndexReader;
pub use pod::{Capacity, PodId, PodSet, PodSlot};
pub use prefixes::{PrefixLimits, PrefixRun, Prefixes};
pub use replicas::BlockLocation;
pub use sequence::Applied;
pub use state::{IndexLimits, NoSlot, PodRemoved};
#[doc(hidden)]
pub use steps::{steps_of, within_steps};
pub use wornpath_time::Moment;
pub use writer::{IndexWriter, Snapshot, SnapshotApplied, Swept};
