//! A checkpoint as bytes: a head, a frame for each pod, and an end that says how many there were.
//!
//! ```text
//! file   "WORNPATH" · version u32 · frame... · 0 u64 · number of frames u64
//! frame  length u64 · body · xxh3-64 of the body
//! body   pod (u16 length, UTF-8) · root u64 · block size u32 · names u8 · what is given u8 · epoch u64 ·
//!        last number u64 · fingerprint u64 · groups (u16, u32...) · items (u32, item...)
//! item   engine's hash u64 · our hash u64 · before u32 · shape u8 · copies u32... · parts (u32, u64...)
//! ```
//!
//! All numbers are little-endian. `before` is 0 for the start of a prompt, all ones for something unknown, else the
//! place of another item plus one. In `shape` four bits name the tiers that hold the item, the fifth says that
//! numbers of copies follow, the sixth that parts follow.

use super::{BlockIdentity, PodCheckpoint};
use crate::feed::ResumePoint;
use crate::message::Epoch;
use crate::translate::BlockIdScheme;
use wornpath_blocks::BlockHash;
use wornpath_index::{EngineHash, ExportedBlock, ExportedParent};
use xxhash_rust::xxh3::xxh3_64;

const MAGIC: &[u8; 8] = b"WORNPATH";
const VERSION: u32 = 1;
/// The least bytes of an item.
const ITEM: usize = 21;
const COUNTED: u8 = 1 << 4;
const PARTED: u8 = 1 << 5;
const EPOCH: u8 = 1;
const NUMBERED: u8 = 2;
const FINGERPRINT: u8 = 4;

/// Why bytes are no checkpoint that can be used.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum CheckpointError {
    /// They are something else.
    #[error("it is no checkpoint: it does not begin with `WORNPATH`")]
    Foreign,
    /// Another version of wornpath wrote them.
    #[error("it has version {found}, this wornpath reads version {VERSION}")]
    Version {
        /// Theirs.
        found: u32,
    },
    /// There are too few.
    #[error("it ends too early, in {within}")]
    Truncated {
        /// What they end in.
        within: &'static str,
    },
    /// Some have changed.
    #[error("the checksum of frame {frame} does not agree: the file is damaged")]
    Checksum {
        /// Where, counted from 0.
        frame: u64,
    },
    /// They say something that cannot be.
    #[error("{field} is {found}, expected {expected}")]
    Field {
        /// What.
        field: &'static str,
        /// What it is.
        found: u64,
        /// What it should be.
        expected: &'static str,
    },
}

/// Appends the head of a file.
pub(super) fn head(out: &mut Vec<u8>) {
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

/// Appends the end of a file of so many frames.
pub(super) fn end(frames: u64, out: &mut Vec<u8>) {
    out.extend([0; 8]);
    out.extend(frames.to_le_bytes());
}

/// A whole file.
#[must_use]
pub fn encode(records: &[PodCheckpoint]) -> Vec<u8> {
    let mut out = Vec::new();
    head(&mut out);
    records.iter().for_each(|record| frame(record, &mut out));
    end(records.len() as u64, &mut out);
    out
}

fn body(record: &PodCheckpoint, out: &mut Vec<u8>) {
    let PodCheckpoint { pod, naming, memo, partial_groups, items } = record;
    // Names are of people's making and never near the limit; a longer one is cut, and belongs to nobody then.
    let name = &pod.as_bytes()[..pod.len().min(usize::from(u16::MAX))];
    out.extend((name.len() as u16).to_le_bytes());
    out.extend(name);
    out.extend(naming.root.0.to_le_bytes());
    out.extend(naming.block_size.to_le_bytes());
    out.push(u8::from(naming.names == BlockIdScheme::OfTheIndex));
    let given = |flag: u8, is_given: bool| if is_given { flag } else { 0 };
    out.push(
        given(EPOCH, memo.epoch.is_some())
            | given(NUMBERED, memo.last.is_some())
            | given(FINGERPRINT, memo.fingerprint.is_some()),
    );
    out.extend(memo.epoch.map_or(0, |epoch| epoch.0).to_le_bytes());
    out.extend(memo.last.unwrap_or(0).to_le_bytes());
    out.extend(memo.fingerprint.unwrap_or(0).to_le_bytes());
    out.extend((partial_groups.len() as u16).to_le_bytes());
    partial_groups.iter().for_each(|group| out.extend(group.to_le_bytes()));
    out.extend((items.len() as u32).to_le_bytes());
    items.iter().for_each(|one| item(one, out));
}

fn item(item: &ExportedBlock, out: &mut Vec<u8>) {
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

/// Reads a whole file.
///
/// # Errors
/// Why none of it can be used.
pub fn decode(bytes: &[u8]) -> Result<Vec<PodCheckpoint>, CheckpointError> {
    let mut file = Bytes { rest: bytes, within: "its head" };
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
    file.within = "its end";
    let frames = file.u64()?;
    if frames != records.len() as u64 {
        return Err(CheckpointError::Field {
            field: "the number of frames",
            found: frames,
            expected: "as many as there are",
        });
    }
    file.finish()?;
    Ok(records)
}

impl PodCheckpoint {
    /// Reads the body of a frame.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(body: &[u8]) -> Result<Self, CheckpointError> {
        let mut bytes = Bytes { rest: body, within: "a pod's facts" };
        let length = usize::from(bytes.u16()?);
        let name = bytes.take(length)?;
        let pod = std::str::from_utf8(name).map_err(|error| CheckpointError::Field {
            field: "the byte of a name",
            found: u64::from(name[error.valid_up_to()]),
            expected: "UTF-8",
        })?;
        let root = BlockHash(bytes.u64()?);
        let block_size = bytes.u32()?;
        let names = match bytes.u8()? {
            0 => BlockIdScheme::OfTheEngine,
            1 => BlockIdScheme::OfTheIndex,
            found => return Err(field("names", found, "0 or 1")),
        };
        let given = bytes.u8()?;
        if given > EPOCH | NUMBERED | FINGERPRINT {
            return Err(field("what is given", given, "three bits"));
        }
        let mut optional = |flag: u8| bytes.u64().map(|value| (given & flag != 0).then_some(value));
        let memo = ResumePoint {
            epoch: optional(EPOCH)?.map(Epoch),
            last: optional(NUMBERED)?,
            fingerprint: optional(FINGERPRINT)?,
        };
        bytes.within = "a pod's groups";
        let groups = bytes.u16()?;
        let partial_groups = (0..groups).map(|_| bytes.u32()).collect::<Result<_, _>>()?;
        bytes.within = "a pod's items";
        let count = bytes.count(ITEM)?;
        let mut items = Vec::with_capacity(count);
        for _ in 0..count {
            items.push(read_item(&mut bytes)?);
        }
        bytes.finish()?;
        let naming = BlockIdentity { root, block_size, names };
        Ok(PodCheckpoint { pod: pod.to_owned(), naming, memo, partial_groups, items })
    }
}

fn read_item(bytes: &mut Bytes<'_>) -> Result<ExportedBlock, CheckpointError> {
    let (engine, block) = (EngineHash(bytes.u64()?), BlockHash(bytes.u64()?));
    let before = match bytes.u32()? {
        0 => ExportedParent::Start,
        u32::MAX => ExportedParent::Unknown,
        place => ExportedParent::Item(place - 1),
    };
    let shape = bytes.u8()?;
    if shape & !(0xf | COUNTED | PARTED) != 0 {
        return Err(field("an item's shape", shape, "six bits"));
    }
    let mut copies = [0; 4];
    for (tier, count) in copies.iter_mut().enumerate().filter(|(tier, _)| shape & 1 << tier != 0) {
        *count = if shape & COUNTED == 0 { 1 } else { bytes.u32()? };
        if *count == 0 {
            return Err(field("copies on a tier that holds some", tier as u8, "more than none"));
        }
    }
    let parts = if shape & PARTED == 0 { 0 } else { bytes.count(8)? };
    let parts = (0..parts).map(|_| bytes.u64().map(BlockHash)).collect::<Result<_, _>>()?;
    Ok(ExportedBlock { engine, block, parts, before, copies })
}

fn field(field: &'static str, found: u8, expected: &'static str) -> CheckpointError {
    CheckpointError::Field { field, found: u64::from(found), expected }
}

/// Bytes that are being read.
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

    /// How many of something of at least `least` bytes follow; not more than there are bytes for.
    fn count(&mut self, least: usize) -> Result<usize, CheckpointError> {
        let count = self.u32()? as usize;
        let within = self.within;
        if count > self.rest.len() / least {
            return Err(CheckpointError::Truncated { within });
        }
        Ok(count)
    }

    fn finish(&self) -> Result<(), CheckpointError> {
        match self.rest.len() {
            0 => Ok(()),
            found => Err(CheckpointError::Field {
                field: "the number of bytes after the end",
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

    fn any_item() -> impl Strategy<Value = ExportedBlock> {
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
        let memo = (any::<Option<u64>>(), any::<Option<u64>>(), any::<Option<u64>>());
        let groups = prop::collection::vec(any::<u32>(), 0..3);
        let items = prop::collection::vec(any_item(), 0..5);
        (".{0,9}", any::<u64>(), any::<u32>(), any::<bool>(), memo, groups, items).prop_map(
            |(pod, root, block_size, named, (epoch, last, fingerprint), partial_groups, items)| {
                let names =
                    if named { BlockIdScheme::OfTheIndex } else { BlockIdScheme::OfTheEngine };
                let naming = BlockIdentity { root: BlockHash(root), block_size, names };
                let memo = ResumePoint { epoch: epoch.map(Epoch), last, fingerprint };
                PodCheckpoint { pod, naming, memo, partial_groups, items }
            },
        )
    }

    proptest! {
        #[test]
        fn a_checkpoint_comes_out_as_it_went_in(records in prop::collection::vec(any_record(), 0..4)) {
            let bytes = encode(&records);
            prop_assert_eq!(decode(&bytes).unwrap(), records);
            for end in 0..bytes.len() {
                prop_assert!(decode(&bytes[..end]).is_err(), "cut at {}", end);
            }
            let longer = [&bytes[..], &[0]].concat();
            prop_assert!(decode(&longer).is_err());
        }

        #[test]
        fn no_changed_bit_goes_unnoticed(record in any_record(), at in any::<prop::sample::Index>(), bit in 0..8_u32) {
            let mut bytes = encode(&[record]);
            let at = at.index(bytes.len());
            bytes[at] ^= 1_u8 << bit;
            prop_assert!(decode(&bytes).is_err(), "byte {} bit {}", at, bit);
        }

        #[test]
        fn any_bytes_give_a_checkpoint_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = decode(&bytes);
            let _ = PodCheckpoint::parse(&bytes);
        }
    }

    #[test]
    fn what_is_wrong_is_named() {
        let refusal = |bytes: &[u8]| decode(bytes).unwrap_err().to_string();
        assert!(refusal(b"something else").contains("does not begin with `WORNPATH`"));
        assert!(refusal(b"").contains("ends too early, in its head"));
        let mut later = encode(&[]);
        later[8] = 9;
        assert_eq!(refusal(&later), "it has version 9, this wornpath reads version 1");
    }
}
