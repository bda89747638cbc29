//! Captured streams, translated: the chains of the prompts that caused them come out, whatever
//! algorithm, seed, hash form and block size the engine had.

use crate::fixture;
use std::collections::HashMap;
use std::num::NonZeroUsize;
use wornpath_blocks::{BlockHash, BlockHasher, HashKey, Scope};
use wornpath_events::Translator;
use wornpath_events::wire::{WireBatch, WireLimits, WireMessage, decode, records};
use wornpath_index::{CacheEvent, Content, EngineHash, Parent};

const MODEL: &str = "tiny";

#[test]
fn the_chains_of_the_prompts_come_out_of_every_engine_setting_and_index_block_size() {
    let mut settings = 0;
    for (name, recording) in fixture::recordings() {
        if !name.starts_with("inproc") {
            continue;
        }
        let python = fixture::decoded_by_python(&name).unwrap();
        let engine_block = python["block_size"].as_u64().unwrap() as usize;
        let prompts: Vec<Vec<u32>> = serde_json::from_value(python["prompts"].clone()).unwrap();
        let (salted, salt): (Vec<u32>, String) =
            serde_json::from_value(python["cache_salt_prompt"].clone()).unwrap();
        for index_block in [8, engine_block] {
            let known = aliases(&recording, index_block);
            let parts = engine_block / index_block;
            let check = |scope: &Scope<'_>, tokens: &[u32]| {
                // Engines cache full blocks only.
                let full = &tokens[..tokens.len() / engine_block * engine_block];
                let chain = chain(scope, index_block, full);
                for ends in chain.chunks_exact(parts).map(|block| block[parts - 1]) {
                    assert!(known.values().any(|hash| *hash == ends), "{name} by {index_block}");
                }
            };
            prompts.iter().for_each(|prompt| check(&Scope::model(MODEL), prompt));
            check(&Scope { salt: Some(&salt), ..Scope::model(MODEL) }, &salted);
        }
        settings += 1;
    }
    assert_eq!(settings, 10);
}

#[test]
fn two_engines_that_hash_differently_describe_one_prefix_alike() {
    let one = aliases(&fixture::recording("inproc_sha256_seedNone_int_bs32"), 32);
    let other = aliases(&fixture::recording("inproc_xxhash_cbor_seed42_bytes_bs32"), 32);
    let sorted = |aliases: &HashMap<EngineHash, BlockHash>| {
        let mut hashes: Vec<_> = aliases.values().copied().collect();
        hashes.sort();
        hashes
    };
    assert!(one.keys().all(|name| !other.contains_key(name)));
    assert_eq!(sorted(&one), sorted(&other));
}

#[test]
fn every_captured_stream_translates_whole() {
    for (name, recording) in fixture::recordings() {
        let mut translator = Translator::new(&HashKey::DEFAULT, MODEL, nonzero(16));
        let mut batch = WireBatch::default();
        for record in records(&recording) {
            let record = record.unwrap();
            let WireMessage::Batch { payload, .. } = WireMessage::parse(&record).unwrap() else {
                continue;
            };
            decode(payload, &WireLimits::default(), &mut batch).unwrap();
            let translated = translator.translate(&batch).unwrap();
            assert_eq!((translated.events.len(), translated.ignored), (batch.len(), 0), "{name}");
        }
    }
}

/// What each of the engine's names stands for: a plain reading of the events, kept in one map.
fn aliases(recording: &[u8], index_block: usize) -> HashMap<EngineHash, BlockHash> {
    let mut translator = Translator::new(&HashKey::DEFAULT, MODEL, nonzero(index_block));
    let mut known: HashMap<EngineHash, BlockHash> = HashMap::new();
    let mut batch = WireBatch::default();
    for record in records(recording) {
        let record = record.unwrap();
        let WireMessage::Batch { payload, .. } = WireMessage::parse(&record).unwrap() else {
            continue;
        };
        decode(payload, &WireLimits::default(), &mut batch).unwrap();
        for event in translator.translate(&batch).unwrap().events {
            let CacheEvent::Stored(stored) = event else { continue };
            let Content::Chained { parent, contents } = stored.content else { continue };
            let mut prefix = match parent {
                Parent::Root(root) => root,
                Parent::Block(name) => known[&name],
            };
            let parts = contents.len() / stored.blocks.len();
            for (name, contents) in stored.blocks.iter().zip(contents.chunks_exact(parts)) {
                prefix = prefix.chain(contents).last().unwrap();
                known.insert(*name, prefix);
            }
        }
    }
    known
}

fn chain(scope: &Scope<'_>, block_size: usize, tokens: &[u32]) -> Vec<BlockHash> {
    let mut chain = Vec::new();
    let hasher = BlockHasher::new(&HashKey::DEFAULT, nonzero(block_size));
    hasher.hash_tokens(tokens, HashKey::DEFAULT.root(scope), &mut chain);
    chain
}

fn nonzero(value: usize) -> NonZeroUsize {
    NonZeroUsize::new(value).unwrap()
}
