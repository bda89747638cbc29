//! What is encoded in any dialect decodes to the same batch.

use proptest::prelude::*;
use wornpath_events::wire::{
    ExtraKeysBuffer, GroupAttention, HashForm, WireBatch, WireDialect, WireEvent, WireExtraKey,
    WireLayout, WireLimits, WireRemoved, WireStored, decode, encode,
};
use wornpath_index::{EngineHash, Tier};

#[derive(Clone, Debug)]
enum Made {
    Stored(Box<MadeStored>),
    Removed { blocks: Vec<u64>, tier: Tier, group: Option<u32> },
    Cleared,
}

#[derive(Clone, Debug)]
struct MadeStored {
    blocks: Vec<u64>,
    parent: Option<u64>,
    tokens: Vec<u32>,
    block_size: u32,
    lora: (Option<u32>, Option<String>),
    tier: Tier,
    extra_keys: Vec<Vec<MadeKey>>,
    group: (Option<u32>, GroupAttention),
}

#[derive(Clone, Debug)]
enum MadeKey {
    Text(String),
    Bytes(Vec<u8>),
    Int(i64),
}

fn tier() -> impl Strategy<Value = Tier> {
    prop::sample::select(Tier::ALL.to_vec())
}

fn key() -> impl Strategy<Value = MadeKey> {
    prop_oneof![
        ".{0,40}".prop_map(MadeKey::Text),
        prop::collection::vec(any::<u8>(), 0..300).prop_map(MadeKey::Bytes),
        any::<i64>().prop_map(MadeKey::Int),
    ]
}

fn stored() -> impl Strategy<Value = MadeStored> {
    let attention = prop::sample::select(vec![
        GroupAttention::Unspecified,
        GroupAttention::Full,
        GroupAttention::Partial,
    ]);
    (
        prop::collection::vec(any::<u64>(), 0..20),
        any::<Option<u64>>(),
        prop::collection::vec(any::<u32>(), 0..80),
        any::<u32>(),
        (any::<Option<u32>>(), prop::option::of(".{0,40}")),
        tier(),
        prop::collection::vec(prop::collection::vec(key(), 0..3), 0..4),
        (any::<Option<u32>>(), attention),
    )
        .prop_map(|(blocks, parent, tokens, block_size, lora, tier, extra_keys, group)| {
            MadeStored { blocks, parent, tokens, block_size, lora, tier, extra_keys, group }
        })
}

fn event() -> impl Strategy<Value = Made> {
    prop_oneof![
        4 => stored().prop_map(|stored| Made::Stored(Box::new(stored))),
        3 => (prop::collection::vec(any::<u64>(), 0..20), tier(), any::<Option<u32>>())
            .prop_map(|(blocks, tier, group)| Made::Removed { blocks, tier, group }),
        1 => Just(Made::Cleared),
    ]
}

fn dialect() -> impl Strategy<Value = WireDialect> {
    let layout = prop::sample::select(vec![WireLayout::Maps, WireLayout::Arrays]);
    let hashes = prop::sample::select(vec![HashForm::Unsigned, HashForm::Signed, HashForm::Digest]);
    (layout, hashes).prop_map(|(layout, hashes)| WireDialect { layout, hashes })
}

fn push(batch: &mut WireBatch, made: &Made) {
    let engine_hashes = |blocks: &[u64]| blocks.iter().copied().map(EngineHash).collect::<Vec<_>>();
    match made {
        Made::Cleared => batch.push(WireEvent::Cleared),
        Made::Removed { blocks, tier, group } => {
            let blocks = &engine_hashes(blocks);
            batch.push(WireEvent::Removed(WireRemoved { blocks, tier: *tier, group: *group }));
        }
        Made::Stored(made) => {
            let mut extra_keys = ExtraKeysBuffer::default();
            for block in &made.extra_keys {
                let keys: Vec<_> = block
                    .iter()
                    .map(|key| match key {
                        MadeKey::Text(text) => WireExtraKey::Text(text),
                        MadeKey::Bytes(bytes) => WireExtraKey::Bytes(bytes),
                        MadeKey::Int(value @ 0..) => WireExtraKey::Unsigned(*value as u64),
                        MadeKey::Int(value) => WireExtraKey::Negative(*value),
                    })
                    .collect();
                extra_keys.push(&keys);
            }
            batch.push(WireEvent::Stored(WireStored {
                blocks: &engine_hashes(&made.blocks),
                parent: made.parent.map(EngineHash),
                tokens: &made.tokens,
                block_size: made.block_size,
                lora_id: made.lora.0,
                lora_name: made.lora.1.as_deref(),
                tier: made.tier,
                extra_keys: extra_keys.keys(),
                group: made.group.0,
                attention: made.group.1,
                locations: &[],
            }));
        }
    }
}

proptest! {
    #[test]
    fn any_batch_survives_any_dialect(
        events in prop::collection::vec(event(), 0..12),
        sent_at in -1e12..1e12_f64,
        dp_rank in any::<Option<u32>>(),
        dialect in dialect(),
    ) {
        let mut sent = WireBatch::default();
        sent.sent_at = sent_at;
        sent.dp_rank = dp_rank;
        events.iter().for_each(|event| push(&mut sent, event));
        let mut payload = Vec::new();
        encode(&sent, dialect, &mut payload);

        // A batch that has been used before: nothing of its past may show.
        let mut received = WireBatch::default();
        received.push(WireEvent::Cleared);
        decode(&payload, &WireLimits::default(), &mut received).unwrap();
        prop_assert_eq!(received.sent_at, sent_at);
        prop_assert_eq!(received.dp_rank, dp_rank);
        prop_assert_eq!(received.unknown_events, 0);
        let received: Vec<_> = received.events().collect();
        let sent: Vec<_> = sent.events().collect();
        prop_assert_eq!(received, sent);
    }

    #[test]
    fn decoding_any_bytes_does_not_panic(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        let _ = decode(&bytes, &WireLimits::default(), &mut WireBatch::default());
    }
}
