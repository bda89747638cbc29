//! The checkpoint format: a header, a frame for each pod, and a trailer with the number of frames.
//!
//! ```text
//! file   "WORNPATH" · version u32 · frame... · 0 u64 · number of frames u64
//! frame  length u64 · body · xxh3-64 of the body
//! body   pod (u16 length, UTF-8) · root u64 · block size u32 · id scheme u8 · flags u8 · epoch u64 ·
//!        last sequence u64 · fingerprint u64 · groups (u16, u32...) · blocks (u32, block...)
//! block  engine's hash u64 · our hash u64 · parent u32 · shape u8 · copies u32... · parts (u32, u64...)
//! ```
//!
//! All numbers are little-endian. The flags say which of epoch, sequence and fingerprint are
//! present. `parent` is 0 at the start of a prompt, all ones if unknown, else the position of
//! another block plus one. In `shape` four bits name the tiers that hold the block, the fifth says
//! that counts of copies follow, the sixth that parts follow: the index blocks of an engine block
//! that is larger.

use super::PodCheckpoint;
use crate::block_id::{BlockIdScheme, BlockIdentity};
use crate::feed::ResumePoint;
use crate::message::Epoch;
use wornpath_blocks::BlockHash;
use wornpath_index::{EngineHash, ExportedBlock, ExportedParent};
use xxhash_rust::xxh3::xxh3_64;

const MAGIC: &[u8; 8] = b"WORNPATH";
const VERSION: u32 = 1;
/// The smallest encoding of a block, in bytes.
const MIN_BLOCK_BYTES: usize = 21;
const COUNTED: u8 = 1 << 4;
const PARTED: u8 = 1 << 5;
const EPOCH: u8 = 1;
const NUMBERED: u8 = 2;
const FINGERPRINT: u8 = 4;

/// Why bytes are not a valid checkpoint.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum CheckpointError {
    /// The magic number is missing.
    #[error("not a checkpoint: the file does not begin with `WORNPATH`")]
    Foreign,
    /// Another version of wornpath wrote the file.
    #[error("unsupported checkpoint version {found}; this wornpath reads version {VERSION}")]
    Version {
        /// The file's version.
        found: u32,
    },
    /// The file is incomplete.
    #[error("checkpoint truncated in {within}")]
    Truncated {
        /// Which part the file ends in.
        within: &'static str,
    },
    /// Some bytes have changed.
    #[error("wrong checksum of frame {frame}: the file is corrupt")]
    Checksum {
        /// The frame, counted from 0.
        frame: u64,
    },
    /// A value that no checkpoint has.
    #[error("invalid {field} {found}; expected {expected}")]
    Field {
        /// The name of the value.
        field: &'static str,
        /// The value.
        found: u64,
        /// Which values are valid.
        expected: &'static str,
    },
}

/// Appends the header of a file.
pub(super) fn header(out: &mut Vec<u8>) {
    out.extend(MAGIC);
    out.extend(VERSION.to_le_bytes());
}

/// Appends the frame of one pod.
pub(super) fn frame(record: &PodCheckpoint, out: &mut Vec<u8>) {
    let start = out.len() + 8;
    out.extend([0; 8]);
    body(record, out);
    let length = (out.len() - start) as u64;
    out[start - 8..start].copy_from_slice(&length.to_le_bytes());
    let sum = xxh3_64(&out[start..]);
    out.extend(sum.to_le_bytes());
}

/// Appends the trailer of a file.
pub(super) fn trailer(frames: u64, out: &mut Vec<u8>) {
    out.extend([0; 8]);
    out.extend(frames.to_le_bytes());
}

/// Encodes a whole file.
#[must_use]
pub fn encode(records: &[PodCheckpoint]) -> Vec<u8> {
    let mut out = Vec::new();
    header(&mut out);
    records.iter().for_each(|record| frame(record, &mut out));
    trailer(records.len() as u64, &mut out);
    out
}

fn body(record: &PodCheckpoint, out: &mut Vec<u8>) {
    let PodCheckpoint { pod, identity, resume_point, partial_groups, blocks } = record;
    // Names are nowhere near the limit; a longer one is cut, and the record then matches no pod.
    let name = &pod.as_bytes()[..pod.len().min(usize::from(u16::MAX))];
    out.extend((name.len() as u16).to_le_bytes());
    out.extend(name);
    out.extend(identity.root.0.to_le_bytes());
    out.extend(identity.block_size.to_le_bytes());
    out.push(u8::from(identity.scheme == BlockIdScheme::Index));
    let given = |flag: u8, is_given: bool| if is_given { flag } else { 0 };
    out.push(
        given(EPOCH, resume_point.epoch.is_some())
            | given(NUMBERED, resume_point.last.is_some())
            | given(FINGERPRINT, resume_point.fingerprint.is_some()),
    );
    out.extend(resume_point.epoch.map_or(0, |epoch| epoch.0).to_le_bytes());
    out.extend(resume_point.last.unwrap_or(0).to_le_bytes());
    out.extend(resume_point.fingerprint.unwrap_or(0).to_le_bytes());
    out.extend((partial_groups.len() as u16).to_le_bytes());
    partial_groups.iter().for_each(|group| out.extend(group.to_le_bytes()));
    out.extend((blocks.len() as u32).to_le_bytes());
    blocks.iter().for_each(|one| self::block(one, out));
}

fn block(item: &ExportedBlock, out: &mut Vec<u8>) {
    out.extend(item.engine.0.to_le_bytes());
    out.extend(item.block.0.to_le_bytes());
    let before = match item.before {
        ExportedParent::Start => 0,
        ExportedParent::Item(place) => place + 1,
        ExportedParent::Unknown => u32::MAX,
    };
    out.extend(before.to_le_bytes());
    let counted = item.copies.iter().any(|count| *count > 1);
    let mut shape = if counted { COUNTED } else { 0 };
    if !item.parts.is_empty() {
        shape |= PARTED;
    }
    for (tier, count) in item.copies.iter().enumerate() {
        shape |= u8::from(*count > 0) << tier;
    }
    out.push(shape);
    if counted {
        let held = item.copies.iter().filter(|count| **count > 0);
        held.for_each(|count| out.extend(count.to_le_bytes()));
    }
    if !item.parts.is_empty() {
        out.extend((item.parts.len() as u32).to_le_bytes());
        item.parts.iter().for_each(|part| out.extend(part.0.to_le_bytes()));
    }
}

/// Decodes a whole file.
///
/// # Errors
/// The file is not a valid checkpoint; none of it is used then.
pub fn decode(bytes: &[u8]) -> Result<Vec<PodCheckpoint>, CheckpointError> {
    let mut file = Bytes { rest: bytes, within: "the header" };
    if file.take(MAGIC.len()).is_ok_and(|magic| magic != MAGIC) {
        return Err(CheckpointError::Foreign);
    }
    let found = file.u32()?;
    if found != VERSION {
        return Err(CheckpointError::Version { found });
    }
    let mut records = Vec::new();
    loop {
        file.within = "a frame";
        let length = file.u64()?;
        if length == 0 {
            break;
        }
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        let body = file.take(length)?;
        if file.u64()? != xxh3_64(body) {
            return Err(CheckpointError::Checksum { frame: records.len() as u64 });
        }
        records.push(PodCheckpoint::parse(body)?);
    }
    file.within = "the trailer";
    let frames = file.u64()?;
    if frames != records.len() as u64 {
        return Err(CheckpointError::Field {
            field: "number of frames",
            found: frames,
            expected: "as many as the file has",
        });
    }
    file.finish()?;
    Ok(records)
}

impl PodCheckpoint {
    /// Decodes the body of a frame.
    ///
    /// # Errors
    /// The body is not valid.
    pub fn parse(body: &[u8]) -> Result<Self, CheckpointError> {
        let mut bytes = Bytes { rest: body, within: "the fields of a pod" };
        let length = usize::from(bytes.u16()?);
        let name = bytes.take(length)?;
        let pod = std::str::from_utf8(name).map_err(|error| CheckpointError::Field {
            field: "byte in a pod's name",
            found: u64::from(name[error.valid_up_to()]),
            expected: "UTF-8",
        })?;
        let root = BlockHash(bytes.u64()?);
        let block_size = bytes.u32()?;
        let scheme = match bytes.u8()? {
            0 => BlockIdScheme::Engine,
            1 => BlockIdScheme::Index,
            found => return Err(field("id scheme", found, "0 or 1")),
        };
        let flags = bytes.u8()?;
        if flags > EPOCH | NUMBERED | FINGERPRINT {
            return Err(field("flags", flags, "0 to 7"));
        }
        let mut optional = |flag: u8| bytes.u64().map(|value| (flags & flag != 0).then_some(value));
        let resume_point = ResumePoint {
            epoch: optional(EPOCH)?.map(Epoch),
            last: optional(NUMBERED)?,
            fingerprint: optional(FINGERPRINT)?,
        };
        bytes.within = "the groups of a pod";
        let groups = bytes.u16()?;
        let partial_groups = (0..groups).map(|_| bytes.u32()).collect::<Result<_, _>>()?;
        bytes.within = "the blocks of a pod";
        let count = bytes.count(MIN_BLOCK_BYTES)?;
        let mut blocks = Vec::with_capacity(count);
        for _ in 0..count {
            blocks.push(read_block(&mut bytes)?);
        }
        bytes.finish()?;
        let identity = BlockIdentity { root, block_size, scheme };
        Ok(PodCheckpoint { pod: pod.to_owned(), identity, resume_point, partial_groups, blocks })
    }
}

fn read_block(bytes: &mut Bytes<'_>) -> Result<ExportedBlock, CheckpointError> {
    let engine = EngineHash(bytes.u64()?);
    let block = BlockHash(bytes.u64()?);
    let before = match bytes.u32()? {
        0 => ExportedParent::Start,
        u32::MAX => ExportedParent::Unknown,
        place => ExportedParent::Item(place - 1),
    };
    let shape = bytes.u8()?;
    if shape & !(0xf | COUNTED | PARTED) != 0 {
        return Err(field("shape of a block", shape, "0 to 63"));
    }
    let mut copies = [0; 4];
    for (tier, count) in copies.iter_mut().enumerate().filter(|(tier, _)| shape & 1 << tier != 0) {
        *count = if shape & COUNTED == 0 { 1 } else { bytes.u32()? };
        if *count == 0 {
            return Err(field("tier without copies", tier as u8, "a tier with at least one copy"));
        }
    }
    let parts = if shape & PARTED == 0 { 0 } else { bytes.count(8)? };
    let parts = (0..parts).map(|_| bytes.u64().map(BlockHash)).collect::<Result<_, _>>()?;
    Ok(ExportedBlock { engine, block, parts, before, copies })
}

fn field(field: &'static str, found: u8, expected: &'static str) -> CheckpointError {
    CheckpointError::Field { field, found: u64::from(found), expected }
}

/// A cursor over the file.
struct Bytes<'a> {
    rest: &'a [u8],
    within: &'static str,
}

impl<'a> Bytes<'a> {
    fn take(&mut self, length: usize) -> Result<&'a [u8], CheckpointError> {
        let within = self.within;
        let (taken, rest) =
            self.rest.split_at_checked(length).ok_or(CheckpointError::Truncated { within })?;
        self.rest = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], CheckpointError> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N)?);
        Ok(array)
    }

    fn u8(&mut self) -> Result<u8, CheckpointError> {
        self.array().map(u8::from_le_bytes)
    }

    fn u16(&mut self) -> Result<u16, CheckpointError> {
        self.array().map(u16::from_le_bytes)
    }

    fn u32(&mut self) -> Result<u32, CheckpointError> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, CheckpointError> {
        self.array().map(u64::from_le_bytes)
    }

    /// The number of elements of at least `min_bytes` that follow; never more than the rest has
    /// bytes for.
    fn count(&mut self, min_bytes: usize) -> Result<usize, CheckpointError> {
        let count = self.u32()? as usize;
        let within = self.within;
        if count > self.rest.len() / min_bytes {
            return Err(CheckpointError::Truncated { within });
        }
        Ok(count)
    }

    fn finish(&self) -> Result<(), CheckpointError> {
        match self.rest.len() {
            0 => Ok(()),
            found => Err(CheckpointError::Field {
                field: "number of trailing bytes",
                found: found as u64,
                expected: "none",
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn any_block() -> impl Strategy<Value = ExportedBlock> {
        let before = prop_oneof![
            Just(ExportedParent::Start),
            Just(ExportedParent::Unknown),
            (0..u32::MAX - 1).prop_map(ExportedParent::Item)
        ];
        let copies =
            prop_oneof![any::<[bool; 4]>().prop_map(|held| held.map(u32::from)), any::<[u32; 4]>()];
        let parts = prop::collection::vec(any::<u64>(), 0..3);
        (any::<u64>(), any::<u64>(), parts, before, copies).prop_map(
            |(engine, block, parts, before, copies)| ExportedBlock {
                engine: EngineHash(engine),
                block: BlockHash(block),
                parts: parts.into_iter().map(BlockHash).collect(),
                before,
                copies,
            },
        )
    }

    fn any_record() -> impl Strategy<Value = PodCheckpoint> {
        let resume_point = (any::<Option<u64>>(), any::<Option<u64>>(), any::<Option<u64>>());
        let groups = prop::collection::vec(any::<u32>(), 0..3);
        let blocks = prop::collection::vec(any_block(), 0..5);
        (".{0,9}", any::<u64>(), any::<u32>(), any::<bool>(), resume_point, groups, blocks)
            .prop_map(
                |(
                    pod,
                    root,
                    block_size,
                    named,
                    (epoch, last, fingerprint),
                    partial_groups,
                    blocks,
                )| {
                    let scheme = if named { BlockIdScheme::Index } else { BlockIdScheme::Engine };
                    let identity = BlockIdentity { root: BlockHash(root), block_size, scheme };
                    let resume_point = ResumePoint { epoch: epoch.map(Epoch), last, fingerprint };
                    PodCheckpoint { pod, identity, resume_point, partial_groups, blocks }
                },
            )
    }

    proptest! {
        #[test]
        fn decoding_restores_what_was_encoded_and_no_part_of_a_file_decodes(records in prop::collection::vec(any_record(), 0..4)) {
            let bytes = encode(&records);
            prop_assert_eq!(decode(&bytes).unwrap(), records);
            for end in 0..bytes.len() {
                prop_assert!(decode(&bytes[..end]).is_err(), "cut at {}", end);
            }
            let longer = [&bytes[..], &[0]].concat();
            prop_assert!(decode(&longer).is_err());
        }

        #[test]
        fn every_flipped_bit_is_detected(record in any_record(), at in any::<prop::sample::Index>(), bit in 0..8_u32) {
            let mut bytes = encode(&[record]);
            let at = at.index(bytes.len());
            bytes[at] ^= 1_u8 << bit;
            prop_assert!(decode(&bytes).is_err(), "byte {} bit {}", at, bit);
        }

        #[test]
        fn decoding_any_bytes_does_not_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = decode(&bytes);
            let _ = PodCheckpoint::parse(&bytes);
        }
    }

    #[test]
    fn an_error_names_the_part_of_the_file() {
        let refusal = |bytes: &[u8]| decode(bytes).unwrap_err().to_string();
        assert!(refusal(b"something else").contains("does not begin with `WORNPATH`"));
        assert!(refusal(b"").contains("truncated in the header"));
        let mut later = encode(&[]);
        later[8] = 9;
        assert_eq!(
            refusal(&later),
            "unsupported checkpoint version 9; this wornpath reads version 1"
        );
    }
}
