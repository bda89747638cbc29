//! Hugging Face tokenizers: text to the very token ids that the engine computes.
//!
//! Two libraries stand behind one type. `fastokens` is by far the fastest that gave the same ids as
//! Hugging Face in every comparison (`bench/tokenizers`); the released `tokenizers` defines what is
//! right and reads every file. Loading compares the two on probe texts, and where they differ, or
//! where the fast one cannot read the file, the released one does the work.
//!
//! `fastokens` starts worker threads for texts of 64 KiB and more between two added tokens. Such a
//! text is cut first wherever that is proven harmless ([`SplitPoints`]), so in practice nothing is spawned.
mod probes;
mod split_points;
mod token_cache;

use crate::yield_hook::pause;
use serde_json::Value;

pub use token_cache::{TokenCache, TokenCacheStats};

pub(crate) use split_points::{AddedToken, SplitPoints};

/// A `tokenizer.json` that cannot be used.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum TokenizerError {
    /// Not JSON at all.
    #[error("{file}: not JSON: {cause}")]
    NotJson {
        /// The file as the caller named it.
        file: String,
        /// What the parser says, with line and column.
        cause: String,
    },
    /// JSON that is no tokenizer, or one of a kind that Hugging Face does not know.
    #[error("{file}: not a usable tokenizer: {cause}")]
    Unusable {
        /// The file as the caller named it.
        file: String,
        /// What the library says.
        cause: String,
    },
    /// The tokenizer failed on a text.
    #[error("{file}: cannot tokenize: {cause}")]
    Failed {
        /// The file as the caller named it.
        file: String,
        /// What the library says.
        cause: String,
    },
}

/// Whether a text gets the tokens that the model's post-processor puts around it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Framing {
    /// A completion prompt: the beginning-of-text token, where the tokenizer adds one.
    Prompt,
    /// A rendered chat, whose template has written such tokens itself.
    Bare,
}

/// The library that does the work.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TokenizerLibrary {
    /// `fastokens`, checked against the released library when loaded.
    Fast,
    /// Hugging Face's released library.
    Released,
}

/// The kinds of model that Hugging Face's library knows.
const MODELS: [&str; 4] = ["BPE", "Unigram", "WordLevel", "WordPiece"];

enum Library {
    Fast(Box<fastokens::Tokenizer>),
    Released(Box<tokenizers::Tokenizer>),
}

/// A model's tokenizer.
pub struct Tokenizer {
    file: String,
    library: Library,
    cuts: Option<SplitPoints>,
    before: Vec<u32>,
    after: Vec<u32>,
}

impl Tokenizer {
    /// Reads the bytes of a `tokenizer.json`, which errors call `file`.
    ///
    /// # Errors
    /// If the bytes are not JSON or not a tokenizer that Hugging Face can use.
    pub fn from_json(file: &str, bytes: &[u8]) -> Result<Self, TokenizerError> {
        let mut json: Value = serde_json::from_slice(bytes).map_err(|error| {
            TokenizerError::NotJson { file: file.to_owned(), cause: error.to_string() }
        })?;
        // Engines set both themselves; a file saved with them must not shorten prompts.
        for setting in ["truncation", "padding"] {
            if let Some(value) = json.get_mut(setting) {
                *value = Value::Null;
            }
        }
        let unusable = |cause: String| TokenizerError::Unusable { file: file.to_owned(), cause };
        if let Some(kind) = json["model"]["type"].as_str().filter(|kind| !MODELS.contains(kind)) {
            let known = MODELS.join(", ");
            return Err(unusable(format!("unknown model type `{kind}`; known are {known}")));
        }
        let released = guarded(|| {
            serde_json::from_value::<tokenizers::Tokenizer>(json.clone())
                .map_err(|error| error.to_string())
        })
        .map_err(unusable)?;
        let cuts = SplitPoints::of(&json);
        let fast =
            guarded(|| fastokens::Tokenizer::from_json(json).map_err(|error| error.to_string()))
                .ok()
                .filter(|fast| guarded(|| Ok(agree(fast, &released))) == Ok(true));
        let (before, after) = frame(&released).map_err(unusable)?;
        let library = match fast {
            Some(fast) => Library::Fast(Box::new(fast)),
            None => Library::Released(Box::new(released)),
        };
        Ok(Self { file: file.to_owned(), library, cuts, before, after })
    }

    /// Which library does the work.
    #[must_use]
    pub const fn engine(&self) -> TokenizerLibrary {
        match self.library {
            Library::Fast(_) => TokenizerLibrary::Fast,
            Library::Released(_) => TokenizerLibrary::Released,
        }
    }

    /// Appends the ids of `text` to `out`.
    ///
    /// The first call on a thread also builds that thread's tables, which takes a tenth of a second
    /// for a large vocabulary: keep tokenizing threads alive.
    ///
    /// # Errors
    /// If the tokenizer has no token for some of the text.
    pub fn encode(
        &self,
        text: &str,
        framing: Framing,
        out: &mut Vec<u32>,
    ) -> Result<(), TokenizerError> {
        self.framed(framing, out, |out| self.encode_bare(text, out))
    }

    /// Appends the ids of `text` that hold whatever follows it: all up to the last harmless cut.
    ///
    /// For a prompt of which only the beginning is known. Tokens at its end may merge with what
    /// comes next, so they are left out.
    ///
    /// # Errors
    /// If the tokenizer has no token for some of the text.
    pub fn encode_beginning(
        &self,
        text: &str,
        framing: Framing,
        out: &mut Vec<u32>,
    ) -> Result<(), TokenizerError> {
        let end = self.cuts.as_ref().map_or(0, |cuts| cuts.last(text));
        if framing == Framing::Prompt {
            out.extend_from_slice(&self.before);
        }
        self.encode_bare(&text[..end], out)
    }

    /// Runs `encode` between what the post-processor puts around a text.
    fn framed(
        &self,
        framing: Framing,
        out: &mut Vec<u32>,
        encode: impl FnOnce(&mut Vec<u32>) -> Result<(), TokenizerError>,
    ) -> Result<(), TokenizerError> {
        if framing == Framing::Bare {
            return encode(out);
        }
        out.extend_from_slice(&self.before);
        encode(out)?;
        out.extend_from_slice(&self.after);
        Ok(())
    }

    fn encode_bare(&self, text: &str, out: &mut Vec<u32>) -> Result<(), TokenizerError> {
        let Some(cuts) = &self.cuts else { return self.encode_whole(text, out) };
        let mut at = 0;
        while let Some(added) = cuts.next_added(text, at) {
            self.encode_ordinary(&text[at..added.start], out)?;
            out.push(added.id);
            at = added.end;
        }
        self.encode_ordinary(&text[at..], out)
    }

    /// A text whose added tokens are known.
    fn encode_around(
        &self,
        text: &str,
        added: &[AddedToken],
        out: &mut Vec<u32>,
    ) -> Result<(), TokenizerError> {
        let mut at = 0;
        for added in added {
            self.encode_ordinary(&text[at..added.start], out)?;
            out.push(added.id);
            at = added.end;
        }
        self.encode_ordinary(&text[at..], out)
    }

    /// A text that holds no added token.
    fn encode_ordinary(&self, text: &str, out: &mut Vec<u32>) -> Result<(), TokenizerError> {
        /// Below the length from which `fastokens` spreads over threads.
        const LONG: usize = 48 * 1024;
        let mut rest = text;
        while let Some(cuts) = self.cuts.as_ref().filter(|_| rest.len() > LONG) {
            let Some(cut) = cuts.soft_cut(rest, LONG / 2) else { break };
            self.encode_piece(&rest[..cut], out)?;
            rest = &rest[cut..];
        }
        self.encode_piece(rest, out)
    }

    fn encode_piece(&self, text: &str, out: &mut Vec<u32>) -> Result<(), TokenizerError> {
        pause();
        match &self.library {
            _ if text.is_empty() => Ok(()),
            Library::Fast(fast) => {
                let ids = fast.encode_ordinary(text).map_err(|error| self.failed(&error))?;
                out.extend_from_slice(&ids);
                Ok(())
            }
            Library::Released(_) => self.encode_whole(text, out),
        }
    }

    fn encode_whole(&self, text: &str, out: &mut Vec<u32>) -> Result<(), TokenizerError> {
        match &self.library {
            Library::Fast(fast) => {
                let ids = fast.encode(text).map_err(|error| self.failed(&error))?;
                out.extend_from_slice(&ids);
            }
            Library::Released(released) => {
                let encoding =
                    released.encode_fast(text, false).map_err(|error| self.failed(&error))?;
                out.extend_from_slice(encoding.get_ids());
            }
        }
        Ok(())
    }

    fn failed(&self, error: &dyn std::fmt::Display) -> TokenizerError {
        TokenizerError::Failed { file: self.file.clone(), cause: error.to_string() }
    }
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tokenizer").field("file", &self.file).finish_non_exhaustive()
    }
}

/// Runs a library's reader on a file nobody has vetted.
///
/// Both libraries index and unwrap while they read, so a broken file may panic in there. This is the
/// one place where that is caught: nothing half-made survives it, and the caller gets an error.
fn guarded<T>(read: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(read))
        .unwrap_or_else(|_| Err("the library gave up on the file's contents".to_owned()))
}

/// Whether the fast library gives the released one's ids, added tokens and all.
fn agree(fast: &fastokens::Tokenizer, released: &tokenizers::Tokenizer) -> bool {
    let added: Vec<_> =
        fast.added_token_configs().iter().map(|token| token.content.as_str()).collect();
    probes::texts(&added).iter().all(|text| {
        let expected = released.encode_fast(text.as_str(), false);
        let whole = fast.encode(text);
        matches!((expected, whole), (Ok(expected), Ok(ids)) if expected.get_ids() == ids)
    })
}

/// What the post-processor puts before and after a text.
fn frame(released: &tokenizers::Tokenizer) -> Result<(Vec<u32>, Vec<u32>), String> {
    guarded(|| {
        let encode = |special| released.encode_fast("", special).map_err(|error| error.to_string());
        let around = encode(true)?.get_ids().to_vec();
        if around.is_empty() {
            return Ok((Vec::new(), Vec::new()));
        }
        let text = |special| released.encode_fast("a", special).map_err(|error| error.to_string());
        let (bare, framed) = (text(false)?.get_ids().to_vec(), text(true)?.get_ids().to_vec());
        (0..=around.len())
            .map(|cut| around.split_at(cut))
            .find(|(before, after)| [*before, bare.as_slice(), *after].concat() == framed)
            .map(|(before, after)| (before.to_vec(), after.to_vec()))
            .ok_or_else(|| {
                "its post-processor does more than to put tokens around a text".to_owned()
            })
    })
}
