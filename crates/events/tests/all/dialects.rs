//! What engines and their versions write differently, encoded by an independent library.

use serde_json::{Value, json};
use wornpath_events::wire::{
    DecodeError, GroupAttention, WireBatch, WireEvent, WireExtraKey, WireLimits, WireRemoved,
    WireStored, decode,
};
use wornpath_index::{EngineHash, Tier};

fn decode_json(payload: &Value) -> Result<WireBatch, DecodeError> {
    let payload = rmp_serde::to_vec(payload).unwrap();
    let mut batch = WireBatch::default();
    decode(&payload, &WireLimits::default(), &mut batch).map(|()| batch)
}

fn one_store(event: &Value, check: impl FnOnce(WireStored<'_>)) {
    let batch = decode_json(&json!([0.5, [event]])).unwrap();
    let Some(WireEvent::Stored(stored)) = batch.events().next() else {
        panic!("no store: {event}")
    };
    check(stored);
}

#[test]
fn sglang_writes_short_arrays_with_signed_hashes() {
    let batch = decode_json(&json!([
        1.5,
        [
            ["BlockStored", [-1, 7], -9_223_372_036_854_775_808_i64, [5, 6, 7, 8], 2, null],
            ["BlockRemoved", [-2]],
            ["AllBlocksCleared"],
        ],
        3
    ]))
    .unwrap();
    assert_eq!((batch.sent_at, batch.dp_rank, batch.len()), (1.5, Some(3), 3));
    let events: Vec<_> = batch.events().collect();
    let WireEvent::Stored(stored) = events[0] else { panic!("{events:?}") };
    assert_eq!(stored.blocks, [EngineHash(u64::MAX), EngineHash(7)]);
    assert_eq!(stored.parent, Some(EngineHash(1 << 63)));
    assert_eq!((stored.tokens, stored.block_size), (&[5, 6, 7, 8][..], 2));
    assert_eq!((stored.tier, stored.lora_id, stored.lora_name), (Tier::Gpu, None, None));
    assert!(stored.extra_keys.is_empty());
    let removed = WireRemoved { blocks: &[EngineHash(u64::MAX - 1)], tier: Tier::Gpu, group: None };
    assert_eq!(events[1..], [WireEvent::Removed(removed), WireEvent::Cleared]);
}

#[test]
fn sglang_says_salt_session_and_adapter_where_vllm_says_adapter_and_extra_keys() {
    let salt_of = |stored: WireStored<'_>| {
        stored.extra_keys.block(0).next().map(|key| match key {
            WireExtraKey::Text(salt) => salt.to_owned(),
            other => panic!("{other:?}"),
        })
    };
    let first = |rest: Value| {
        let mut event = json!(["BlockStored", [1, 2], null, [5, 6, 7, 8], 2, null, "GPU"]);
        event.as_array_mut().unwrap().extend(rest.as_array().unwrap().clone());
        event
    };
    for (rest, salt, lora) in [
        (json!(["s"]), Some("s"), None),
        (json!(["s", "session"]), Some("s"), None),
        (json!([null, "session"]), None, None),
        (json!(["", "session", "sql"]), None, Some("sql")),
        (json!([null, null, "sql"]), None, Some("sql")),
        (json!(["s", null, "sql"]), Some("s"), Some("sql")),
        // vLLM's.
        (json!([null, [["s"], null]]), Some("s"), None),
        (json!([null, [["s"], null], 0]), Some("s"), None),
        (json!(["sql", null, 0, "full_attention"]), None, Some("sql")),
    ] {
        one_store(&first(rest.clone()), |stored| {
            assert_eq!((salt_of(stored).as_deref(), stored.lora_name), (salt, lora), "{rest}");
            assert_eq!(stored.extra_keys.block(1).count(), 0, "{rest}");
        });
    }
    let numbered = json!(["BlockStored", [1], null, [5], 1, 3, "GPU", "sql", [["sql", "s"]]]);
    one_store(&numbered, |stored| {
        assert_eq!((stored.lora_id, stored.lora_name), (Some(3), Some("sql")));
    });
    // The salt is in the root, to which a later block is chained by its parent.
    let later = json!(["BlockStored", [2], 1, [5], 1, null, "GPU", "s", "session"]);
    one_store(&later, |stored| assert!(stored.extra_keys.is_empty()));
    let map =
        json!({"type": "BlockStored", "cache_salt": "s", "block_hashes": [1], "session_id": "x"});
    one_store(&map, |stored| assert_eq!(salt_of(stored).as_deref(), Some("s")));
}

#[test]
fn a_batch_may_be_a_map_under_any_name_of_its_rank() {
    for rank in ["data_parallel_rank", "attn_dp_rank", "dp_rank"] {
        let batch = decode_json(&json!({
            "events": [{"type": "AllBlocksCleared"}], "later": {"x": [1]}, rank: 2, "ts": 9
        }))
        .unwrap();
        assert_eq!((batch.sent_at, batch.dp_rank, batch.len()), (9.0, Some(2), 1), "{rank}");
    }
}

#[test]
fn every_medium_has_its_tier_in_any_case() {
    let cases = [
        (json!(null), Tier::Gpu),
        (json!("GPU"), Tier::Gpu),
        (json!("gpu"), Tier::Gpu),
        (json!("CPU"), Tier::Host),
        (json!("cpu_pinned"), Tier::Host),
        (json!("CPU_PINNED"), Tier::Host),
        (json!("STORAGE"), Tier::Disk),
        (json!("Disk"), Tier::Disk),
        (json!("EXTERNAL"), Tier::Other),
        (json!("tape"), Tier::Other),
    ];
    for (medium, tier) in cases {
        let event = json!({"type": "BlockStored", "block_hashes": [1], "medium": medium});
        one_store(&event, |stored| assert_eq!(stored.tier, tier, "{medium}"));
        let removal = json!(["BlockRemoved", [1], medium]);
        let batch = decode_json(&json!([0.5, [removal]])).unwrap();
        assert!(matches!(batch.events().next(), Some(WireEvent::Removed(r)) if r.tier == tier));
    }
}

#[test]
fn a_remote_copy_is_on_none_of_the_pods_own_tiers() {
    for (locality, tier) in [(json!("LOCAL"), Tier::Host), (json!("REMOTE"), Tier::Other)] {
        let event = json!({
            "type": "BlockStored", "block_hashes": [1], "medium": "CPU", "locality": locality
        });
        one_store(&event, |stored| assert_eq!(stored.tier, tier));
        let array = json!([
            "BlockStored",
            [1],
            null,
            [],
            0,
            null,
            "CPU",
            null,
            null,
            0,
            null,
            null,
            locality
        ]);
        one_store(&array, |stored| assert_eq!(stored.tier, tier));
    }
}

#[test]
fn groups_of_full_latent_and_sink_attention_keep_whole_prefixes() {
    let cases = [
        (json!(null), GroupAttention::Unspecified),
        (json!("full_attention"), GroupAttention::Full),
        (json!("FULL_ATTENTION"), GroupAttention::Full),
        (json!("mla_attention"), GroupAttention::Full),
        (json!("mla"), GroupAttention::Full),
        (json!("sink_full_attention"), GroupAttention::Full),
        (json!("sliding_window"), GroupAttention::Partial),
        (json!("sliding_window_mla"), GroupAttention::Partial),
        (json!("mamba"), GroupAttention::Partial),
        (json!(""), GroupAttention::Partial),
    ];
    for (kind, attention) in cases {
        let event = json!({
            "type": "BlockStored", "block_hashes": [1], "group_idx": 1, "kv_cache_spec_kind": kind
        });
        one_store(&event, |stored| {
            assert_eq!((stored.group, stored.attention), (Some(1), attention), "{kind}");
        });
    }
}

#[test]
fn a_known_field_of_the_wrong_type_refuses_the_message() {
    let cases = [
        (json!({"type": "BlockStored", "block_hashes": "x"}), "BlockStored.block_hashes"),
        (json!({"type": "BlockStored", "block_hashes": [1.5]}), "BlockStored.block_hashes"),
        (json!({"type": "BlockStored", "block_hashes": [], "token_ids": [[1, 2]]}), "token_ids"),
        (json!({"type": "BlockStored", "block_hashes": [], "medium": 3}), "BlockStored.medium"),
        (json!({"type": "BlockStored", "block_hashes": [], "extra_keys": ["x"]}), "extra_keys"),
        (json!({"type": "BlockRemoved", "block_hashes": [1], "group_idx": -1}), "group_idx"),
        (json!({"type": 7}), "event type"),
        (json!({"kind": "BlockStored"}), "event"),
        (json!("BlockStored"), "event"),
    ];
    for (event, field) in cases {
        let refusal = decode_json(&json!([0.5, [event]])).unwrap_err().to_string();
        assert!(refusal.contains(field), "{event}: {refusal}");
    }
}
