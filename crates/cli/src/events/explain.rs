//! Why a prediction was wrong: by what the engine's events say from the prediction to the end of
//! the answer, and by what the prompt would have hit under another salt or adapter.
//!
//! Blocks are named by their content alone, without salt and adapter, so that a block that was
//! announced under another key is recognized.

use std::collections::HashMap;
use std::fmt;
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use wornpath_blocks::{BlockHash, BlockHasher, HashKey, Scope};
use wornpath_events::wire::{WireBatch, WireEvent, WireStored};
use wornpath_events::{PodName, SourceMessage, SourceSignal, Transport, ZeroMq, ZmqAddress};
use wornpath_index::EngineHash;

/// How long the journal may be behind the index.
const BEHIND: Duration = Duration::from_secs(2);
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// A prediction that was wrong.
#[derive(Clone, Debug, Default)]
pub(super) struct WrongPrediction {
    /// Tokens in a block.
    pub(super) block_size: u64,
    /// Tokens that the events predicted.
    pub(super) expected: u64,
    /// Tokens that the engine reported.
    pub(super) cached: u64,
    /// The blocks of the prompt, by content.
    pub(super) chain: Vec<BlockHash>,
    /// What the events predict for the same tokens under other keys, by how these are called.
    pub(super) otherwise: Vec<(String, u64)>,
}

/// Why a prediction was wrong.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum WrongBecause {
    /// The engine has dropped its whole cache.
    Reset,
    /// It evicted blocks of the prompt.
    Evicted(usize),
    /// It announced blocks of the prompt only after they could have been predicted.
    Late(usize),
    /// It keys blocks as if the prompt had this salt or adapter, or none.
    OtherKey(String),
    /// It holds what it has never announced.
    Unannounced,
    /// It announced what it does not use.
    Unused,
}

impl WrongBecause {
    /// The reason, by the events from the prediction to the end of the answer.
    pub(super) fn of(wrong: &WrongPrediction, events: &[JournalEntry]) -> Self {
        if events.iter().any(|event| matches!(event, JournalEntry::Cleared)) {
            return Self::Reset;
        }
        let block = |tokens: u64| (tokens / wrong.block_size.max(1)) as usize;
        let less = wrong.expected.min(wrong.cached);
        let more = wrong.expected.max(wrong.cached);
        let end = block(more).min(wrong.chain.len());
        let differing = &wrong.chain[block(less).min(end)..end];
        let is_less = wrong.cached < wrong.expected;
        let named = events.iter().flat_map(|event| match event {
            JournalEntry::Removed(blocks) if is_less => blocks.as_slice(),
            JournalEntry::Stored(blocks) if !is_less => blocks.as_slice(),
            _ => &[],
        });
        let found = named.filter(|named| differing.contains(named)).count();
        let other = wrong.otherwise.iter().find(|(_, tokens)| *tokens == wrong.cached);
        match (is_less, found, other) {
            (true, 1.., _) => Self::Evicted(found),
            (false, 1.., _) => Self::Late(found),
            (_, 0, Some((key, _))) => Self::OtherKey(key.clone()),
            (false, 0, None) => Self::Unannounced,
            (true, 0, None) => Self::Unused,
        }
    }
}

/// The reason and the cure.
impl fmt::Display for WrongBecause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Reset => f.write_str(
                "the engine dropped its whole cache meanwhile; nothing to cure, unless it happens often",
            ),
            Self::Evicted(blocks) => write!(
                f,
                "the engine evicted {blocks} of its blocks meanwhile; other requests use the engine, or its cache is too small"
            ),
            Self::Late(blocks) => write!(
                f,
                "the events of {blocks} of its blocks came late; predictions become right once they are applied"
            ),
            Self::OtherKey(key) => write!(
                f,
                "the engine has cached as for a prompt {key}; its version does not keep salts or adapters apart as its events say"
            ),
            Self::Unannounced => f.write_str(
                "the engine holds blocks that it never announced; check that --from is this engine's publisher, and start \
                 the engine with a replay endpoint",
            ),
            Self::Unused => f.write_str(
                "the engine does not use blocks that it announced; check that prefix caching is on, and that nothing asks it \
                 to skip its cache",
            ),
        }
    }
}

/// What an event said, by the content of blocks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum JournalEntry {
    Stored(Vec<BlockHash>),
    Removed(Vec<BlockHash>),
    Cleared,
}

/// The events of an engine in order.
pub(super) struct EventJournal {
    state: Arc<Mutex<JournalState>>,
    task: tokio::task::JoinHandle<()>,
}

struct JournalState {
    hasher: BlockHasher,
    names: HashMap<EngineHash, BlockHash>,
    entries: Vec<JournalEntry>,
    last_sequence: Option<u64>,
}

impl Drop for EventJournal {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl EventJournal {
    /// Follows the events of an engine from now on.
    pub(super) fn start(from: ZmqAddress, block_size: NonZeroUsize) -> Self {
        let state = Arc::new(Mutex::new(JournalState::new(block_size)));
        let kept = Arc::clone(&state);
        let pod: PodName = "engine".into();
        let task = tokio::spawn(async move {
            let mut transport = ZeroMq::new(pod, from);
            loop {
                let (SourceSignal::Pod(_, message) | SourceSignal::AllPods(message)) =
                    transport.next().await;
                lock(&kept).apply(message);
            }
        });
        Self { state, task }
    }

    /// The blocks of a prompt, by content.
    pub(super) fn chain(&self, tokens: &[u32]) -> Vec<BlockHash> {
        let mut chain = Vec::new();
        lock(&self.state).hasher.hash_tokens(tokens, root(), &mut chain);
        chain
    }

    /// Takes the entries since the last call, once those up to a sequence number are there.
    pub(super) async fn take(&self, sequence: Option<u64>) -> Vec<JournalEntry> {
        let arrived = async {
            while lock(&self.state).last_sequence < sequence {
                tokio::time::sleep(POLL_INTERVAL).await;
            }
        };
        // An entry that is missing leaves the reason open, and nothing else.
        let _ = tokio::time::timeout(BEHIND, arrived).await;
        std::mem::take(&mut lock(&self.state).entries)
    }
}

fn lock(state: &Mutex<JournalState>) -> MutexGuard<'_, JournalState> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

fn root() -> BlockHash {
    HashKey::DEFAULT.root(&Scope::model(""))
}

impl JournalState {
    fn new(block_size: NonZeroUsize) -> Self {
        Self {
            hasher: BlockHasher::new(&HashKey::DEFAULT, block_size),
            names: HashMap::new(),
            entries: Vec::new(),
            last_sequence: None,
        }
    }

    fn apply(&mut self, message: SourceMessage) {
        let SourceMessage::Batch { id, batch, .. } = message else { return };
        // A lower number: the engine was restarted, and holds nothing.
        if id.sequence < self.last_sequence {
            self.entries.push(JournalEntry::Cleared);
        }
        self.last_sequence = id.sequence;
        self.add(&batch);
    }

    fn add(&mut self, batch: &WireBatch) {
        for event in batch.events() {
            let entry = match event {
                WireEvent::Stored(stored) => JournalEntry::Stored(self.stored(&stored)),
                WireEvent::Removed(removed) => {
                    let names = removed.blocks.iter().filter_map(|hash| self.names.get(hash));
                    JournalEntry::Removed(names.copied().collect())
                }
                WireEvent::Cleared => JournalEntry::Cleared,
            };
            self.entries.push(entry);
        }
    }

    /// The content of stored blocks; those after an unknown block are unknown too.
    fn stored(&mut self, stored: &WireStored<'_>) -> Vec<BlockHash> {
        let parent = match stored.parent {
            None => Some(root()),
            Some(parent) => self.names.get(&parent).copied(),
        };
        let mut chain = Vec::new();
        if let Some(parent) = parent {
            self.hasher.hash_tokens(stored.tokens, parent, &mut chain);
        }
        self.names.extend(stored.blocks.iter().copied().zip(chain.iter().copied()));
        chain
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn blocks(numbers: std::ops::Range<u64>) -> Vec<BlockHash> {
        numbers.map(BlockHash).collect()
    }

    /// A prompt of ten blocks of 16 tokens.
    fn wrong(expected: u64, cached: u64) -> WrongPrediction {
        WrongPrediction {
            block_size: 16,
            expected: 16 * expected,
            cached: 16 * cached,
            chain: blocks(0..10),
            otherwise: Vec::new(),
        }
    }

    #[test]
    fn evictions_and_late_stores_count_only_between_prediction_and_truth() {
        let removed = [JournalEntry::Removed(blocks(5..12)), JournalEntry::Stored(blocks(0..10))];
        assert_eq!(WrongBecause::of(&wrong(8, 5), &removed), WrongBecause::Evicted(3));
        assert_eq!(WrongBecause::of(&wrong(5, 3), &removed), WrongBecause::Unused);
        let stored = [JournalEntry::Stored(blocks(2..9)), JournalEntry::Removed(blocks(0..10))];
        assert_eq!(WrongBecause::of(&wrong(2, 4), &stored), WrongBecause::Late(2));
        assert_eq!(WrongBecause::of(&wrong(0, 2), &stored), WrongBecause::Unannounced);
    }

    #[test]
    fn a_reset_explains_everything_else() {
        let events = [JournalEntry::Removed(blocks(0..9)), JournalEntry::Cleared];
        assert_eq!(WrongBecause::of(&wrong(8, 0), &events), WrongBecause::Reset);
    }

    #[test]
    fn another_key_that_predicts_the_truth_is_named_if_no_event_explains_it() {
        let keyed =
            WrongPrediction { otherwise: vec![("without its salt".to_owned(), 64)], ..wrong(0, 4) };
        let other = WrongBecause::OtherKey("without its salt".to_owned());
        assert_eq!(WrongBecause::of(&keyed, &[]), other);
        let elsewhere = WrongPrediction { otherwise: vec![("x".to_owned(), 48)], ..wrong(0, 4) };
        assert_eq!(WrongBecause::of(&elsewhere, &[]), WrongBecause::Unannounced);
    }

    #[test]
    fn blocks_are_known_by_their_content_whatever_the_engine_calls_them() {
        let mut state = JournalState::new(NonZeroUsize::new(2).unwrap());
        let tokens: Vec<u32> = (0..6).collect();
        let mut chain = Vec::new();
        state.hasher.hash_tokens(&tokens, root(), &mut chain);
        let names = [EngineHash(7), EngineHash(8), EngineHash(9)];
        let first = WireStored::plain(&names[..2], None, &tokens[..4]);
        assert_eq!(state.stored(&first), chain[..2]);
        let next = WireStored::plain(&names[2..], Some(names[1]), &tokens[4..]);
        assert_eq!(state.stored(&next), chain[2..]);
        let orphan = WireStored::plain(&[EngineHash(1)], Some(EngineHash(0)), &tokens[..2]);
        assert_eq!(state.stored(&orphan), [], "its prefix is unknown");
    }
}
