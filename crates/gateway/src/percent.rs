//! Percent-encoding in URL paths.

/// Decodes a path segment; none if an escape is incomplete or the result is not UTF-8.
#[must_use]
pub fn decode(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        rest = match (first, tail) {
            (b'%', [high, low, tail @ ..]) => {
                let digit = |byte: &u8| char::from(*byte).to_digit(16);
                bytes.push(u8::try_from(digit(high)? * 16 + digit(low)?).ok()?);
                tail
            }
            (b'%', _) => return None,
            (byte, tail) => {
                bytes.push(*byte);
                tail
            }
        };
    }
    String::from_utf8(bytes).ok()
}
