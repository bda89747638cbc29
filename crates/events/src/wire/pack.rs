//! A msgpack writer for cache events, with the shortest encoding of each value.

pub(super) fn nil(out: &mut Vec<u8>) {
    out.push(0xc0);
}

pub(super) fn array(out: &mut Vec<u8>, length: usize) {
    header(out, length, &MsgpackHeader { short: Some((0x90, 15)), byte: None, wide: [0xdc, 0xdd] });
}

pub(super) fn map(out: &mut Vec<u8>, length: usize) {
    header(out, length, &MsgpackHeader { short: Some((0x80, 15)), byte: None, wide: [0xde, 0xdf] });
}

pub(super) fn text(out: &mut Vec<u8>, text: &str) {
    let family = MsgpackHeader { short: Some((0xa0, 31)), byte: Some(0xd9), wide: [0xda, 0xdb] };
    header(out, text.len(), &family);
    out.extend_from_slice(text.as_bytes());
}

pub(super) fn binary(out: &mut Vec<u8>, bytes: &[u8]) {
    header(out, bytes.len(), &MsgpackHeader { short: None, byte: Some(0xc4), wide: [0xc5, 0xc6] });
    out.extend_from_slice(bytes);
}

pub(super) fn unsigned(out: &mut Vec<u8>, value: u64) {
    match value {
        0..=0x7f => out.push(value as u8),
        0x80..=0xff => out.extend_from_slice(&[0xcc, value as u8]),
        0x100..=0xffff => tagged(out, 0xcd, &(value as u16).to_be_bytes()),
        0x1_0000..=0xffff_ffff => tagged(out, 0xce, &(value as u32).to_be_bytes()),
        _ => tagged(out, 0xcf, &value.to_be_bytes()),
    }
}

pub(super) fn signed(out: &mut Vec<u8>, value: i64) {
    match value {
        0.. => unsigned(out, value.cast_unsigned()),
        -32..0 => out.push((value as i8).cast_unsigned()),
        -0x80..-32 => tagged(out, 0xd0, &(value as i8).to_be_bytes()),
        -0x8000..-0x80 => tagged(out, 0xd1, &(value as i16).to_be_bytes()),
        -0x8000_0000..-0x8000 => tagged(out, 0xd2, &(value as i32).to_be_bytes()),
        _ => tagged(out, 0xd3, &value.to_be_bytes()),
    }
}

pub(super) fn float(out: &mut Vec<u8>, value: f64) {
    tagged(out, 0xcb, &value.to_bits().to_be_bytes());
}

/// How one type of values encodes its length.
struct MsgpackHeader {
    /// Marker to which a length up to the maximum is added.
    short: Option<(u8, usize)>,
    /// Marker before a length of one byte.
    byte: Option<u8>,
    /// Markers before a length of two and of four bytes.
    wide: [u8; 2],
}

/// Msgpack has no lengths beyond 32 bits; no batch is that long.
fn header(out: &mut Vec<u8>, length: usize, family: &MsgpackHeader) {
    match (length, family.short, family.byte) {
        (_, Some((marker, most)), _) if length <= most => out.push(marker | length as u8),
        (0..=0xff, _, Some(marker)) => out.extend_from_slice(&[marker, length as u8]),
        (0..=0xffff, ..) => tagged(out, family.wide[0], &(length as u16).to_be_bytes()),
        _ => tagged(out, family.wide[1], &(length as u32).to_be_bytes()),
    }
}

fn tagged(out: &mut Vec<u8>, marker: u8, digits: &[u8]) {
    out.push(marker);
    out.extend_from_slice(digits);
}
