//! What a pod's cache must hold for its requests, and for those that wait for their prefixes.
//!
//! A request in flight needs its whole context. When it has finished, the part that it shares with
//! a request that is still queued for its pod, or in flight, is needed on; the rest is not. The
//! requests of a pod are sorted by prefix, so that part is what the nearest of them share with it.
//! As long as all of this does not fit, no further request is sent: the engine would evict a prefix
//! before the requests that wait for it.
//!
//! Not counted: what engines keep beyond that, and requests of others.

use super::range_set::RangeSet;
use std::collections::BTreeSet;

/// The tokens that a pod's cache must hold.
#[derive(Clone, Debug, Default)]
pub(super) struct Residency {
    /// Positions of requests in flight.
    in_flight: BTreeSet<usize>,
    tokens: usize,
}

impl Residency {
    /// Tokens that the cache must hold.
    pub(super) const fn tokens(&self) -> usize {
        self.tokens
    }

    pub(super) const fn set(&mut self, tokens: usize) {
        self.tokens = tokens;
    }

    /// Positions of requests in flight, ascending.
    pub(super) fn in_flight(&self) -> impl Iterator<Item = usize> + '_ {
        self.in_flight.iter().copied()
    }

    /// A request is sent, and `cached` of its tokens are held for others already.
    pub(super) fn sent(&mut self, position: usize, context: usize, cached: usize) {
        self.in_flight.insert(position);
        self.tokens += context.saturating_sub(cached);
    }

    /// The nearest requests before and after a position that are in flight or `queued`.
    pub(super) fn nearest(&self, queued: &RangeSet, position: usize) -> [Option<usize>; 2] {
        let before = self.in_flight.range(..position).next_back().copied();
        let behind = self.in_flight.range(position + 1..).next().copied();
        let [queued_before, queued_behind] = queued.nearest(position);
        [before.max(queued_before), behind.into_iter().chain(queued_behind).min()]
    }

    /// A request has left the pod, and `tokens` of its context are not needed on.
    pub(super) fn left(&mut self, position: usize, tokens: usize) {
        self.in_flight.remove(&position);
        self.tokens = self.tokens.saturating_sub(tokens);
    }
}
