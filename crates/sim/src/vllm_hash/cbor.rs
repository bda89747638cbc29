//! The canonical CBOR (RFC 8949) of a block: shortest heads, definite lengths.
use super::ExtraKey;

const UNSIGNED: u8 = 0;
const NEGATIVE: u8 = 1;
const BYTES: u8 = 2;
const TEXT: u8 = 3;
const ARRAY: u8 = 4;
const NULL: u8 = 0xf6;

/// Writes `[parent, [tokens…], null | [extra keys…]]`.
pub(super) fn block(parent: &[u8], tokens: &[u32], extra: &[ExtraKey<'_>], out: &mut Vec<u8>) {
    head(ARRAY, 3, out);
    head(BYTES, parent.len() as u64, out);
    out.extend_from_slice(parent);
    head(ARRAY, tokens.len() as u64, out);
    for token in tokens {
        head(UNSIGNED, u64::from(*token), out);
    }
    if extra.is_empty() {
        out.push(NULL);
    } else {
        tuple(extra, out);
    }
}

/// Writes a string.
pub(super) fn text(value: &str, out: &mut Vec<u8>) {
    head(TEXT, value.len() as u64, out);
    out.extend_from_slice(value.as_bytes());
}

fn tuple(items: &[ExtraKey<'_>], out: &mut Vec<u8>) {
    head(ARRAY, items.len() as u64, out);
    for item in items {
        match *item {
            ExtraKey::Text(value) => text(value, out),
            ExtraKey::Bytes(value) => {
                head(BYTES, value.len() as u64, out);
                out.extend_from_slice(value);
            }
            ExtraKey::Int(value) if value >= 0 => head(UNSIGNED, value.unsigned_abs(), out),
            ExtraKey::Int(value) => head(NEGATIVE, !value as u64, out),
            ExtraKey::Tuple(items) => tuple(items, out),
        }
    }
}

/// A major type with its number in the shortest form.
fn head(major: u8, number: u64, out: &mut Vec<u8>) {
    let major = major << 5;
    let bytes = number.to_be_bytes();
    match number {
        0..24 => out.push(major | bytes[7]),
        24..0x100 => out.extend([major | 24, bytes[7]]),
        0x100..0x1_0000 => {
            out.push(major | 25);
            out.extend_from_slice(&bytes[6..]);
        }
        0x1_0000..0x1_0000_0000 => {
            out.push(major | 26);
            out.extend_from_slice(&bytes[4..]);
        }
        _ => {
            out.push(major | 27);
            out.extend_from_slice(&bytes);
        }
    }
}
