//! Finds the token usage that an answer reports, while its bytes pass.
//!
//! Parsing every answer would cost too much, so the scan only searches for `"usage":{` and reads
//! the numbers in the object that follows. Inside the text of an answer the quotes are escaped, so
//! the mark cannot match there. Chunks may split the mark and the object anywhere. A stream may
//! report usage several times; for each number the last report counts.

use crate::observe::summary::Usage;
use memchr::memmem::Finder;
use std::sync::LazyLock;

const MARK: &[u8] = b"\"usage\":";
/// A longer object is ignored; real ones have a few hundred bytes.
const MAX_OBJECT_BYTES: usize = 2048;

/// More tokens than any context has: a larger number is not a token count.
const MAX_TOKENS: u64 = 1 << 32;

/// Scans the bytes of one answer.
#[derive(Debug, Default)]
pub(crate) struct UsageScan {
    state: ScanState,
    usage: Usage,
}

#[derive(Debug)]
enum ScanState {
    /// The bytes so far end with this many bytes of the mark.
    Searching(usize),
    /// The mark has passed, and since then only whitespace.
    Marked,
    /// Inside the object, at this nesting depth.
    Inside { object: Vec<u8>, depth: usize },
}

impl Default for ScanState {
    fn default() -> Self {
        Self::Searching(0)
    }
}

impl UsageScan {
    /// Scans the next chunk of the answer.
    pub(crate) fn feed(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let passed = match &mut self.state {
                ScanState::Searching(matched) => match find(matched, bytes) {
                    Some(end) => {
                        self.state = ScanState::Marked;
                        end
                    }
                    None => return,
                },
                ScanState::Marked => self.begin(bytes),
                ScanState::Inside { .. } => self.collect(bytes),
            };
            bytes = &bytes[passed..];
        }
    }

    /// The usage that was found.
    pub(crate) fn usage(self) -> Usage {
        self.usage
    }

    /// Skips whitespace; then comes an object, or `null` as in most events of a stream.
    fn begin(&mut self, bytes: &[u8]) -> usize {
        let skipped = bytes.len() - bytes.trim_ascii_start().len();
        match bytes.get(skipped) {
            None => {}
            Some(b'{') => self.state = ScanState::Inside { object: Vec::new(), depth: 0 },
            Some(_) => self.state = ScanState::default(),
        }
        skipped
    }

    /// Collects bytes up to the end of the object; one that is too long is ignored.
    fn collect(&mut self, bytes: &[u8]) -> usize {
        let ScanState::Inside { object, depth } = &mut self.state else { return 0 };
        for (at, byte) in bytes.iter().enumerate() {
            object.push(*byte);
            match byte {
                b'{' => *depth += 1,
                b'}' => *depth -= 1,
                _ => {}
            }
            if *depth == 0 {
                self.usage = read(object).or(self.usage);
            }
            if *depth == 0 || object.len() == MAX_OBJECT_BYTES {
                self.state = ScanState::default();
                return at + 1;
            }
        }
        bytes.len()
    }
}

/// The position after the mark, of which `matched` bytes had passed before.
fn find(matched: &mut usize, bytes: &[u8]) -> Option<usize> {
    static FINDER: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(MARK));
    let mut at = 0;
    while *matched > 0 && at < bytes.len() {
        *matched = advance(*matched, bytes[at]);
        at += 1;
        if *matched == MARK.len() {
            return Some(at);
        }
    }
    let rest = &bytes[at..];
    if let Some(start) = FINDER.find(rest) {
        return Some(at + start + MARK.len());
    }
    let end = rest.len().saturating_sub(MARK.len() - 1);
    *matched = rest[end..].iter().fold(*matched, |matched, byte| advance(matched, *byte));
    None
}

/// How many bytes of the mark are matched after one more byte.
fn advance(matched: usize, byte: u8) -> usize {
    let quotes = MARK.len() - 1;
    match byte {
        _ if MARK[matched] == byte => matched + 1,
        // The closing quote may be the opening quote of another mark.
        b'u' if matched == quotes => 2,
        b'"' => 1,
        _ => 0,
    }
}

fn read(object: &[u8]) -> Usage {
    let first = |names: [&[u8]; 2]| names.iter().find_map(|name| number_of(object, name));
    Usage {
        prompt_tokens: first([b"\"prompt_tokens\"", b"\"input_tokens\""]),
        cached_tokens: first([b"\"cached_tokens\"", b"\"cache_read_input_tokens\""]),
        output_tokens: first([b"\"completion_tokens\"", b"\"output_tokens\""]),
    }
}

fn number_of(bytes: &[u8], name: &[u8]) -> Option<u64> {
    let at = bytes.windows(name.len()).position(|window| window == name)? + name.len();
    let rest = bytes[at..].trim_ascii_start().strip_prefix(b":")?.trim_ascii_start();
    let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
    std::str::from_utf8(&rest[..digits]).ok()?.parse().ok().filter(|tokens| *tokens <= MAX_TOKENS)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ANSWER: &[u8] = br#"{"choices":[{"text":"say \"usage\":{} \\"}],"usage":{"prompt_tokens":70,"completion_tokens": 5,"prompt_tokens_details":{"cached_tokens":64}}}"#;

    #[test]
    fn usage_is_found_wherever_chunks_are_split() {
        let expected =
            Usage { prompt_tokens: Some(70), cached_tokens: Some(64), output_tokens: Some(5) };
        for first in 0..ANSWER.len() {
            for second in first..ANSWER.len() {
                let mut scan = UsageScan::default();
                scan.feed(&ANSWER[..first]);
                scan.feed(&ANSWER[first..second]);
                scan.feed(&ANSWER[second..]);
                assert_eq!(scan.usage(), expected, "split at {first} and {second}");
            }
        }
        let mut scan = UsageScan::default();
        ANSWER.iter().for_each(|byte| scan.feed(&[*byte]));
        assert_eq!(scan.usage(), expected);
    }

    #[test]
    fn null_usage_before_the_end_of_a_stream_is_skipped() {
        let mut scan = UsageScan::default();
        for _ in 0..3 {
            scan.feed(b"data: {\"choices\":[],\"usage\":null}\n\n");
        }
        scan.feed(b"data: {\"usage\":{\"input_tokens\":9,\"cache_read_input_tokens\":4}}\n\n");
        let usage = scan.usage();
        assert_eq!((usage.prompt_tokens, usage.cached_tokens), (Some(9), Some(4)));
    }

    #[test]
    fn the_last_of_several_reports_counts_wherever_chunks_are_split() {
        let stream = br#"{"usage":{"input_tokens":25,"output_tokens":1}} ""usage":  null "usage": {"output_tokens":15} "usage":{"output_tok"#;
        let expected =
            Usage { prompt_tokens: Some(25), cached_tokens: None, output_tokens: Some(15) };
        for split in 0..stream.len() {
            let mut scan = UsageScan::default();
            scan.feed(&stream[..split]);
            scan.feed(&stream[split..]);
            assert_eq!(scan.usage(), expected, "split at {split}");
        }
    }

    #[test]
    fn an_impossible_token_count_is_ignored() {
        let mut scan = UsageScan::default();
        scan.feed(br#"{"usage":{"prompt_tokens":18446744073709551615,"completion_tokens":7}}"#);
        let usage = scan.usage();
        assert_eq!((usage.prompt_tokens, usage.output_tokens), (None, Some(7)));
    }

    #[test]
    fn an_answer_without_usage_has_none() {
        let mut scan = UsageScan::default();
        scan.feed(b"{\"usage\"");
        scan.feed(b" plain \"usage\":3");
        assert_eq!(scan.usage(), Usage::default());
    }
}
