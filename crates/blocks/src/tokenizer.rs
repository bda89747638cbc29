//! Hugging Face tokenizers: text to exactly the token ids that the engine computes.
//!
//! One type wraps two libraries. `fastokens` is by far the fastest that gave the same ids as
//! Hugging Face in every comparison (`bench/tokenizers`); the released `tokenizers` defines the
//! correct ids and reads every file. Loading compares the two on probe texts; where they differ, or
//! where the fast one cannot read the file, the released one is used.
//!
//! `fastokens` starts worker threads for texts of 64 KiB and more between two added tokens. Such a
//! text is split first where that is proven harmless ([`SplitPoints`]), so in practice no thread is
//! spawned.
//!
//! A caller can set limits ([`EncodeLimits`]), and stop in the yield hook.

mod split_points;
mod token_cache;

use std::cell::Cell;
use std::ops::ControlFlow;

use serde_json::Value;

pub use token_cache::{TokenCache, TokenCacheStats};

pub(crate) use split_points::{AddedToken, SplitPoints};

use crate::encode_limits::EncodeLimits;

/// A `tokenizer.json` that cannot be used.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum TokenizerError {
    /// Not JSON at all.
    #[error("{file}: not JSON: {cause}")]
    NotJson {
        /// The file as the caller named it.
        file: String,
        /// The parser's message, with line and column.
        cause: String,
    },
    /// JSON that is not a tokenizer, or one of a type that Hugging Face does not support.
    #[error("{file}: invalid tokenizer: {cause}")]
    Invalid {
        /// The file as the caller named it.
        file: String,
        /// The library's message.
        cause: String,
    },
    /// The tokenizer failed on a text.
    #[error("{file}: cannot tokenize: {cause}")]
    Failed {
        /// The file as the caller named it.
        file: String,
        /// The library's message.
        cause: String,
    },
    /// Tokenization was stopped before the end of a text.
    #[error("{file}: tokenization stopped: {why}")]
    Stopped {
        /// The file as the caller named it.
        file: String,
        /// Why it was stopped.
        why: EncodeStop,
    },
}

/// Why tokenization stopped before the end of a text.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum EncodeStop {
    /// The text has more tokens than [`EncodeLimits::tokens`].
    #[error("more than {0} tokens")]
    TooManyTokens(usize),
    /// A part of the text without a split point is longer than [`EncodeLimits::unsplit_bytes`].
    #[error("more than {0} bytes without a split point")]
    NoSplitPoint(usize),
    /// The yield hook asked for it.
    #[error("interrupted")]
    Interrupted,
}

/// Where token ids go, and the limits of the text that they come from.
struct TokenSink<'a> {
    ids: &'a mut Vec<u32>,
    /// The length of `ids` at the limit.
    most_ids: usize,
    limits: EncodeLimits,
}

impl<'a> TokenSink<'a> {
    fn new(ids: &'a mut Vec<u32>, limits: EncodeLimits) -> Self {
        let most_ids = ids.len().saturating_add(limits.tokens);
        Self { ids, most_ids, limits }
    }

    fn check_tokens(&self) -> Result<(), EncodeStop> {
        let is_full = self.ids.len() > self.most_ids;
        if is_full { Err(EncodeStop::TooManyTokens(self.limits.tokens)) } else { Ok(()) }
    }

    /// Checks the limits before a piece of `bytes`, and yields.
    fn before_piece(&self, bytes: usize) -> Result<(), EncodeStop> {
        self.check_tokens()?;
        if bytes > self.limits.unsplit_bytes {
            return Err(EncodeStop::NoSplitPoint(self.limits.unsplit_bytes));
        }
        if YIELD_HOOK.get()().is_break() {
            return Err(EncodeStop::Interrupted);
        }
        Ok(())
    }
}

/// Whether to add the tokens that the model's post-processor puts around a text.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SpecialTokens {
    /// A completion prompt: the beginning-of-text token, where the tokenizer adds one.
    Added,
    /// A rendered chat, whose template contains such tokens itself.
    InText,
}

/// The library in use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TokenizerLibrary {
    /// `fastokens`, checked against the released library when loaded.
    Fast,
    /// Hugging Face's released library.
    Released,
}

/// The model types that Hugging Face's library supports.
const MODELS: [&str; 4] = ["BPE", "Unigram", "WordLevel", "WordPiece"];

/// The two libraries must agree on these texts before the fast one is used for a tokenizer.
const PROBES: &[&str] = &[
    "",
    " ",
    "Hello, world! It's 12345.678 o'clock; I'LL we've THEY'RE don't.",
    "  two  spaces   three\ttab\n\n\nlines\r\n\r\n trailing   ",
    "def f(x):\n    return {'a': [1, 2], \"b\": x ** 2}  # done\n\n\nclass A:\n\tpass\n",
    "naïve café e\u{301}\u{327} Å \u{212b} ﬁ ǆ ſ'ſ K ½ Ⅷ ٣ x² 10⁵",
    "日本語のテキスト。中文文本，標點！한국어 텍스트 \u{1112}\u{1161}\u{11ab} か\u{3099}",
    "Привет, мир! שלום עולם العربية हिन्दी ไทย ქართული",
    "😀👩‍👩‍👧🇩🇪\u{fe0f} \u{200d} \u{feff}\u{a0}\u{3000}\u{85}\u{2028}",
    "\u{0}\u{7f}\u{fffd}\u{10ffff}\u{e000} ... !!! --- ___ === /// :// http://a.b/c?d=e&f#g",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "ABCDefgHIJklm camelCaseWord snake_case_word SCREAMING kebab-case 0x1F 1e-9",
];

enum Library {
    Fast(Box<fastokens::Tokenizer>),
    Released(Box<tokenizers::Tokenizer>),
}

#[derive(Default)]
struct Frame {
    before: Vec<u32>,
    after: Vec<u32>,
}

/// A model's tokenizer.
pub struct Tokenizer {
    file: String,
    library: Library,
    split_points: Option<SplitPoints>,
    /// The bytes of its longest token, where every byte of a text becomes part of a token.
    longest_token: Option<usize>,
    /// Tokens that the post-processor puts before and after a text.
    frame: Frame,
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
        // Engines set both themselves; values saved in the file must not shorten prompts.
        for setting in ["truncation", "padding"] {
            if let Some(value) = json.get_mut(setting) {
                *value = Value::Null;
            }
        }
        let invalid = |cause: String| TokenizerError::Invalid { file: file.to_owned(), cause };
        if let Some(kind) = json["model"]["type"].as_str().filter(|kind| !MODELS.contains(kind)) {
            let supported = MODELS.join(", ");
            return Err(invalid(format!("unknown model type `{kind}`; supported: {supported}")));
        }
        let released = guarded(|| {
            serde_json::from_value::<tokenizers::Tokenizer>(json.clone())
                .map_err(|error| error.to_string())
        })
        .map_err(invalid)?;
        let split_points = SplitPoints::of(&json);
        let longest_token = split_points::longest_token(&json);
        let fast =
            guarded(|| fastokens::Tokenizer::from_json(json).map_err(|error| error.to_string()))
                .ok()
                .filter(|fast| guarded(|| Ok(libraries_agree(fast, &released))) == Ok(true));
        let frame = frame(&released).map_err(invalid)?;
        let library = match fast {
            Some(fast) => Library::Fast(Box::new(fast)),
            None => Library::Released(Box::new(released)),
        };
        Ok(Self { file: file.to_owned(), library, split_points, longest_token, frame })
    }

    /// The library in use.
    #[must_use]
    pub const fn engine(&self) -> TokenizerLibrary {
        match self.library {
            Library::Fast(_) => TokenizerLibrary::Fast,
            Library::Released(_) => TokenizerLibrary::Released,
        }
    }

    /// How many tokens the post-processor puts before and after a text.
    #[must_use]
    pub const fn special_tokens_around(&self) -> (usize, usize) {
        (self.frame.before.len(), self.frame.after.len())
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
        framing: SpecialTokens,
        out: &mut Vec<u32>,
    ) -> Result<(), TokenizerError> {
        let mut sink = TokenSink::new(out, EncodeLimits::default());
        self.framed(framing, &mut sink, |sink| self.encode_bare(text, sink))
    }

    /// Appends the ids of `text` that do not depend on the text after it: those up to the last
    /// split point.
    ///
    /// For a prompt of which only the beginning is known. Tokens at its end may merge with the text
    /// that follows, so they are left out.
    ///
    /// # Errors
    /// If the tokenizer has no token for some of the text, or tokenization was stopped.
    pub fn encode_beginning(
        &self,
        text: &str,
        framing: SpecialTokens,
        limits: EncodeLimits,
        out: &mut Vec<u32>,
    ) -> Result<(), TokenizerError> {
        let end = self.split_points.as_ref().map_or(0, |points| points.last(text));
        let mut sink = TokenSink::new(out, limits);
        self.check_length(&text[..end], limits)?;
        if framing == SpecialTokens::Added {
            sink.ids.extend_from_slice(&self.frame.before);
        }
        self.encode_bare(&text[..end], &mut sink)
    }

    /// Runs `encode` and adds the tokens around the text.
    fn framed(
        &self,
        framing: SpecialTokens,
        out: &mut TokenSink<'_>,
        encode: impl FnOnce(&mut TokenSink<'_>) -> Result<(), TokenizerError>,
    ) -> Result<(), TokenizerError> {
        if framing == SpecialTokens::InText {
            return encode(out);
        }
        out.ids.extend_from_slice(&self.frame.before);
        encode(out)?;
        out.ids.extend_from_slice(&self.frame.after);
        Ok(())
    }

    /// Stops before the first token if even the longest tokens would be too many.
    fn check_length(&self, text: &str, limits: EncodeLimits) -> Result<(), TokenizerError> {
        match self.longest_token {
            Some(longest) if text.len() / longest > limits.tokens => {
                Err(self.stopped(EncodeStop::TooManyTokens(limits.tokens)))
            }
            _ => Ok(()),
        }
    }

    fn encode_bare(&self, text: &str, out: &mut TokenSink<'_>) -> Result<(), TokenizerError> {
        let Some(points) = &self.split_points else {
            out.before_piece(text.len()).map_err(|why| self.stopped(why))?;
            return self.encode_whole(text, out.ids);
        };
        let mut at = 0;
        while let Some(added) = points.next_added(text, at) {
            self.encode_ordinary(&text[at..added.start], out)?;
            out.ids.push(added.id);
            at = added.end;
        }
        self.encode_ordinary(&text[at..], out)
    }

    /// Encodes a text whose added tokens are known.
    fn encode_around(
        &self,
        text: &str,
        added: &[AddedToken],
        out: &mut TokenSink<'_>,
    ) -> Result<(), TokenizerError> {
        let mut at = 0;
        for added in added {
            self.encode_ordinary(&text[at..added.start], out)?;
            out.ids.push(added.id);
            at = added.end;
        }
        self.encode_ordinary(&text[at..], out)
    }

    /// Encodes a text without added tokens.
    fn encode_ordinary(&self, text: &str, out: &mut TokenSink<'_>) -> Result<(), TokenizerError> {
        /// Below the length from which `fastokens` uses threads.
        const LONG: usize = 48 * 1024;
        let mut rest = text;
        while let Some(points) = self.split_points.as_ref().filter(|_| rest.len() > LONG) {
            let Some(end) = points.soft_split(rest, LONG / 2, rest.len()) else { break };
            self.encode_piece(&rest[..end], out)?;
            rest = &rest[end..];
        }
        self.encode_piece(rest, out)
    }

    fn encode_piece(&self, text: &str, out: &mut TokenSink<'_>) -> Result<(), TokenizerError> {
        out.before_piece(text.len()).map_err(|why| self.stopped(why))?;
        match &self.library {
            _ if text.is_empty() => Ok(()),
            Library::Fast(fast) => {
                let ids = fast.encode_ordinary(text).map_err(|error| self.failed(&error))?;
                out.ids.extend_from_slice(&ids);
                Ok(())
            }
            Library::Released(_) => self.encode_whole(text, out.ids),
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

    fn stopped(&self, why: EncodeStop) -> TokenizerError {
        TokenizerError::Stopped { file: self.file.clone(), why }
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

/// Runs a library's reader on an untrusted file.
///
/// Both libraries index and unwrap while they read, so they may panic on an invalid file. Only this
/// function catches that: nothing half-built survives, and the caller gets an error.
fn guarded<T>(read: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(read))
        .unwrap_or_else(|_| Err("the tokenizer library panicked on this file".to_owned()))
}

/// The tokens that the post-processor puts before and after a text.
fn frame(released: &tokenizers::Tokenizer) -> Result<Frame, String> {
    guarded(|| {
        let encode = |special| released.encode_fast("", special).map_err(|error| error.to_string());
        let around = encode(true)?.get_ids().to_vec();
        if around.is_empty() {
            return Ok(Frame::default());
        }
        let text = |special| released.encode_fast("a", special).map_err(|error| error.to_string());
        let bare = text(false)?.get_ids().to_vec();
        let framed = text(true)?.get_ids().to_vec();
        (0..=around.len())
            .map(|cut| around.split_at(cut))
            .find(|(before, after)| [*before, bare.as_slice(), *after].concat() == framed)
            .map(|(before, after)| Frame { before: before.to_vec(), after: after.to_vec() })
            .ok_or_else(|| {
                "unsupported post-processor: it does more than add tokens around a text".to_owned()
            })
    })
}

/// Whether the fast library returns the ids of the released one on all probe texts.
fn libraries_agree(fast: &fastokens::Tokenizer, released: &tokenizers::Tokenizer) -> bool {
    let added: Vec<_> =
        fast.added_token_configs().iter().map(|token| token.content.as_str()).collect();
    probe_texts(&added).iter().all(|text| {
        let expected = released.encode_fast(text.as_str(), false);
        let whole = fast.encode(text);
        matches!((expected, whole), (Ok(expected), Ok(ids)) if expected.get_ids() == ids)
    })
}

/// The probes alone, and around each of the first added tokens.
fn probe_texts(added: &[&str]) -> Vec<String> {
    let mut texts: Vec<String> = PROBES.iter().map(|&text| text.to_owned()).collect();
    texts.push(PROBES.concat());
    for (token, probe) in added.iter().take(64).zip(PROBES.iter().cycle()) {
        texts.push(format!("{probe}{token}{probe} {token} \n{token}{token}"));
    }
    texts
}

/// Called before every piece; breaking stops tokenization.
type YieldHook = fn() -> ControlFlow<()>;

thread_local!(static YIELD_HOOK: Cell<YieldHook> = const { Cell::new(|| ControlFlow::Continue(())) });

/// Makes this thread call `hook` before every piece of text that it tokenizes: about every tenth of
/// a millisecond. If it breaks, the text fails with [`EncodeStop::Interrupted`].
///
/// A fair scheduler lets a thread that was kept waiting catch up for milliseconds, whatever its
/// priority, before another thread that wakes meanwhile. A low-priority thread gives that up by
/// yielding in the hook.
pub fn set_yield_hook(hook: YieldHook) {
    YIELD_HOOK.set(hook);
}
