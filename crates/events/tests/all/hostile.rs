//! Bytes that no engine sends: truncated, mutated, nested, oversized. They never cause a panic, and
//! errors name the reason.

use crate::fixture;
use wornpath_events::wire::{
    DecodeError, HashForm, WireBatch, WireDialect, WireEvent, WireLayout, WireLimits, WireMessage,
    decode, encode, records,
};

fn decode_all(payload: &[u8]) -> Result<WireBatch, DecodeError> {
    let mut batch = WireBatch::default();
    decode(payload, &WireLimits::default(), &mut batch).map(|()| batch)
}

fn payloads(recording: &[u8]) -> Vec<Vec<u8>> {
    records(recording).map(|record| record.unwrap().last().unwrap().to_vec()).collect()
}

#[test]
fn a_payload_cut_at_any_byte_is_refused() {
    for (name, recording) in fixture::recordings() {
        for payload in payloads(&recording).iter().filter(|payload| !payload.is_empty()).take(6) {
            for end in 0..payload.len() {
                assert!(decode_all(&payload[..end]).is_err(), "{name} cut at {end}");
            }
            assert!(decode_all(payload).is_ok(), "{name}");
        }
    }
}

#[test]
fn a_refused_payload_leaves_nothing_in_the_batch() {
    let payload = &payloads(&fixture::recording("stress_gpu"))[0];
    let mut batch = WireBatch::default();
    decode(payload, &WireLimits::default(), &mut batch).unwrap();
    assert!(!batch.is_empty());
    let cut = &payload[..payload.len() - 1];
    assert!(decode(cut, &WireLimits::default(), &mut batch).is_err());
    assert!(batch.is_empty());
}

#[test]
fn mutated_payloads_do_not_panic_and_what_decodes_round_trips() {
    const SEED: u64 = 0x5EED_0001;
    let mut random = SEED;
    let mut accepted = 0;
    for (name, recording) in fixture::recordings() {
        for payload in payloads(&recording) {
            for round in 0..40 {
                let mutated = mutate(&payload, &mut random);
                let Ok(batch) = decode_all(&mutated) else { continue };
                accepted += 1;
                let dialect = WireDialect { layout: WireLayout::Maps, hashes: HashForm::Unsigned };
                let mut again = Vec::new();
                encode(&batch, dialect, &mut again);
                let second = decode_all(&again).unwrap_or_else(|error| {
                    panic!("seed {SEED:#x}, {name}, round {round}: {error}")
                });
                assert!(batch.events().eq(second.events()), "seed {SEED:#x}, {name}, {round}");
            }
        }
    }
    assert!(accepted > 1000, "only {accepted} mutations were accepted: the test checks nothing");
}

#[test]
fn nesting_a_million_deep_costs_no_stack() {
    let mut payload = vec![0x93, 0xcb, 0, 0, 0, 0, 0, 0, 0, 0, 0x90];
    payload.resize(payload.len() + 1_000_000, 0x91);
    payload.push(0xc0);
    // The third element should be a rank, and is refused as one; a fourth is unknown, and passed
    // over.
    assert!(matches!(decode_all(&payload), Err(DecodeError::Unexpected { .. })));
    payload[0] = 0x94;
    payload.insert(11, 0xc0);
    assert!(decode_all(&payload).unwrap().is_empty());
}

#[test]
fn a_length_beyond_the_bytes_is_refused_before_memory_is_reserved() {
    let claims: [&[u8]; 4] = [
        &[0xdd, 0xff, 0xff, 0xff, 0xff],
        &[0xdf, 0xff, 0xff, 0xff, 0xff],
        &[0x92, 0x00, 0xdd, 0xff, 0xff, 0xff, 0xff],
        b"\x92\x00\x91\x92\xabBlockStored\xdd\xff\xff\xff\xff",
    ];
    for claim in claims {
        assert!(matches!(decode_all(claim), Err(DecodeError::Truncated { .. })), "{claim:02x?}");
    }
}

#[test]
fn every_limit_is_enforced() {
    let payload = &payloads(&fixture::recording("stress_gpu"))[0];
    let refused = |limits: WireLimits| {
        let error = decode(payload, &limits, &mut WireBatch::default()).unwrap_err();
        matches!(error, DecodeError::TooLarge { .. })
    };
    let limits = WireLimits::default();
    assert!(refused(WireLimits { payload_bytes: payload.len() - 1, ..limits }));
    assert!(refused(WireLimits { events: 0, ..limits }));
    assert!(refused(WireLimits { blocks: 1, ..limits }));
    assert!(refused(WireLimits { tokens: 15, ..limits }));
}

#[test]
fn an_error_names_the_field_what_was_found_and_what_was_expected() {
    let cases: [(&[u8], &str); 6] = [
        (b"\xa2hi", "batch, byte 0: found a string, expected an array or a map"),
        (b"\x91\x00", "batch.events: found nothing, expected an array"),
        (b"\x92\x00\x91\x90", "event: found nothing, expected its type"),
        (
            b"\x92\x00\x91\x91\xabBlockStored",
            "BlockStored.block_hashes: found nothing, expected an array of hashes",
        ),
        (
            b"\x92\x00\x91\x94\xabBlockStored\x90\xc0\x91\xff",
            "BlockStored.token_ids, byte 19: found an integer out of range, \
             expected an integer from 0 to 4294967295",
        ),
        (b"\x92\x00\x90\x00", "payload, byte 3: found 1 bytes after the end, expected none"),
    ];
    for (payload, message) in cases {
        assert_eq!(decode_all(payload).unwrap_err().to_string(), message);
    }
}

#[test]
fn unknown_types_keys_and_elements_are_skipped() {
    // An unknown event, a clear with an element too many, a map whose type comes last.
    let payload = b"\x94\xcb\x3f\xf0\0\0\0\0\0\0\x93\
        \x92\xadBlockMigrated\x81\xa1x\x91\x01\
        \x92\xb0AllBlocksCleared\xc0\
        \x83\xa6future\x81\x01\x02\xacblock_hashes\x91\x07\xa4type\xacBlockRemoved\
        \x05\xa5extra";
    let batch = decode_all(payload).unwrap();
    assert_eq!(batch.unknown_events, 1);
    assert_eq!((batch.sent_at, batch.dp_rank, batch.len()), (1.0, Some(5), 2));
    assert!(matches!(batch.events().next(), Some(WireEvent::Cleared)));
}

#[test]
fn parsing_frames_of_any_shape_does_not_panic() {
    let mut random = 0x5EED_0002;
    for _ in 0..20_000 {
        let frames: Vec<Vec<u8>> = (0..next(&mut random) % 6)
            .map(|_| vec![next(&mut random) as u8; (next(&mut random) % 10) as usize])
            .collect();
        let _ = WireMessage::parse(&frames);
    }
}

/// One to four small damages: a byte set, a bit flipped, bytes dropped, doubled or swapped in.
fn mutate(bytes: &[u8], random: &mut u64) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    for _ in 0..=next(random) % 4 {
        if bytes.is_empty() {
            break;
        }
        let at = next(random) as usize % bytes.len();
        match next(random) % 5 {
            0 => bytes[at] = next(random) as u8,
            1 => bytes[at] ^= 1 << (next(random) % 8),
            2 => drop(bytes.remove(at)),
            3 => bytes.insert(at, next(random) as u8),
            _ => bytes.truncate(at),
        }
    }
    bytes
}

/// Splitmix64.
fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}
