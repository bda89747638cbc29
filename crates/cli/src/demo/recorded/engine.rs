//! A recorded engine that plays its event stream into the index, and the prompts found in it.

use super::{BLOCK_SIZE, MODEL};
use anyhow::{Context, ensure};
use std::collections::HashMap;
use wornpath_blocks::{BlockHash, BlockHasher, HashKey, Scope};
use wornpath_events::Translator;
use wornpath_events::wire::{
    WireBatch, WireEvent, WireExtraKey, WireLimits, WireMessage, decode, records,
};
use wornpath_index::{EngineHash, Index, IndexWriter, PodId};

/// What was captured from one engine.
pub(super) struct Recording {
    pub(super) name: &'static str,
    pub(super) setting: &'static str,
    pub(super) bytes: &'static [u8],
}

impl Recording {
    /// The batches in order, each with its number.
    fn messages(&self) -> anyhow::Result<Vec<(u64, &'static [u8])>> {
        let mut messages = Vec::new();
        for record in records(self.bytes) {
            let frames = record.with_context(|| format!("recording of {}", self.name))?;
            if let WireMessage::Batch { sequence, payload, .. } = WireMessage::parse(&frames)? {
                // The payload is the last frame, taken from there because the frames' list ends here.
                ensure!(frames.last() == Some(&payload), "{}: payload is not last", self.name);
                messages.extend(frames.last().map(|payload| (sequence, *payload)));
            }
        }
        Ok(messages)
    }
}

/// One pod of the demo.
pub(super) struct RecordedEngine {
    pub(super) name: &'static str,
    pod: PodId,
    writer: IndexWriter,
    translator: Translator,
    batch: WireBatch,
    messages: std::vec::IntoIter<(u64, &'static [u8])>,
}

impl RecordedEngine {
    pub(super) fn start(
        recording: &Recording,
        index: &Index,
        key: &HashKey,
    ) -> anyhow::Result<Self> {
        Ok(Self {
            name: recording.name,
            pod: index.add_pod()?,
            writer: index.writer(),
            translator: Translator::new(key, MODEL, BLOCK_SIZE),
            batch: WireBatch::default(),
            messages: recording.messages()?.into_iter(),
        })
    }

    pub(super) fn pod(&self) -> PodId {
        self.pod
    }

    /// Plays the messages numbered below `end`.
    pub(super) fn play_until(&mut self, end: u64) -> anyhow::Result<()> {
        while let Some((sequence, payload)) = self.messages.as_slice().first().copied() {
            if sequence >= end {
                break;
            }
            self.messages.next();
            decode(payload, &WireLimits::default(), &mut self.batch)
                .with_context(|| format!("message {sequence} of {}", self.name))?;
            let translated = self.translator.translate(&self.batch)?;
            self.writer.apply(self.pod, Some(sequence), &translated.events)?;
        }
        Ok(())
    }
}

/// A prompt as a client would send it: tokens, and the tenant's salt.
pub(super) struct RecordedPrompt {
    pub(super) name: &'static str,
    pub(super) tokens: Vec<u32>,
    salt: Option<String>,
}

impl RecordedPrompt {
    /// The prompt whose last blocks an engine stored in message `number`, put together from the
    /// stores before it.
    pub(super) fn cached_at(
        name: &'static str,
        recording: &Recording,
        number: u64,
    ) -> anyhow::Result<Self> {
        let mut stored: HashMap<EngineHash, (Vec<u32>, Option<String>)> = HashMap::new();
        let mut batch = WireBatch::default();
        for (sequence, payload) in recording.messages()? {
            decode(payload, &WireLimits::default(), &mut batch)?;
            for event in batch.events() {
                let WireEvent::Stored(event) = event else { continue };
                let (mut tokens, salt) = match event.parent {
                    Some(parent) => {
                        stored.get(&parent).context("a block without its parent")?.clone()
                    }
                    None => (Vec::new(), salt(event.extra_keys.block(0))),
                };
                for (block, part) in event.blocks.iter().zip(event.tokens.chunks(BLOCK_SIZE.get()))
                {
                    tokens.extend_from_slice(part);
                    stored.insert(*block, (tokens.clone(), salt.clone()));
                }
                if sequence == number {
                    return Ok(Self { name, tokens, salt });
                }
            }
        }
        anyhow::bail!("{} has no store in message {number}", recording.name)
    }

    /// What the gateway asks the index for.
    pub(super) fn chain(&self, key: &HashKey) -> Vec<BlockHash> {
        let scope = Scope { salt: self.salt.as_deref(), ..Scope::model(MODEL) };
        let mut chain = Vec::new();
        let hasher = BlockHasher::new(key, BLOCK_SIZE);
        hasher.hash_tokens(&self.tokens, key.root(&scope), &mut chain);
        chain
    }
}

fn salt<'a>(mut keys: impl Iterator<Item = WireExtraKey<'a>>) -> Option<String> {
    keys.find_map(|key| match key {
        WireExtraKey::Text(salt) => Some(salt.to_owned()),
        _ => None,
    })
}
