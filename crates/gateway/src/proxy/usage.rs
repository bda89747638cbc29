//! Finds what an answer says of its tokens, while it passes by.
//!
//! Answers are not parsed: the bytes go through untouched. All that is looked for is `"usage":{`, and the
//! numbers in the object that follows; in text it would be written with escaped quotes. Chunks may cut
//! it anywhere. Streams may count as they go, so of several objects the last that has a number tells it.

use crate::observe::summary::Usage;
use memchr::memmem::Finder;
use std::sync::LazyLock;

const MARK: &[u8] = b"\"usage\":";
/// The most of an object that is read; real ones have a few hundred bytes.
const MOST: usize = 2048;

/// More tokens than any context has: who says so counts something else.
const MOST_TOKENS: u64 = 1 << 32;

/// Looks at an answer's bytes.
#[derive(Debug, Default)]
pub(crate) struct UsageScan {
    state: ScanState,
    usage: Usage,
}

#[derive(Debug)]
enum ScanState {
    /// So much of the mark stands at the end of what has passed.
    Searching(usize),
    /// The mark has passed, and nothing but blanks since.
    Marked,
    /// In the object, which is so deep here.
    Inside { object: Vec<u8>, depth: usize },
}

impl Default for ScanState {
    fn default() -> Self {
        Self::Searching(0)
    }
}

impl UsageScan {
    /// The next piece of the answer.
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

    /// What was found.
    pub(crate) fn usage(self) -> Usage {
        self.usage
    }

    /// Passes over blanks; what follows them is an object, or `null` as in most pieces of a stream.
    fn begin(&mut self, bytes: &[u8]) -> usize {
        let blanks = bytes.len() - bytes.trim_ascii_start().len();
        match bytes.get(blanks) {
            None => {}
            Some(b'{') => self.state = ScanState::Inside { object: Vec::new(), depth: 0 },
            Some(_) => self.state = ScanState::default(),
        }
        blanks
    }

    /// Takes bytes up to the end of the object; one that is too long tells nothing.
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
            if *depth == 0 || object.len() == MOST {
                self.state = ScanState::default();
                return at + 1;
            }
        }
        bytes.len()
    }
}

/// Where the mark ends, of which `prefix_match` bytes had passed before.
fn find(matched: &mut usize, bytes: &[u8]) -> Option<usize> {
    static FINDER: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(MARK));
    let mut at = 0;
    while *matched > 0 && at < bytes.len() {
        *matched = follow(*matched, bytes[at]);
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
    *matched = rest[end..].iter().fold(*matched, |matched, byte| follow(matched, *byte));
    None
}

/// How much of the mark stands at the end when a byte follows so much of it.
fn follow(matched: usize, byte: u8) -> usize {
    let quotes = MARK.len() - 1;
    match byte {
        _ if MARK[matched] == byte => matched + 1,
        // The second quote may be another mark's first.
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
    std::str::from_utf8(&rest[..digits]).ok()?.parse().ok().filter(|tokens| *tokens <= MOST_TOKENS)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ANSWER: &[u8] = br#"{"choices":[{"text":"say \"usage\":{} \\"}],"usage":{"prompt_tokens":70,"completion_tokens": 5,"prompt_tokens_details":{"cached_tokens":64}}}"#;

    #[test]
    fn usage_is_found_wherever_chunks_are_cut() {
        let expected =
            Usage { prompt_tokens: Some(70), cached_tokens: Some(64), output_tokens: Some(5) };
        for first in 0..ANSWER.len() {
            for second in first..ANSWER.len() {
                let mut scan = UsageScan::default();
                scan.feed(&ANSWER[..first]);
                scan.feed(&ANSWER[first..second]);
                scan.feed(&ANSWER[second..]);
                assert_eq!(scan.usage(), expected, "cut at {first} and {second}");
            }
        }
        let mut scan = UsageScan::default();
        ANSWER.iter().for_each(|byte| scan.feed(&[*byte]));
        assert_eq!(scan.usage(), expected);
    }

    #[test]
    fn a_stream_says_null_until_its_end() {
        let mut scan = UsageScan::default();
        for _ in 0..3 {
            scan.feed(b"data: {\"choices\":[],\"usage\":null}\n\n");
        }
        scan.feed(b"data: {\"usage\":{\"input_tokens\":9,\"cache_read_input_tokens\":4}}\n\n");
        let usage = scan.usage();
        assert_eq!((usage.prompt_tokens, usage.cached_tokens), (Some(9), Some(4)));
    }

    #[test]
    fn of_several_counts_the_last_is_true_wherever_chunks_are_cut() {
        let stream = br#"{"usage":{"input_tokens":25,"output_tokens":1}} ""usage":  null "usage": {"output_tokens":15} "usage":{"output_tok"#;
        let expected =
            Usage { prompt_tokens: Some(25), cached_tokens: None, output_tokens: Some(15) };
        for cut in 0..stream.len() {
            let mut scan = UsageScan::default();
            scan.feed(&stream[..cut]);
            scan.feed(&stream[cut..]);
            assert_eq!(scan.usage(), expected, "cut at {cut}");
        }
    }

    #[test]
    fn a_count_that_cannot_be_is_none() {
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
