//! Text as it is written in JSON, without quotes.

use super::reason::NotContinued;

/// The text of a string as it is written in JSON, without quotes.
pub(super) fn decoded(written: &[u8]) -> Result<String, NotContinued> {
    let quoted = [b"\"", written, b"\""].concat();
    serde_json::from_slice(&quoted).map_err(|_| NotContinued::Field)
}

/// Where the first `length` bytes of a text end as it is written in JSON.
pub(super) fn written_end(written: &[u8], length: usize) -> usize {
    let unit = |at: usize| {
        let digits = written.get(at + 2..at + 6)?;
        let digits = std::str::from_utf8(digits).ok()?;
        written[at..].starts_with(b"\\u").then(|| u32::from_str_radix(digits, 16).ok())?
    };
    let mut at = 0;
    let mut bytes = 0;
    while bytes < length && at < written.len() {
        if written[at] != b'\\' {
            at += 1;
            bytes += 1;
            continue;
        }
        match unit(at) {
            None => {
                at += 2;
                bytes += 1;
            }
            Some(0xD800..0xDC00) => {
                at += 12;
                bytes += 4;
            }
            Some(code) => {
                at += 6;
                bytes += char::from_u32(code).map_or(3, char::len_utf8);
            }
        }
    }
    at.min(written.len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_written_end_is_where_the_text_ends(text in "[a\"\\\\\n\u{1}\u{e9}\u{1f600}]{0,12}") {
            let compact = serde_json::to_string(&text).unwrap();
            let ascii: String = text.encode_utf16().map(|unit| format!("\\u{unit:04x}")).collect();
            for written in [&compact[1..compact.len() - 1], &ascii] {
                for (at, _) in text.char_indices().chain([(text.len(), ' ')]) {
                    let end = written_end(written.as_bytes(), at);
                    prop_assert_eq!(decoded(&written.as_bytes()[..end]).unwrap(), &text[..at]);
                }
            }
        }
    }
}
