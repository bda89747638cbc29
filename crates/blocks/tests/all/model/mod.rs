//! The test models, loaded once per process, and random texts that are hard for tokenizers.

use std::{
    io::Read,
    sync::{Arc, LazyLock},
};

use wornpath_blocks::Tokenizer;

/// A test model: our tokenizer, and Hugging Face's released library as the reference.
pub(crate) struct Model {
    /// Its folder.
    pub(crate) name: &'static str,
    pub(crate) tokenizer: Arc<Tokenizer>,
    pub(crate) reference: tokenizers::Tokenizer,
}

impl Model {
    fn load(name: &'static str) -> Self {
        let json = json(name);
        Self {
            name,
            tokenizer: Arc::new(Tokenizer::from_json(name, &json).unwrap()),
            reference: tokenizers::Tokenizer::from_bytes(&json).unwrap(),
        }
    }

    /// The ids that Hugging Face's library returns, without framing.
    pub(crate) fn reference_ids(&self, text: &str) -> Vec<u32> {
        self.reference.encode_fast(text, false).unwrap().get_ids().to_vec()
    }
}

/// Qwen3: 151k entries, NFC and a regular expression.
pub(crate) static QWEN3: LazyLock<Model> = LazyLock::new(|| Model::load("qwen3"));
/// A small byte-level tokenizer that adds a token in front.
pub(crate) static TINY: LazyLock<Model> = LazyLock::new(|| Model::load("tiny-llama"));

/// All test models.
pub(crate) fn all() -> [&'static Model; 2] {
    [&QWEN3, &TINY]
}

/// The bytes of a model's `tokenizer.json`.
pub(crate) fn json(name: &str) -> Vec<u8> {
    let path = format!("{}/tests/models/{name}/tokenizer.json", env!("CARGO_MANIFEST_DIR"));
    if let Ok(bytes) = std::fs::read(&path) {
        return bytes;
    }
    let packed = std::fs::read(path + ".gz").unwrap();
    let mut bytes = Vec::new();
    flate2::read::GzDecoder::new(packed.as_slice()).read_to_end(&mut bytes).unwrap();
    bytes
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
    "\u{11a8}",
    "가",
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
    "\u{fffd}",
    "\u{10ffff}",
    "...",
    "!!",
    "—",
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

    /// A random mixture of pieces and characters.
    pub(crate) fn text(&mut self, pieces: usize) -> String {
        let mut text = String::new();
        for _ in 0..pieces {
            match self.below(10) {
                0 => text.extend(char::from_u32(self.below(0x3000) as u32)),
                1 => text.extend(char::from_u32(self.below(0x11_0000) as u32)),
                _ => text.push_str(PIECES[self.below(PIECES.len())]),
            }
        }
        text
    }
}
