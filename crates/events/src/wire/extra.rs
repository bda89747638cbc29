//! Extra keys of a block besides its tokens: LoRA, images, tenant salt, embeddings.
//!
//! Engines send bare values without names, one list per block, in the order LoRA, multimodal, salt,
//! embeddings. The rest of the event tells which is which, so this module does not classify them.
//! Most blocks have none, so they are kept as msgpack and parsed on access.

use super::msgpack::{Int, MsgpackReader};
use super::pack;

/// One bare value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WireExtraKey<'a> {
    /// A name, a salt, or the identifier of an image.
    Text(&'a str),
    /// A digest.
    Bytes(&'a [u8]),
    /// A number, such as the LoRA id of older engines.
    Unsigned(u64),
    /// A negative number.
    Negative(i64),
    /// Any other value, as msgpack: (image, offset) pairs, for instance.
    Other(&'a [u8]),
}

impl WireExtraKey<'_> {
    /// Appends the value as msgpack, in its shortest form.
    pub fn write(&self, out: &mut Vec<u8>) {
        match self {
            Self::Text(text) => pack::text(out, text),
            Self::Bytes(bytes) => pack::binary(out, bytes),
            Self::Unsigned(value) => pack::unsigned(out, *value),
            Self::Negative(value) => pack::signed(out, *value),
            Self::Other(msgpack) => out.extend_from_slice(msgpack),
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Span {
    pub(super) start: u32,
    pub(super) end: u32,
}

impl Span {
    /// The decoder refuses payloads of 4 GiB, and no buffer holds more items than the payload has
    /// bytes.
    pub(super) const fn new(start: usize, end: usize) -> Self {
        Self { start: start as u32, end: end as u32 }
    }

    pub(super) const fn len(self) -> usize {
        (self.end - self.start) as usize
    }

    pub(super) const fn is_empty(self) -> bool {
        self.start == self.end
    }

    pub(super) fn of<'a, T>(&self, items: &'a [T]) -> &'a [T] {
        items.get(self.start as usize..self.end as usize).unwrap_or(&[])
    }
}

/// Lists of several blocks in order. Reusable.
#[derive(Clone, Debug, Default)]
pub struct ExtraKeysBuffer {
    blocks: Vec<Span>,
    msgpack: Vec<u8>,
}

impl ExtraKeysBuffer {
    /// Appends the next block's list, which may be empty.
    pub fn push(&mut self, keys: &[WireExtraKey<'_>]) {
        let start = self.msgpack.len();
        for key in keys {
            key.write(&mut self.msgpack);
        }
        self.blocks.push(Span::new(start, self.msgpack.len()));
    }

    /// All lists.
    #[must_use]
    pub fn keys(&self) -> WireExtraKeys<'_> {
        WireExtraKeys { blocks: &self.blocks, msgpack: &self.msgpack }
    }

    pub(super) fn clear(&mut self) {
        self.blocks.clear();
        self.msgpack.clear();
    }

    pub(super) fn shrink_to(&mut self, items: usize) {
        self.blocks.shrink_to(items);
        self.msgpack.shrink_to(items);
    }

    pub(super) fn block_count(&self) -> usize {
        self.blocks.len()
    }

    /// Appends a list of whole msgpack values.
    pub(super) fn push_msgpack(&mut self, values: &[u8]) {
        let start = self.msgpack.len();
        self.msgpack.extend_from_slice(values);
        self.blocks.push(Span::new(start, self.msgpack.len()));
    }

    pub(super) fn slice(&self, blocks: Span) -> WireExtraKeys<'_> {
        WireExtraKeys { blocks: blocks.of(&self.blocks), msgpack: &self.msgpack }
    }
}

/// The lists of one event's blocks; none at all if the engine sends no extra keys.
#[derive(Clone, Copy, Default)]
pub struct WireExtraKeys<'a> {
    blocks: &'a [Span],
    msgpack: &'a [u8],
}

impl<'a> WireExtraKeys<'a> {
    /// Number of blocks with a list, empty or not.
    #[must_use]
    pub fn len(&self) -> usize {
        self.blocks.len()
    }

    /// Whether the engine sent no list at all.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    /// The values of block `index`.
    pub fn block(&self, index: usize) -> impl Iterator<Item = WireExtraKey<'a>> + use<'a> {
        let mut reader = MsgpackReader::new(self.msgpack_of(index));
        std::iter::from_fn(move || next_key(&mut reader))
    }

    pub(super) fn msgpack_of(&self, index: usize) -> &'a [u8] {
        self.blocks.get(index).map_or(&[], |span| span.of(self.msgpack))
    }
}

impl PartialEq for WireExtraKeys<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.len() == other.len() && (0..self.len()).all(|i| self.block(i).eq(other.block(i)))
    }
}

impl Eq for WireExtraKeys<'_> {}

impl std::fmt::Debug for WireExtraKeys<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries((0..self.len()).map(|i| self.block(i).collect::<Vec<_>>())).finish()
    }
}

/// The bytes were validated when they were decoded, so an error here means the end.
fn next_key<'a>(reader: &mut MsgpackReader<'a>) -> Option<WireExtraKey<'a>> {
    const FIELD: &str = "extra_keys";
    let start = reader.position();
    let mut typed = *reader;
    reader.skip(FIELD).ok()?;
    let other = WireExtraKey::Other(reader.since(start));
    Some(match typed.peek(FIELD).ok()? {
        0xa0..=0xbf | 0xd9..=0xdb => {
            let text = std::str::from_utf8(typed.text(FIELD).ok()?);
            text.map_or(other, WireExtraKey::Text)
        }
        0xc4..=0xc6 => WireExtraKey::Bytes(typed.binary(FIELD).ok()?),
        0x00..=0x7f | 0xcc..=0xd3 | 0xe0..=0xff => match typed.int(FIELD).ok()? {
            Int::Unsigned(value) => WireExtraKey::Unsigned(value),
            Int::Negative(value) => WireExtraKey::Negative(value),
        },
        _ => other,
    })
}
