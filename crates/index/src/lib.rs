//! Which pod holds which block, now.
//!
//! Engines tell when blocks enter and leave their caches; queries ask, for the chain of block hashes
//! of a prompt, how many leading blocks each pod holds. The answer is exact at all times: equal to
//! what a scan of every pod's cache would find, also when evictions left holes, copies lie on several
//! tiers, events came twice, late or without their parents, or a pod has just gone.
//!
//! The map from block to pods ([`table`]) stores for each block the number of a set ([`sets`]); a
//! query searches for the depths where that number changes ([`lookup`]). Each pod has a [`ledger`]
//! that resolves its engine's own hashes and counts copies. Readers and writers hold a view of where
//! the tables are ([`directory`]), so queries run without locks. The only unsafe code is the request for
//! a cache line ([`prefetch`]).
//!
//! ```
//! use wornpath_blocks::{BlockHash, ContentHash};
//! use wornpath_index::{Answer, Content, EngineHash, Event, Index, Limits, Parent, Stored, Tier};
//!
//! let index = Index::new(Limits::default(), 7);
//! let pod = index.add_pod()?;
//! let (seed, contents) = (BlockHash(1), [ContentHash(10), ContentHash(11), ContentHash(12)]);
//! let stored = Event::Stored(Stored {
//!     tier: Tier::Gpu,
//!     blocks: &[EngineHash(0xa), EngineHash(0xb)],
//!     content: Content::Chained { parent: Parent::Root(seed), contents: &contents[..2] },
//!     locations: &[],
//! });
//! index.writer().apply(pod, Some(0), &[stored])?;
//!
//! let prompt: Vec<_> = seed.chain(&contents).collect();
//! let mut answer = Answer::default();
//! index.reader().lookup(&prompt, &mut answer);
//! assert_eq!(answer.depth(pod.slot()), 2);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![deny(unsafe_code)]

mod alias_table;
mod bits;
mod block_map;
mod depths;
mod digest;
mod directory;
mod event;
mod export;
mod index;
mod insert;
mod ledger;
mod lookup;
mod orphans;
mod pod;
mod prefetch;
mod prefixes;
mod replicas;
mod sequence;
mod sets;
mod slab;
mod speculative;
mod stats;
mod steps;
mod sync;
mod table;
mod writer;

pub use depths::{Depths, Level};
pub use digest::{BlockDigest, PodDigest};
pub use event::{CacheEvent, Content, EngineHash, Location, Parent, StoredBlocks, Tier};
pub use export::{ExportedBlock, ExportedParent, RestoreError};
pub use index::{Index, IndexLimits, NoSlot, PodRemoved};
pub use ledger::PodCounters;
pub use lookup::IndexReader;
pub use pod::{Capacity, PodId, PodSet, PodSlot};
pub use prefixes::{PrefixLimits, PrefixRun, Prefixes};
pub use replicas::BlockLocation;
pub use sequence::Applied;
pub use speculative::Moment;
pub use stats::{PodStats, Stats};
#[doc(hidden)]
pub use steps::within_steps;
pub use writer::{IndexWriter, Snapshot, Swept};
