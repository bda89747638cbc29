//! The requests: chats whose first half is shared by many and whose second half is unique.

/// Number of distinct first halves.
const PREFIXES: usize = 64;
/// Random text that second halves are cut from.
const POOL_BYTES: usize = 4 << 20;

const WORDS: &str = "the model cache of a request that arrives while another waits for its first token and holds \
                     seventeen blocks in memory which nobody else has computed before morning answer question \
                     below is written carefully so each reader may follow without effort or delay";

/// What the prompts of a run share.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Shared {
    /// The first half, which is one of 64.
    FirstHalf,
    /// Nothing: each begins with its number, and the rest is random.
    Nothing,
}

/// Whether the answer is streamed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Delivery {
    Whole,
    Stream,
}

/// Generates requests of one size.
pub(crate) struct Prompts {
    bytes: usize,
    shared: Shared,
    delivery: Delivery,
    prefixes: Vec<String>,
    pool: String,
}

impl Prompts {
    /// Bodies of `bytes` bytes.
    pub(crate) fn new(bytes: usize, shared: Shared, delivery: Delivery) -> Self {
        let mut random = Random(bytes as u64);
        let half = bytes / 2 - 100;
        let prefixes = (0..PREFIXES).map(|_| text(&mut random, half)).collect();
        Self { bytes, shared, delivery, prefixes, pool: text(&mut random, POOL_BYTES + bytes) }
    }

    /// The text of the second half, which no other request has.
    pub(crate) fn new_text(&self, number: u64) -> &str {
        self.window(Random(number), self.bytes / 2 - 150)
    }

    /// A random part of the pool.
    fn window(&self, mut at: Random, bytes: usize) -> &str {
        let start = at.below(POOL_BYTES);
        &self.pool[start..start + bytes]
    }

    /// Writes request `number`, head and body, into `request`.
    pub(crate) fn write(&self, number: u64, request: &mut Vec<u8>) {
        let prefix = &self.prefixes[Random(number).below(PREFIXES)];
        let (first, prefix) = match self.shared {
            Shared::FirstHalf => (0, prefix.as_str()),
            Shared::Nothing => (number, self.window(Random(!number), prefix.len())),
        };
        let stream = match self.delivery {
            Delivery::Whole => "",
            Delivery::Stream => r#","stream":true"#,
        };
        let start = format!(
            r#"{{"model":"bench-model","max_tokens":64{stream},"messages":[{{"role":"system","content":"{first:016x} "#
        );
        let middle = format!(r#""}},{{"role":"user","content":"{number:016x} "#);
        let new = self.new_text(number);
        const END: &str = r#""}]}"#;
        let written = start.len() + prefix.len() + middle.len() + new.len() + END.len();
        let blanks = self.bytes.saturating_sub(written);
        let length = written + blanks;
        request.clear();
        request.extend_from_slice(
            format!(
                "POST /v1/chat/completions HTTP/1.1\r\nhost: bench\r\nuser-agent: bench\r\naccept: */*\r\n\
                 content-type: application/json\r\ncontent-length: {length}\r\n\r\n"
            )
            .as_bytes(),
        );
        for part in [&start, prefix, &middle, new] {
            request.extend_from_slice(part.as_bytes());
        }
        request.resize(request.len() + blanks, b'.');
        request.extend_from_slice(END.as_bytes());
    }
}

fn text(random: &mut Random, bytes: usize) -> String {
    let words: Vec<&str> = WORDS.split_ascii_whitespace().collect();
    let mut text = String::with_capacity(bytes + 16);
    while text.len() < bytes {
        text.push_str(words[random.below(words.len())]);
        text.push(' ');
    }
    text.truncate(bytes);
    text
}

/// SplitMix64.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((u128::from(bits ^ (bits >> 31)) * bound as u128) >> 64) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn body(prompts: &Prompts, number: u64) -> String {
        let mut request = Vec::new();
        prompts.write(number, &mut request);
        let text = String::from_utf8(request).expect("it is ASCII");
        text.split_once("\r\n\r\n").expect("a head and a body").1.to_owned()
    }

    #[test]
    fn bodies_have_the_requested_size_and_share_the_first_half_or_nothing() {
        for bytes in [1024, 32_768] {
            let halves = Prompts::new(bytes, Shared::FirstHalf, Delivery::Stream);
            let nothing = Prompts::new(bytes, Shared::Nothing, Delivery::Whole);
            assert_eq!(body(&halves, 7).len(), bytes);
            assert_eq!(body(&nothing, 7).len(), bytes);
            assert_ne!(body(&halves, 7), body(&halves, 8));
            assert!(!body(&nothing, 7).contains("stream"));
            assert_ne!(body(&nothing, 7)[..120], body(&nothing, 8)[..120]);
        }
    }
}
