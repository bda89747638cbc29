//! Finds what an answer says of its tokens, while it passes by.
//!
//! Answers are not parsed: the bytes go through untouched. All that is looked for is `"usage":{`, and the
//! numbers in the object that follows; in text it would be written with escaped quotes. Chunks may cut
//! it anywhere.

use crate::record::Usage;
use memchr::memmem::Finder;
use std::sync::LazyLock;

const MARK: &[u8] = b"\"usage\":";
/// The most of an object that is read; real ones have a few hundred bytes.
const MOST: usize = 2048;

/// Looks at an answer's bytes.
#[derive(Debug, Default)]
pub(crate) struct UsageScan {
    /// The end of the last chunk, if the mark may have begun in it; or what came after the mark.
    kept: Vec<u8>,
    is_found: bool,
    usage: Usage,
}

impl UsageScan {
    /// The next piece of the answer.
    pub(crate) fn feed(&mut self, mut bytes: &[u8]) {
        loop {
            if self.is_found {
                self.collect(bytes);
                return;
            }
            if !self.kept.is_empty() {
                // Enough of the new piece to complete a mark that the old one began.
                let joint = bytes.len().min(MARK.len() - 1);
                let old = self.kept.len();
                self.kept.extend_from_slice(&bytes[..joint]);
                let Some(end) = find(&self.kept) else {
                    self.kept.truncate(old);
                    if bytes.len() < MARK.len() {
                        self.kept.extend_from_slice(bytes);
                        let surplus = self.kept.len().saturating_sub(MARK.len() - 1);
                        self.kept.drain(..surplus);
                        return;
                    }
                    self.kept.clear();
                    continue;
                };
                self.kept.clear();
                self.is_found = true;
                bytes = &bytes[end.saturating_sub(old).min(bytes.len())..];
                continue;
            }
            let Some(end) = find(bytes) else {
                let tail = bytes.len().min(MARK.len() - 1);
                let tail = &bytes[bytes.len() - tail..];
                if tail.contains(&b'"') {
                    self.kept.extend_from_slice(tail);
                }
                return;
            };
            self.is_found = true;
            bytes = &bytes[end..];
        }
    }

    /// What was found.
    pub(crate) fn usage(mut self) -> Usage {
        self.read();
        self.usage
    }

    fn collect(&mut self, bytes: &[u8]) {
        let room = MOST - self.kept.len().min(MOST);
        self.kept.extend_from_slice(&bytes[..bytes.len().min(room)]);
        match self.kept.trim_ascii_start().first() {
            None | Some(b'{') => {}
            // Streams say `"usage":null` until their last chunk.
            Some(_) => {
                let rest = std::mem::take(&mut self.kept);
                self.is_found = false;
                if rest.len() == bytes.len().min(room) {
                    self.feed(&bytes[bytes.len().min(1)..]);
                }
            }
        }
    }

    fn read(&mut self) {
        if !self.is_found {
            return;
        }
        let number = |name: &[u8]| number_of(&self.kept, name);
        let first = |names: &[&[u8]]| names.iter().find_map(|name| number(name));
        let usage = Usage {
            prompt_tokens: first(&[b"\"prompt_tokens\"", b"\"input_tokens\""]),
            cached_tokens: first(&[b"\"cached_tokens\"", b"\"cache_read_input_tokens\""]),
            output_tokens: first(&[b"\"completion_tokens\"", b"\"output_tokens\""]),
        };
        self.usage = usage;
    }
}

/// Where the mark ends.
fn find(bytes: &[u8]) -> Option<usize> {
    static FINDER: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(MARK));
    FINDER.find(bytes).map(|at| at + MARK.len())
}

fn number_of(bytes: &[u8], name: &[u8]) -> Option<u64> {
    let at = bytes.windows(name.len()).position(|window| window == name)? + name.len();
    let rest = bytes[at..].trim_ascii_start().strip_prefix(b":")?.trim_ascii_start();
    let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
    std::str::from_utf8(&rest[..digits]).ok()?.parse().ok()
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
    fn an_answer_without_usage_has_none() {
        let mut scan = UsageScan::default();
        scan.feed(b"{\"usage\"");
        scan.feed(b" plain \"usage\":3");
        assert_eq!(scan.usage(), Usage::default());
    }
}
