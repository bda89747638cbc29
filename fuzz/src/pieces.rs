//! Bytes as a connection brings them: cut anywhere.

/// `bytes` in pieces of two lengths in turn, from 1 to 16 bytes each, as `cuts` says.
pub(crate) fn pieces(mut bytes: &[u8], cuts: u8) -> impl Iterator<Item = &[u8]> {
    let mut lengths = [usize::from(cuts % 16) + 1, usize::from(cuts / 16) + 1].into_iter().cycle();
    std::iter::from_fn(move || {
        let length = lengths.next()?.min(bytes.len());
        let (piece, rest) = bytes.split_at(length);
        bytes = rest;
        (length > 0).then_some(piece)
    })
}
