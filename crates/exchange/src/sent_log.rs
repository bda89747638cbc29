//! The prompts that a router has sent and not yet told of.

use crate::update::SentBlocks;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};
use wornpath_blocks::BlockHash;
use wornpath_index::{IndexWriter, PodId};
use wornpath_routing::{Fleet, RoutingHistory, SentChain};
use wornpath_time::Moment;

/// Blocks that wait to be told; the ends of prompts beyond them are not told.
const MAX_BLOCKS: usize = 64 << 10;

/// The prompts that a router has sent and not yet told of. Threads that decide add to it.
#[derive(Debug, Default)]
pub struct SentLog {
    is_wanted: AtomicBool,
    prompts: Mutex<SentPrompts>,
}

/// Which part of a prompt others are told of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Told {
    /// What the pod did not hold: the others know the rest by its events.
    New,
    /// All of it: the pod sends no events, and what it holds is approximated from whole prompts.
    Whole,
}

#[derive(Debug, Default)]
struct SentPrompts {
    prompts: Vec<SentPart>,
    /// In all of them.
    blocks: usize,
}

#[derive(Debug)]
struct SentPart {
    pod: PodId,
    parent: Option<BlockHash>,
    block_tokens: usize,
    expires: Moment,
    blocks: Vec<BlockHash>,
}

impl SentLog {
    /// Adds a prompt, if another router wants to know it.
    pub fn add(&self, pod: PodId, chain: SentChain<'_>, told: Told) {
        if !self.is_wanted.load(Relaxed) {
            return;
        }
        let SentChain { blocks, held, block_tokens, expires } = chain;
        let held = if told == Told::Whole { 0 } else { held.min(blocks.len()) };
        let (before, blocks) = blocks.split_at(held);
        let mut log = self.prompts();
        let blocks = &blocks[..blocks.len().min(MAX_BLOCKS - log.blocks)];
        if blocks.is_empty() {
            return;
        }
        log.blocks += blocks.len();
        let parent = before.last().copied();
        log.prompts.push(SentPart { pod, parent, block_tokens, expires, blocks: blocks.to_vec() });
    }

    /// From now on there is another router that wants to know.
    pub fn begin(&self) {
        self.is_wanted.store(true, Relaxed);
    }

    /// There is none any more.
    pub fn end(&self) {
        self.is_wanted.store(false, Relaxed);
        *self.prompts() = SentPrompts::default();
    }

    /// What was sent since the last call.
    pub(crate) fn take(&self, fleet: &Fleet, now: Moment) -> Vec<SentBlocks> {
        let taken = std::mem::take(&mut *self.prompts()).prompts;
        let named = |part: SentPart| {
            let lifetime = part.expires.since(now).as_millis();
            Some(SentBlocks {
                pod: fleet[fleet.find(part.pod)?].facts().name.to_string(),
                parent: part.parent,
                block_tokens: u32::try_from(part.block_tokens).unwrap_or(u32::MAX),
                lifetime_ms: u32::try_from(lifetime).unwrap_or(u32::MAX),
                blocks: part.blocks,
            })
        };
        taken.into_iter().filter_map(named).collect()
    }

    fn prompts(&self) -> MutexGuard<'_, SentPrompts> {
        self.prompts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Where every pod sends events.
impl RoutingHistory for SentLog {
    fn sent(&self, _: &mut IndexWriter, pod: PodId, chain: SentChain<'_>) -> bool {
        self.add(pod, chain, Told::New);
        false
    }

    fn refused(&self, _: &mut IndexWriter, _: PodId, _: &[BlockHash]) -> bool {
        false
    }
}
