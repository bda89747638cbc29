//! Every captured stream decodes to what Python decoded from it, field by field.

use crate::fixture;
use serde_json::Value;
use wornpath_events::wire::{
    GroupAttention, WireBatch, WireEvent, WireExtraKey, WireLimits, WireMessage, WireRemoved,
    WireStored, decode, records,
};
use wornpath_index::{EngineHash, Tier};

#[test]
fn every_captured_message_equals_pythons_decoding() {
    let mut compared = 0;
    for (name, recording) in fixture::recordings() {
        let Some(python) = fixture::decoded_by_python(&name) else { continue };
        let frames = python["frames"].as_array().unwrap();
        let mut batch = WireBatch::default();
        let mut messages = 0;
        for (record, expected) in records(&recording).zip(frames) {
            let record = record.unwrap();
            let WireMessage::Batch { topic, sequence, payload } =
                WireMessage::parse(&record).unwrap()
            else {
                panic!("{name}: a published stream has no end marker");
            };
            assert_eq!(topic, expected["topic"].as_str().unwrap().as_bytes());
            assert_eq!(sequence, expected["seq"].as_u64().unwrap());
            decode(payload, &WireLimits::default(), &mut batch).unwrap();
            let [sent_at, events, rank] = &expected["decoded"].as_array().unwrap()[..] else {
                panic!("{name}: not [ts, events, rank]")
            };
            assert_eq!(Some(batch.sent_at), sent_at.as_f64());
            assert_eq!(batch.dp_rank.map(u64::from), rank.as_u64());
            assert_eq!(batch.unknown_events, 0);
            let events = events.as_array().unwrap();
            assert_eq!(batch.len(), events.len(), "{name}, message {sequence}");
            for (event, expected) in batch.events().zip(events) {
                assert_event(event, expected);
                compared += 1;
            }
            messages += 1;
        }
        assert_eq!(messages, frames.len(), "{name}");
    }
    assert_eq!(compared, 581, "events in all streams that Python decoded");
}

#[test]
fn the_streams_without_a_python_decoding_have_the_captured_number_of_events() {
    // Counted by Python from the same files: messages, stores, removes, clears, blocks.
    let cases = [
        ("stress_gpu", [120, 261, 601, 0, 1273]),
        ("stress_offload", [120, 734, 629, 0, 1879]),
        ("serve_sha256_cbor.replay0", [16, 16, 29, 1, 122]),
    ];
    for (name, expected) in cases {
        assert_eq!(count(&fixture::recording(name)), expected, "{name}");
    }
}

#[test]
fn a_replay_holds_the_same_batches_as_the_published_stream_and_then_ends() {
    let published = fixture::recording("serve_sha256_cbor");
    let replayed = fixture::recording("serve_sha256_cbor.replay0");
    let published: Vec<_> = records(&published).map(Result::unwrap).collect();
    let replayed: Vec<_> = records(&replayed).map(Result::unwrap).collect();
    let (end, batches) = replayed.split_last().unwrap();
    assert_eq!(WireMessage::parse(end), Ok(WireMessage::ReplayEnd));
    assert_eq!(batches.len(), published.len());
    for (replayed, published) in batches.iter().zip(&published) {
        assert_eq!(WireMessage::parse(replayed), WireMessage::parse(published));
    }
}

fn count(recording: &[u8]) -> [usize; 5] {
    let mut batch = WireBatch::default();
    let mut counts = [0; 5];
    for record in records(recording) {
        let record = record.unwrap();
        let WireMessage::Batch { payload, .. } = WireMessage::parse(&record).unwrap() else {
            continue;
        };
        decode(payload, &WireLimits::default(), &mut batch).unwrap();
        counts[0] += 1;
        for event in batch.events() {
            let (kind, blocks) = match event {
                WireEvent::Stored(stored) => (1, stored.blocks.len()),
                WireEvent::Removed(removed) => (2, removed.blocks.len()),
                WireEvent::Cleared => (3, 0),
            };
            counts[kind] += 1;
            counts[4] += blocks;
        }
    }
    counts
}

fn assert_event(event: WireEvent<'_>, expected: &Value) {
    match (event, expected["type"].as_str().unwrap()) {
        (WireEvent::Stored(stored), "BlockStored") => assert_stored(stored, expected),
        (WireEvent::Removed(WireRemoved { blocks, tier, group }), "BlockRemoved") => {
            assert_eq!(blocks, hashes(&expected["block_hashes"]));
            assert_eq!(tier, medium(&expected["medium"]));
            assert_eq!(group.map(u64::from), expected["group_idx"].as_u64());
        }
        (WireEvent::Cleared, "AllBlocksCleared") => {}
        (event, expected) => panic!("decoded {event:?}, Python has {expected}"),
    }
}

fn assert_stored(stored: WireStored<'_>, expected: &Value) {
    assert_eq!(stored.blocks, hashes(&expected["block_hashes"]));
    assert_eq!(stored.parent, optional_hash(&expected["parent_block_hash"]));
    let tokens: Vec<u32> = serde_json::from_value(expected["token_ids"].clone()).unwrap();
    assert_eq!(stored.tokens, tokens);
    assert_eq!(u64::from(stored.block_size), expected["block_size"].as_u64().unwrap());
    assert_eq!(stored.lora_id, None);
    assert_eq!(stored.lora_name, expected["lora_name"].as_str());
    assert_eq!(stored.tier, medium(&expected["medium"]));
    assert_eq!(stored.group.map(u64::from), expected["group_idx"].as_u64());
    let attention = match expected["kv_cache_spec_kind"].as_str() {
        None => GroupAttention::Unspecified,
        Some("full_attention") => GroupAttention::Full,
        Some(other) => panic!("a kind that no captured engine has: {other}"),
    };
    assert_eq!(stored.attention, attention);
    let lists = expected["extra_keys"].as_array().map_or(&[][..], |lists| lists);
    assert_eq!(stored.extra_keys.len(), lists.len());
    for (block, list) in lists.iter().enumerate() {
        let expected = list.as_array().map_or(&[][..], |list| list);
        let keys: Vec<_> = stored.extra_keys.block(block).collect();
        let expected: Vec<_> =
            expected.iter().map(|key| WireExtraKey::Text(key.as_str().unwrap())).collect();
        assert_eq!(keys, expected);
    }
}

fn hashes(values: &Value) -> Vec<EngineHash> {
    values.as_array().unwrap().iter().map(|value| optional_hash(value).unwrap()).collect()
}

/// Python's rule for integers made of digests, written once more: the last eight bytes, big-endian.
fn optional_hash(value: &Value) -> Option<EngineHash> {
    if let Some(hex) = value["$bytes"].as_str() {
        let tail = &hex[hex.len() - 16..];
        return Some(EngineHash(u64::from_str_radix(tail, 16).unwrap()));
    }
    value.as_u64().map(EngineHash)
}

fn medium(value: &Value) -> Tier {
    match value.as_str() {
        None | Some("GPU") => Tier::Gpu,
        Some("CPU") => Tier::Host,
        Some(other) => panic!("a medium that no captured engine has: {other}"),
    }
}
