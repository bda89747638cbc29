//! Decoding errors: the field, what was found there, and what is valid there.

/// Why a message was refused. The sender is at fault, and a retry of the same bytes does not help,
/// so the message counts as lost and leaves a gap.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum DecodeError {
    /// A value of the wrong type.
    #[error("{field}, byte {at}: found {found}, expected {expected}")]
    Unexpected {
        /// The field being read.
        field: &'static str,
        /// Offset in the payload.
        at: usize,
        /// What was found.
        found: &'static str,
        /// What is valid.
        expected: &'static str,
    },
    /// The bytes end within a value, or a length exceeds them.
    #[error("{field}, byte {at}: found the end of the message, expected {expected}")]
    Truncated {
        /// The field being read.
        field: &'static str,
        /// Offset in the payload.
        at: usize,
        /// What was being read.
        expected: &'static str,
    },
    /// More than the configured limit.
    #[error("{field}: found {found}, expected at most {limit}")]
    TooLarge {
        /// The field being read.
        field: &'static str,
        /// The number found.
        found: usize,
        /// The limit.
        limit: usize,
    },
    /// A required field is missing.
    #[error("{field}: found nothing, expected {expected}")]
    Missing {
        /// The missing field.
        field: &'static str,
        /// What is valid.
        expected: &'static str,
    },
    /// Bytes after the end of the value.
    #[error("payload, byte {at}: found {bytes} bytes after the end, expected none")]
    Trailing {
        /// Where the value ends.
        at: usize,
        /// The number of bytes after it.
        bytes: usize,
    },
    /// A multipart message with a number or shape of frames that no engine sends.
    #[error(
        "frames: found {found}, expected [topic] sequence payload, a topic or nothing before them"
    )]
    Frames {
        /// What is wrong with them.
        found: &'static str,
    },
}
