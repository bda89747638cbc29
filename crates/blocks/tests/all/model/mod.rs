//! The test models, loaded once per process.

pub(crate) mod texts;

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
