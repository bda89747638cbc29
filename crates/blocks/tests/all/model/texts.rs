//! Random texts that are hard for tokenizers. The benchmark of tokenizers uses this file too, and
//! its kept run names texts: they stay the same for the same seed.

/// What breaks tokenizers: white space, contractions, digits, combining characters, scripts, emoji,
/// and parts of added tokens.
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

/// A seeded random number generator.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ 0xD1B5_4A32_D192_ED03)
    }

    pub(crate) fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) as usize % bound
    }

    pub(crate) fn piece(&mut self) -> &'static str {
        PIECES[self.below(PIECES.len())]
    }
}
