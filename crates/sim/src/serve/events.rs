//! The cache events of an engine: numbered batches in vLLM's encoding over ZeroMQ, with replay.

use super::clock::unix_seconds;
use super::faults::Faults;
use crate::request::SimOutcome;
use bytes::Bytes;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::task::JoinSet;
use wornpath_events::wire::{
    ExtraKeysBuffer, GroupAttention, HashForm, WireBatch, WireDialect, WireEvent, WireExtraKey,
    WireLayout, WireMessage, WireRemoved, WireStored, encode,
};
use wornpath_events::zmtp::{ZmtpListener, ZmtpPublisher};

/// Batches that can be replayed, as in vLLM.
const REPLAY_BATCHES: usize = 10_000;

/// The encoding of vLLM 0.32.
const DIALECT: WireDialect = WireDialect { layout: WireLayout::Maps, hashes: HashForm::Unsigned };

/// A batch with its number.
type NumberedBatch = (u64, Bytes);

/// The batches that can still be replayed.
pub(super) type ReplayBuffer = Arc<Mutex<VecDeque<NumberedBatch>>>;

/// The tokens of a request and what else its blocks are keyed by, for its events.
pub(super) struct PromptScope {
    pub(super) tokens: Arc<[u32]>,
    pub(super) salt: Option<String>,
    pub(super) lora: Option<String>,
}

/// One engine's event stream.
pub(super) struct EventStream {
    publisher: ZmtpPublisher,
    topic: String,
    block_size: usize,
    next: u64,
    ring: ReplayBuffer,
    batch: WireBatch,
    /// A batch that is published after its successor: the fault `reorder_events`.
    held: Option<NumberedBatch>,
}

impl EventStream {
    pub(super) fn new(
        publisher: ZmtpPublisher,
        topic: String,
        block_size: usize,
        ring: ReplayBuffer,
    ) -> Self {
        let batch = WireBatch::default();
        Self { publisher, topic, block_size, next: 0, ring, batch, held: None }
    }

    /// Adds an outcome to the current batch, if it is about the cache.
    pub(super) fn add(&mut self, outcome: &SimOutcome, scope: Option<&PromptScope>) {
        match outcome {
            SimOutcome::Stored { chain, blocks, tier, .. } => {
                let Some(scope) = scope else { return };
                let tokens = blocks.start * self.block_size..blocks.end * self.block_size;
                let extra = extra_keys(scope, blocks.start, blocks.len());
                self.batch.push(WireEvent::Stored(WireStored {
                    blocks: &chain[blocks.clone()],
                    parent: blocks.start.checked_sub(1).map(|parent| chain[parent]),
                    tokens: &scope.tokens[tokens],
                    block_size: u32::try_from(self.block_size).unwrap_or(u32::MAX),
                    lora_id: None,
                    lora_name: scope.lora.as_deref(),
                    tier: *tier,
                    extra_keys: extra.keys(),
                    group: Some(0),
                    attention: GroupAttention::Full,
                    locations: &[],
                }));
            }
            SimOutcome::Removed { blocks, tier } => {
                // vLLM sends one event for every evicted block.
                for block in blocks {
                    let blocks = std::slice::from_ref(block);
                    self.batch.push(WireEvent::Removed(WireRemoved {
                        blocks,
                        tier: *tier,
                        group: Some(0),
                    }));
                }
            }
            SimOutcome::Cleared => self.batch.push(WireEvent::Cleared),
            _ => {}
        }
    }

    /// Sends the current batch, if there is anything in it.
    pub(super) fn flush(&mut self, faults: &Faults) {
        if self.batch.is_empty() {
            return;
        }
        self.batch.sent_at = unix_seconds();
        self.batch.dp_rank = Some(0);
        let mut payload = Vec::new();
        encode(&self.batch, DIALECT, &mut payload);
        self.batch.clear();
        let numbered = (self.next, Bytes::from(payload));
        self.next += 1;
        {
            let mut ring = self.ring.lock().unwrap_or_else(PoisonError::into_inner);
            ring.push_back(numbered.clone());
            if ring.len() > REPLAY_BATCHES {
                ring.pop_front();
            }
        }
        self.publish(numbered, faults);
    }

    fn publish(&mut self, numbered: NumberedBatch, faults: &Faults) {
        let dropped = faults.drop_events_every.is_some_and(|every| numbered.0 % every == every - 1);
        if faults.lose_tail || dropped {
            return;
        }
        if faults.reorder_events && self.held.is_none() {
            self.held = Some(numbered);
            return;
        }
        self.send(&numbered, faults);
        if let Some(overtaken) = self.held.take() {
            self.send(&overtaken, faults);
        }
    }

    fn send(&self, (sequence, payload): &NumberedBatch, faults: &Faults) {
        let times = if faults.duplicate_events { 2 } else { 1 };
        for _ in 0..times {
            let sequence = sequence.to_be_bytes();
            self.publisher.send(&[self.topic.as_bytes(), &sequence, payload]);
        }
    }
}

/// The extra keys of each block: the adapter in every block, the salt in the first.
fn extra_keys(scope: &PromptScope, first: usize, count: usize) -> ExtraKeysBuffer {
    let mut buffer = ExtraKeysBuffer::default();
    if scope.lora.is_none() && (scope.salt.is_none() || first > 0) {
        return buffer;
    }
    for block in first..first + count {
        let salt = scope.salt.as_deref().filter(|_| block == 0);
        let keys: Vec<_> =
            [scope.lora.as_deref(), salt].into_iter().flatten().map(WireExtraKey::Text).collect();
        buffer.push(&keys);
    }
    buffer
}

/// Answers replay requests until the listener fails.
pub(super) async fn serve_replay(
    mut listener: ZmtpListener,
    topic: String,
    ring: ReplayBuffer,
    faults: Arc<Mutex<Faults>>,
) {
    let mut connections = JoinSet::new();
    while let Ok(mut connection) = listener.accept().await {
        while connections.try_join_next().is_some() {}
        let topic = topic.clone();
        let ring = Arc::clone(&ring);
        let faults = Arc::clone(&faults);
        connections.spawn(async move {
            while let Ok(frames) = connection.receive().await {
                let start = frames.last().and_then(|start| <[u8; 8]>::try_from(&start[..]).ok());
                let no_replay = faults.lock().unwrap_or_else(PoisonError::into_inner).no_replay;
                let (Some(start), false) = (start.map(u64::from_be_bytes), no_replay) else {
                    continue;
                };
                let batches: Vec<NumberedBatch> = {
                    let ring = ring.lock().unwrap_or_else(PoisonError::into_inner);
                    ring.iter().filter(|(sequence, _)| *sequence >= start).cloned().collect()
                };
                for (sequence, payload) in batches {
                    let sequence = sequence.to_be_bytes();
                    let frames: [&[u8]; 4] = [b"", topic.as_bytes(), &sequence, &payload];
                    if connection.send(&frames).await.is_err() {
                        return;
                    }
                }
                let end = WireMessage::REPLAY_END.to_be_bytes();
                if connection.send(&[&b""[..], b"", &end, b""]).await.is_err() {
                    return;
                }
            }
        });
    }
}
