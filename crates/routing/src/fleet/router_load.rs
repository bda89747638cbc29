//! The load that a router puts on a pod, as plain numbers: what it tells other routers, and what they
//! told it.
//!
//! Decisions read sums: of a pod's figures each is the own load plus that of other routers, so that
//! they cost nothing more and no plugin can forget one. What is the others' is kept aside, so that
//! the own load is known, and the sum can be corrected when the others say something else.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

/// The load that one router, or several, put on a pod.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RouterLoad {
    /// Requests sent and not finished.
    pub requests: u32,
    /// Those whose prompt is computed.
    pub decoding: u32,
    /// Prompt tokens sent, not cached and not computed yet.
    pub prefill_tokens: u64,
    /// Twice the pairs of tokens that these must attend to.
    pub prefill_pairs: u64,
    /// Tokens in the contexts of the requests that are decoding.
    pub decode_tokens: u64,
    /// Uncached prompt tokens of requests without a first token.
    pub unanswered_tokens: u64,
    /// Uncached prompt tokens of all requests in flight.
    pub in_flight_tokens: u64,
}

impl RouterLoad {
    /// Both loads together.
    #[must_use]
    pub const fn saturating_add(self, other: Self) -> Self {
        Self {
            requests: self.requests.saturating_add(other.requests),
            decoding: self.decoding.saturating_add(other.decoding),
            prefill_tokens: self.prefill_tokens.saturating_add(other.prefill_tokens),
            prefill_pairs: self.prefill_pairs.saturating_add(other.prefill_pairs),
            decode_tokens: self.decode_tokens.saturating_add(other.decode_tokens),
            unanswered_tokens: self.unanswered_tokens.saturating_add(other.unanswered_tokens),
            in_flight_tokens: self.in_flight_tokens.saturating_add(other.in_flight_tokens),
        }
    }

    /// This load without a part of it.
    #[must_use]
    pub const fn saturating_sub(self, part: Self) -> Self {
        Self {
            requests: self.requests.saturating_sub(part.requests),
            decoding: self.decoding.saturating_sub(part.decoding),
            prefill_tokens: self.prefill_tokens.saturating_sub(part.prefill_tokens),
            prefill_pairs: self.prefill_pairs.saturating_sub(part.prefill_pairs),
            decode_tokens: self.decode_tokens.saturating_sub(part.decode_tokens),
            unanswered_tokens: self.unanswered_tokens.saturating_sub(part.unanswered_tokens),
            in_flight_tokens: self.in_flight_tokens.saturating_sub(part.in_flight_tokens),
        }
    }
}

/// The part of a pod's load that other routers put on it. One cache line, which no decision reads.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(super) struct OthersLoad {
    requests: AtomicU32,
    decoding: AtomicU32,
    prefill_tokens: AtomicU64,
    prefill_pairs: AtomicU64,
    decode_tokens: AtomicU64,
    unanswered_tokens: AtomicU64,
    in_flight_tokens: AtomicU64,
    computed_tokens: AtomicU64,
    computed_pairs: AtomicU64,
}

impl OthersLoad {
    /// The pod has computed so much for them; the counts only grow.
    pub(super) fn computed(&self, tokens: u64, pairs: u64) {
        self.computed_tokens.fetch_add(tokens, Relaxed);
        self.computed_pairs.fetch_add(pairs, Relaxed);
    }

    pub(super) fn counts(&self) -> (u64, u64) {
        (self.computed_tokens.load(Relaxed), self.computed_pairs.load(Relaxed))
    }

    pub(super) fn read(&self) -> RouterLoad {
        RouterLoad {
            requests: self.requests.load(Relaxed),
            decoding: self.decoding.load(Relaxed),
            prefill_tokens: self.prefill_tokens.load(Relaxed),
            prefill_pairs: self.prefill_pairs.load(Relaxed),
            decode_tokens: self.decode_tokens.load(Relaxed),
            unanswered_tokens: self.unanswered_tokens.load(Relaxed),
            in_flight_tokens: self.in_flight_tokens.load(Relaxed),
        }
    }

    /// Replaces it, and returns what it was.
    pub(super) fn replace(&self, load: RouterLoad) -> RouterLoad {
        RouterLoad {
            requests: self.requests.swap(load.requests, Relaxed),
            decoding: self.decoding.swap(load.decoding, Relaxed),
            prefill_tokens: self.prefill_tokens.swap(load.prefill_tokens, Relaxed),
            prefill_pairs: self.prefill_pairs.swap(load.prefill_pairs, Relaxed),
            decode_tokens: self.decode_tokens.swap(load.decode_tokens, Relaxed),
            unanswered_tokens: self.unanswered_tokens.swap(load.unanswered_tokens, Relaxed),
            in_flight_tokens: self.in_flight_tokens.swap(load.in_flight_tokens, Relaxed),
        }
    }
}
