//! Writes the seed corpus: `cargo run --manifest-path fuzz/Cargo.toml`.
//!
//! For cache events, small captured messages of every kind in every dialect, so that the fuzzer
//! starts from what real engines send. For the index, sequences of operations from fixed seeds.

use prost::Message as _;
use std::collections::BTreeSet;
use std::error::Error;
use std::fs;
use std::path::Path;
use wornpath_blocks::BlockHash;
use wornpath_events::checkpoint::{PodCheckpoint, encode as encode_checkpoint};
use wornpath_events::grpc::{self, Report, Said, What};
use wornpath_events::wire::{
    WireBatch, WireEvent, WireLimits, WireMessage, decode, encode, records,
};
use wornpath_events::{BlockIdScheme, BlockIdentity, Epoch, ResumePoint};
use wornpath_fuzz::DIALECTS;
use wornpath_index::{EngineHash, ExportedBlock, ExportedParent};

/// Larger seeds make every mutation slower without more coverage.
const LARGEST_SEED: usize = 1200;
/// Sequences of operations for each kind of limits.
const SEQUENCES: u64 = 8;

fn main() -> Result<(), Box<dyn Error>> {
    let fuzz = Path::new(env!("CARGO_MANIFEST_DIR"));
    operations(fuzz)?;
    checkpoints(fuzz)?;
    messages(fuzz)
}

/// A pod of each kind, as a file of its own and as the body of a frame.
fn checkpoints(fuzz: &Path) -> Result<(), Box<dyn Error>> {
    let folder = fuzz.join("corpus/checkpoint");
    fs::create_dir_all(&folder)?;
    let item = |engine, before, copies, parts: &[u64]| ExportedBlock {
        engine: EngineHash(engine),
        block: BlockHash(engine * 3),
        parts: parts.iter().copied().map(BlockHash).collect(),
        before,
        copies,
    };
    let record = |pod: &str, resume_point, blocks| PodCheckpoint {
        pod: pod.to_owned(),
        identity: BlockIdentity {
            root: BlockHash(7),
            block_size: 16,
            scheme: BlockIdScheme::Engine,
        },
        resume_point,
        partial_groups: vec![2],
        blocks,
    };
    let chain = (0..5).map(|at: u32| {
        let before = at.checked_sub(1).map_or(ExportedParent::Start, ExportedParent::Item);
        item(u64::from(at) + 1, before, [1, 0, 0, 0], &[])
    });
    let resume_point = ResumePoint { epoch: None, last: Some(9), fingerprint: Some(5) };
    let plain = record("plain", resume_point, chain.collect());
    let odd = vec![
        item(1, ExportedParent::Unknown, [3, 0, 1, 0], &[]),
        item(2, ExportedParent::Start, [0; 4], &[]),
        item(3, ExportedParent::Item(1), [0, 1, 0, 0], &[21, 22]),
    ];
    let odd = record("odd", ResumePoint { epoch: Some(Epoch(4)), ..ResumePoint::default() }, odd);
    for records in [vec![], vec![plain.clone()], vec![plain, odd]] {
        let file = encode_checkpoint(&records);
        let name = format!("file-{}", records.len());
        fs::write(folder.join(name), [&[0], &file[..]].concat())?;
        if let [.., last] = &records[..] {
            // After the head and the frames before comes the length, then the body; after it a
            // checksum and the end.
            let alone = encode_checkpoint(std::slice::from_ref(last));
            let body = &alone[12 + 8..alone.len() - 8 - 16];
            fs::write(folder.join(format!("frame-{}", last.pod)), [&[1], body].concat())?;
        }
    }
    Ok(())
}

/// Any bytes are operations; the first chooses the limits.
fn operations(fuzz: &Path) -> Result<(), Box<dyn Error>> {
    let folder = fuzz.join("corpus/index_ops");
    fs::create_dir_all(&folder)?;
    for (first, caps) in [(0, "roomy"), (1, "tight")] {
        for number in 0..SEQUENCES {
            let mut state = number << 1 | u64::from(first);
            let mut bytes = vec![first];
            for _ in 0..100 * (1 + number) {
                // Knuth's MMIX generator; its top bits are the good ones.
                state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                bytes.push((state >> 56) as u8);
            }
            fs::write(folder.join(format!("{caps}-{number}")), bytes)?;
        }
    }
    Ok(())
}

fn messages(fuzz: &Path) -> Result<(), Box<dyn Error>> {
    let captured = fuzz.join("../crates/events/tests/fixtures/vllm-0.32");
    for target in ["wire_batch", "wire_frames", "zmtp_stream", "grpc_report"] {
        fs::create_dir_all(fuzz.join("corpus").join(target))?;
    }
    let mut seen = BTreeSet::new();
    let mut recordings: Vec<_> = fs::read_dir(captured)?
        .map(|entry| entry.map(|entry| entry.path()))
        .collect::<Result<_, _>>()?;
    recordings.retain(|path| path.extension().is_some_and(|extension| extension == "bin"));
    recordings.sort();
    for path in recordings {
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let recording = fs::read(&path)?;
        for (number, record) in records(&recording).enumerate() {
            let frames = record?;
            let WireMessage::Batch { payload, .. } = WireMessage::parse(&frames)? else {
                continue;
            };
            let mut batch = WireBatch::default();
            decode(payload, &WireLimits::default(), &mut batch)?;
            if payload.len() > LARGEST_SEED || !seen.insert(shape(&batch)) {
                continue;
            }
            let file = |target: &str, form: &str| {
                fuzz.join(format!("corpus/{target}/{name}-{number}{form}"))
            };
            fs::write(file("wire_batch", ""), payload)?;
            fs::write(file("wire_frames", ""), one_record(&frames))?;
            fs::write(file("zmtp_stream", ""), publisher_stream(&frames))?;
            fs::write(file("grpc_report", "-raw"), report(Said::Raw(payload.to_vec())))?;
            fs::write(file("grpc_report", ""), report(Said::Batch(typed(&batch))))?;
            for dialect in DIALECTS {
                let mut written = Vec::new();
                encode(&batch, dialect, &mut written);
                let form = format!("-{:?}-{:?}", dialect.layout, dialect.hashes).to_lowercase();
                fs::write(file("wire_batch", &form), written)?;
            }
        }
    }
    Ok(())
}

/// What distinguishes one seed from another: its kinds of events, tiers and keys, not its numbers.
fn shape(batch: &WireBatch) -> Vec<String> {
    let kind = |event: WireEvent<'_>| match event {
        WireEvent::Stored(stored) => format!(
            "stored {:?} {} {} {}",
            stored.tier,
            stored.parent.is_some(),
            stored.tokens.is_empty(),
            stored.extra_keys.block(0).count()
        ),
        WireEvent::Removed(removed) => format!("removed {:?}", removed.tier),
        WireEvent::Cleared => "cleared".to_owned(),
    };
    let mut kinds: Vec<_> = batch.events().map(kind).collect();
    kinds.dedup();
    kinds
}

fn one_record(frames: &[&[u8]]) -> Vec<u8> {
    let mut record = (frames.len() as u32).to_be_bytes().to_vec();
    for frame in frames {
        record.extend_from_slice(&(frame.len() as u32).to_be_bytes());
        record.extend_from_slice(frame);
    }
    record
}

/// All bytes that a publisher sends on a connection: greeting, READY, one message. The first byte
/// chooses a subscriber.
fn publisher_stream(frames: &[&[u8]]) -> Vec<u8> {
    let mut bytes = vec![0, 0xFF, 0, 0, 0, 0, 0, 0, 0, 0, 0x7F, 3, 0];
    bytes.extend(b"NULL");
    bytes.resize(1 + 64, 0);
    let ready = b"\x05READY\x0bSocket-Type\0\0\0\x03PUB";
    bytes.extend([4, ready.len() as u8]);
    bytes.extend(ready);
    for (at, frame) in frames.iter().enumerate() {
        bytes.push(2 | u8::from(at + 1 < frames.len()));
        bytes.extend((frame.len() as u64).to_be_bytes());
        bytes.extend(*frame);
    }
    bytes
}

fn report(body: Said) -> Vec<u8> {
    let pod = "pod".to_owned();
    Report { pod, epoch: Some(1), sequence: Some(7), said: Some(body) }.encode_to_vec()
}

/// The same events in the messages of gRPC.
fn typed(batch: &WireBatch) -> grpc::Batch {
    let names = |blocks: &[wornpath_index::EngineHash]| blocks.iter().map(|one| one.0).collect();
    let tier = |tier: wornpath_index::Tier| format!("{tier:?}");
    let location = |at: &wornpath_index::Location| grpc::WireLocation {
        offset: at.offset,
        length: at.length,
        device: at.device,
    };
    let event = |event: WireEvent<'_>| match event {
        WireEvent::Stored(stored) => What::Stored(grpc::Stored {
            blocks: names(stored.blocks),
            parent: stored.parent.map(|parent| parent.0),
            tokens: stored.tokens.to_vec(),
            block_size: stored.block_size,
            tier: tier(stored.tier),
            lora: stored.lora_name.unwrap_or_default().to_owned(),
            salt: String::new(),
            locations: stored.locations.iter().map(location).collect(),
        }),
        WireEvent::Removed(removed) => {
            What::Removed(grpc::Removed { blocks: names(removed.blocks), tier: tier(removed.tier) })
        }
        WireEvent::Cleared => What::Cleared(grpc::Nothing {}),
    };
    let events = batch.events().map(|one| grpc::Event { what: Some(event(one)) });
    grpc::Batch { events: events.collect() }
}
