//! Texts to compare tokenizers on: slices of real files, and seeded random mixtures of what breaks
//! them.

#[path = "../../../crates/blocks/tests/all/model/texts.rs"]
mod pieces;

use pieces::Random;

/// Whole characters of `corpus` in pieces of about `bytes`.
pub fn chunks(corpus: &str, bytes: usize) -> Vec<String> {
    let mut out = Vec::new();
    let mut rest = corpus;
    while !rest.is_empty() {
        let cut = rest.ceil_char_boundary(bytes.min(rest.len()));
        out.push(rest[..cut].to_owned());
        rest = &rest[cut..];
    }
    out
}

/// A random mixture, the same for the same seed.
pub fn random(seed: u64) -> String {
    let mut random = Random::new(seed);
    let pieces = 1 + random.below(40);
    let mut text = String::new();
    for _ in 0..pieces {
        if random.below(8) == 0 {
            text.extend(char::from_u32(random.below(0x3000) as u32));
        } else {
            text.push_str(random.piece());
        }
    }
    text
}
