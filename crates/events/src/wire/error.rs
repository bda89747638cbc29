//! Why a message was refused: the field, what was found there, and what belongs there.

/// A message that is not what its format promises. The sender is at fault; a retry of the same bytes
/// cannot help, so the message counts as lost and its place in the sequence as a gap.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum DecodeError {
    /// A value of the wrong kind.
    #[error("{field}, byte {at}: found {found}, expected {expected}")]
    Unexpected {
        /// The field being read.
        field: &'static str,
        /// Offset in the payload.
        at: usize,
        /// What stood there.
        found: &'static str,
        /// What belongs there.
        expected: &'static str,
    },
    /// The bytes end inside a value, or a length promises more than there are.
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
        /// How many there are.
        found: usize,
        /// How many are allowed.
        limit: usize,
    },
    /// A field without which the event means nothing.
    #[error("{field}: found nothing, expected {expected}")]
    Missing {
        /// The absent field.
        field: &'static str,
        /// What belongs there.
        expected: &'static str,
    },
    /// Bytes after the end of the value.
    #[error("payload, byte {at}: found {bytes} bytes after the end, expected none")]
    Trailing {
        /// Where the value ended.
        at: usize,
        /// How many bytes follow.
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
