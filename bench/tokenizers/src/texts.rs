//! Texts to compare tokenizers on: slices of real files, and seeded random mixtures of what breaks
//! them.

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

const PIECES: &[&str] = &[
    " ",
    "  ",
    "   ",
    "\n",
    "\n\n",
    "\r\n",
    "\t",
    " \n ",
    "\u{a0}",
    "\u{3000}",
    "\u{2009}",
    "\u{85}",
    "a",
    "the",
    " the",
    "The",
    "Hello",
    "hello world",
    "it's",
    "I'LL",
    "don't",
    "'s",
    "'ſ",
    "’re",
    "0",
    "7",
    "12345",
    "1.5e-7",
    "½",
    "Ⅷ",
    "٣",
    "x=1;",
    "fn main() {}\n",
    "    return x",
    "/*",
    "://",
    "é",
    "e\u{301}",
    "\u{301}",
    "ñ",
    "Å",
    "\u{212b}",
    "ｶﾞ",
    "が",
    "か\u{3099}",
    "한국어",
    "\u{1112}\u{1161}\u{11ab}",
    "中文",
    "日本語テキスト",
    "привет",
    "שלום",
    "العربية",
    "हिन्दी",
    "ไทย",
    "😀",
    "👩‍👩‍👧",
    "🇩🇪",
    "\u{fe0f}",
    "\u{200d}",
    "\u{feff}",
    "\u{0}",
    "\u{7f}",
    "\u{fffd}",
    "\u{10ffff}",
    "\u{e000}",
    "...",
    "!!",
    "—",
    "_",
    "__init__",
    "<|im_start|>",
    "<|im_end|>",
    "<|im_",
    "im_end|>",
    "<|",
    "|>",
    "<think>",
    "</think>",
    "<tool_call>",
    "<|endoftext|>",
    "<|bos|>",
    "<|eos|>",
    "<think",
    ">",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "================",
];

/// A random mixture, the same for the same seed.
pub fn random(seed: u64) -> String {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ 0xD1B5_4A32_D192_ED03;
    let mut next = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33
    };
    let pieces = 1 + next() % 40;
    let mut text = String::new();
    for _ in 0..pieces {
        if next() % 8 == 0 {
            text.extend(char::from_u32((next() % 0x3000) as u32));
        } else {
            text.push_str(PIECES[next() as usize % PIECES.len()]);
        }
    }
    text
}
