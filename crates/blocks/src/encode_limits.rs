//! Limits of tokenization.
//!
//! A client chooses the text, and a text without split points costs far more than ordinary text of
//! its length. So a caller can say how many tokens are of use, and how long a part may be that is
//! tokenized in one go. Limits take effect between two parts of a text.

/// How far a text is tokenized; by default to its end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EncodeLimits {
    /// The number of tokens after which tokenization stops. It is checked between pieces, so the
    /// tokens of a text that is only a little longer are all computed.
    pub tokens: usize,
    /// The longest part without a split point, in bytes: a part is tokenized in one go.
    pub unsplit_bytes: usize,
}

impl Default for EncodeLimits {
    fn default() -> Self {
        Self { tokens: usize::MAX, unsplit_bytes: usize::MAX }
    }
}
