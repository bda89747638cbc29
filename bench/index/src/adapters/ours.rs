//! wornpath's own index, with everything on: aliases, counted copies, tiers and the reverse index.
//!
//! `seq` is the engine's hash and only an alias; our chain is derived from the contents. Every
//! event is a batch of its own with a sequence number, as an engine would send it. Removal is
//! followed by sweep steps of a bounded number of blocks, which the caller drives.

use std::ops::Range;

use wornpath_blocks::{BlockHash, ContentHash};
use wornpath_index::{
    CacheEvent, Capacity, Content, EngineHash, IndexLimits, Moment, Parent, PodId, StoredBlocks,
    Swept, Tier,
};

use super::{Index, Reader, chain};
use crate::log::{self, EventLog, Kind};
use crate::workload::QuerySet;

/// The seed of every chain: one model, no tenants.
const ROOT: BlockHash = BlockHash(0x5EED);
/// Blocks per sweep step.
const SWEEP: usize = 512;

/// The adapter.
pub(crate) struct Ours;

/// Events with the engine's names and the contents.
pub(crate) struct Log {
    events: Vec<log::Event>,
    names: Vec<EngineHash>,
    contents: Vec<ContentHash>,
}

/// Queries in both shapes.
pub(crate) struct Queries {
    blocks: usize,
    chains: Vec<BlockHash>,
    contents: Vec<ContentHash>,
}

/// The index with the number of pods that it was made for.
pub(crate) struct Shared {
    index: wornpath_index::Index,
    pods: usize,
}

/// The writer with each pod's identity and the number of its next batch.
pub(crate) struct Writer {
    writer: wornpath_index::IndexWriter,
    pods: Vec<(PodId, u64)>,
}

impl Index for Ours {
    const NAME: &'static str = crate::results::OURS;
    type Log = Log;
    type Queries = Queries;
    type Shared = Shared;
    type Writer = Writer;
    type Reader<'a> = OurReader;

    fn log(log: &EventLog) -> Log {
        Log {
            events: log.events.clone(),
            names: log.seqs.iter().map(|seq| EngineHash(*seq)).collect(),
            contents: log.locals.iter().map(|local| ContentHash(*local)).collect(),
        }
    }

    fn queries(queries: &QuerySet) -> Queries {
        let contents: Vec<_> = queries.locals.iter().map(|local| ContentHash(*local)).collect();
        let chains = contents.chunks(queries.blocks).flat_map(|contents| ROOT.chain(contents));
        Queries { blocks: queries.blocks, chains: chains.collect(), contents }
    }

    fn create(pods: usize) -> (Shared, Writer) {
        let capacity = Capacity::for_pods(pods).expect("no workload has more than 4096 pods");
        let index =
            wornpath_index::Index::new(IndexLimits { capacity, ..IndexLimits::default() }, 7);
        let add = |position| {
            let pod = index.add_pod().expect("the capacity was chosen for the pods");
            assert_eq!(pod.slot().position(), position, "a fresh index fills its slots in order");
            (pod, 0)
        };
        let all = (0..pods).map(add).collect();
        let writer = index.writer();
        (Shared { index, pods }, Writer { writer, pods: all })
    }

    fn apply(_: &Shared, writer: &mut Writer, log: &Log, events: Range<usize>) {
        for event in &log.events[events] {
            let tier = Tier::ALL[usize::from(event.tier)];
            let blocks = &log.names[event.blocks()];
            let event_of = match event.kind {
                Kind::Removed => CacheEvent::Removed { tier, blocks },
                Kind::Stored { parent } => {
                    let parent =
                        parent.map_or(Parent::Root(ROOT), |seq| Parent::Block(EngineHash(seq)));
                    let contents = &log.contents[event.blocks()];
                    // Offloaded blocks come as bare names, as real engines send them.
                    let content = match tier {
                        Tier::Gpu => Content::Chained { parent, contents },
                        _ => Content::KnownAliases,
                    };
                    CacheEvent::Stored(StoredBlocks { tier, blocks, content, locations: &[] })
                }
            };
            let (pod, sequence) = &mut writer.pods[event.pod as usize];
            let applied = writer.writer.apply(*pod, Some(*sequence), &[event_of]);
            applied.expect("no event follows the removal of its pod");
            *sequence += 1;
        }
    }

    fn reader(shared: &Shared) -> OurReader {
        let depths = vec![0; shared.pods];
        OurReader { reader: shared.index.reader(), depths, chain: Vec::new() }
    }

    fn expect(writer: &mut Writer, queries: &Queries, query: usize, pod: usize) {
        let chain = chain(&queries.chains, queries.blocks, query);
        let (pod, _) = writer.pods[pod];
        let expires = Moment::from_secs(10);
        writer.writer.insert_speculative(pod, chain, expires).expect("no pod has left yet");
    }

    fn expire(writer: &mut Writer) {
        writer.writer.expire(Moment::from_secs(11));
    }

    fn remove_pod(shared: &Shared, writer: &mut Writer, pod: u32) {
        shared.index.remove_pod(writer.pods[pod as usize].0);
    }

    fn sweep(_: &Shared, writer: &mut Writer) -> bool {
        writer.writer.sweep(SWEEP) == Swept::Partly
    }
}

/// Keeps the last answer as the router reads it: the depth of every pod.
pub(crate) struct OurReader {
    reader: wornpath_index::IndexReader,
    depths: Vec<u32>,
    chain: Vec<BlockHash>,
}

impl Reader for OurReader {
    type Queries = Queries;

    #[inline]
    fn lookup(&mut self, queries: &Queries, query: usize) {
        let chain = chain(&queries.chains, queries.blocks, query);
        self.reader.depths(chain, &mut self.depths);
    }

    #[inline]
    fn lookup_local(&mut self, queries: &Queries, query: usize) {
        self.chain.clear();
        self.chain.extend(ROOT.chain(chain(&queries.contents, queries.blocks, query)));
        self.reader.depths(&self.chain, &mut self.depths);
    }

    fn depths(&self, into: &mut [u32]) {
        into.copy_from_slice(&self.depths[..into.len()]);
    }

    fn answers(&self, pod: u32) -> bool {
        self.depths[pod as usize] > 0
    }
}
