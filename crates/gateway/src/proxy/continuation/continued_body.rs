//! The body of the request to the next engine, and what its answer is for.

use super::sent::Resent;
use bytes::Bytes;

/// A request that continues a stream.
#[derive(Debug)]
pub(super) struct ContinuedBody {
    pub(super) body: Bytes,
    pub(super) resent: Resent,
    pub(super) lacks: Lacks,
    /// Whether the client has all the tokens that the answer may have.
    pub(super) has_all_tokens: bool,
    /// Where it is sent, if not to the path of the client.
    pub(super) path: Option<&'static str>,
}

/// What a client lacks of a stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Lacks {
    Text,
    /// The end of an answer that has all tokens that it may have.
    End,
    /// The token counts of an answer that is complete.
    Counts,
}
