//! Requests that break engines: which request made which endpoints close the connection.
//!
//! One request that crashes whatever engine reads it ("query of death") must not be retried through
//! the whole fleet. A request that broke the connection to two endpoints is refused for a while,
//! and so is every request with the same bytes. If such a request succeeds after all, it was bad
//! luck, and it is forgotten.
//!
//! Also remembered, as far as there is room, is which requests succeeded lately: clients send the
//! same bytes again and again, and a request that one pod answers is not to blame if another pod
//! fails.
//!
//! Time is an argument.

use hyper::Method;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use wornpath_index::Moment;
use xxhash_rust::xxh3::Xxh3;

/// How long a request that broke a connection is remembered.
const REMEMBERED_FOR: Duration = Duration::from_secs(60);

/// The most requests that are remembered.
const MAX_REMEMBERED: usize = 1024;

/// A body up to this length is hashed as a whole; of a longer one as much at both ends.
const HASHED_ENDS: usize = 2048;

/// Samples between the ends of a longer body, and the bytes of each.
const SAMPLES: usize = 64;
const SAMPLE_BYTES: usize = 32;

/// The fingerprints of answered requests that are kept: a power of two.
const ANSWERED: usize = 4096;

/// The bits of such a fingerprint that hold the minute of the answer instead.
const MINUTE_BITS: u64 = 0xFF;

/// Tells requests apart by method, path and body. Long bodies are sampled, so two that differ only
/// between the samples are the same request here.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct RequestFingerprint(pub u64);

/// The requests that broke connections lately, and those that were answered. A request without a
/// failure costs its fingerprint, two loads and a store.
#[derive(Debug)]
pub struct PoisonRequests {
    /// Keys the fingerprints, so that a client cannot choose requests that collide.
    seed: u64,
    /// The number of `requests`.
    remembered: AtomicUsize,
    refused: AtomicU64,
    /// Each with the minute of its answer in its lowest bits.
    answered: Box<[AtomicU64]>,
    requests: Mutex<HashMap<RequestFingerprint, BrokenConnections>>,
}

/// What a request has broken.
#[derive(Debug)]
struct BrokenConnections {
    /// The endpoint of the first connection.
    first: String,
    /// Whether it broke a connection to another endpoint too.
    is_poison: bool,
    until: Moment,
}

impl PoisonRequests {
    /// Remembers nothing yet.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self {
            seed,
            remembered: AtomicUsize::new(0),
            refused: AtomicU64::new(0),
            answered: (0..ANSWERED).map(|_| AtomicU64::new(0)).collect(),
            requests: Mutex::default(),
        }
    }

    /// The fingerprint of a request.
    #[must_use]
    pub fn fingerprint(&self, method: &Method, path: &str, body: &[u8]) -> RequestFingerprint {
        let mut hash = Xxh3::with_seed(self.seed);
        hash.update(method.as_str().as_bytes());
        hash.update(path.as_bytes());
        hash.update(&body.len().to_le_bytes());
        let ends = body.len().min(HASHED_ENDS);
        hash.update(&body[..ends]);
        hash.update(&body[body.len() - ends..]);
        let between = body.get(ends..body.len() - ends).unwrap_or_default();
        let step = (between.len() / SAMPLES).max(SAMPLE_BYTES);
        for sample in between.chunks(step) {
            hash.update(&sample[..sample.len().min(SAMPLE_BYTES)]);
        }
        RequestFingerprint(hash.digest())
    }

    /// A request broke the connection to an endpoint.
    pub fn broke_connection(&self, request: RequestFingerprint, endpoint: &str, now: Moment) {
        let mut requests = self.lock();
        if requests.len() >= MAX_REMEMBERED {
            requests.retain(|_, broken| broken.until > now);
        }
        let until = now + REMEMBERED_FOR;
        let is_full = requests.len() >= MAX_REMEMBERED;
        match requests.entry(request) {
            Entry::Occupied(mut entry) if entry.get().until > now => {
                let broken = entry.get_mut();
                broken.is_poison |= broken.first != endpoint;
                broken.until = until;
            }
            Entry::Vacant(_) if is_full => {}
            entry => {
                let first = endpoint.to_owned();
                entry.insert_entry(BrokenConnections { first, is_poison: false, until });
            }
        }
        self.remembered.store(requests.len(), Relaxed);
    }

    /// How long the request is still refused, if it broke the connections to two endpoints.
    #[must_use]
    pub fn poisonous_for(&self, request: RequestFingerprint, now: Moment) -> Option<Duration> {
        if self.remembered.load(Relaxed) == 0 {
            return None;
        }
        let requests = self.lock();
        let broken = requests.get(&request).filter(|broken| broken.is_poison)?;
        Some(broken.until.since(now)).filter(|left| !left.is_zero())
    }

    /// The request, if it may be to blame for a failure: the same request has not succeeded within
    /// the last minute, as far as is known.
    #[must_use]
    pub fn blamed(&self, request: RequestFingerprint, now: Moment) -> Option<RequestFingerprint> {
        let kept = self.slot(request).load(Relaxed);
        let is_same = kept & !MINUTE_BITS == request.0 & !MINUTE_BITS;
        let answered_in = kept & MINUTE_BITS;
        let is_recent = minute(now).abs_diff(answered_in) % (MINUTE_BITS - 1) <= 1;
        (!is_same || !is_recent).then_some(request)
    }

    fn slot(&self, request: RequestFingerprint) -> &AtomicU64 {
        &self.answered[(request.0 >> 32) as usize % ANSWERED]
    }

    /// A client got the whole response to the request.
    pub fn succeeded(&self, request: RequestFingerprint, now: Moment) {
        let slot = self.slot(request);
        let kept = request.0 & !MINUTE_BITS | minute(now);
        if slot.load(Relaxed) != kept {
            slot.store(kept, Relaxed);
        }
        if self.remembered.load(Relaxed) > 0 {
            let mut requests = self.lock();
            requests.remove(&request);
            self.remembered.store(requests.len(), Relaxed);
        }
    }

    /// Counts a request that was refused because of what it broke before.
    pub fn count_refused(&self) {
        self.refused.fetch_add(1, Relaxed);
    }

    /// Requests that were refused.
    #[must_use]
    pub fn refused(&self) -> u64 {
        self.refused.load(Relaxed)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<RequestFingerprint, BrokenConnections>> {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The minute of a moment, modulo a few hours. It is never zero, as empty slots are.
fn minute(now: Moment) -> u64 {
    now.since_zero().as_secs() / 60 % MINUTE_BITS + 1
}

#[cfg(test)]
mod tests {
    use super::*;
    const ONE: RequestFingerprint = RequestFingerprint(1);

    #[test]
    fn a_request_is_poison_when_it_has_broken_two_endpoints_and_for_a_minute() {
        let poison = PoisonRequests::new(7);
        let at = Moment::from_secs;
        for _ in 0..3 {
            poison.broke_connection(ONE, "a", at(0));
            assert_eq!(poison.poisonous_for(ONE, at(0)), None, "one pod may be dead");
        }
        poison.broke_connection(ONE, "b", at(10));
        assert_eq!(poison.poisonous_for(ONE, at(30)), Some(Duration::from_secs(40)));
        assert_eq!(poison.poisonous_for(RequestFingerprint(2), at(30)), None);
        assert_eq!(poison.poisonous_for(ONE, at(70)), None);
        poison.broke_connection(ONE, "b", at(70));
        assert_eq!(poison.poisonous_for(ONE, at(70)), None, "it begins anew");
    }

    #[test]
    fn a_request_that_succeeds_is_forgotten() {
        let poison = PoisonRequests::new(7);
        poison.broke_connection(ONE, "a", Moment::ZERO);
        poison.broke_connection(ONE, "b", Moment::ZERO);
        poison.succeeded(ONE, Moment::ZERO);
        assert_eq!(poison.poisonous_for(ONE, Moment::ZERO), None);
    }

    #[test]
    fn a_request_that_succeeded_lately_is_not_blamed() {
        let poison = PoisonRequests::new(7);
        let at = |seconds: u64| Moment::from_secs(1_000_000 + seconds);
        for fingerprint in [0, 1 << 8, 1 << 32, 0x0123_4567_89AB_CDEF, u64::MAX] {
            let request = RequestFingerprint(fingerprint);
            assert_eq!(poison.blamed(request, at(0)), Some(request));
            poison.succeeded(request, at(0));
            assert_eq!(poison.blamed(request, at(59)), None);
            assert_eq!(poison.blamed(request, at(200)), Some(request));
            let other = RequestFingerprint(fingerprint ^ 1 << 40);
            assert_eq!(poison.blamed(other, at(0)), Some(other));
        }
    }

    #[test]
    fn the_number_of_remembered_requests_is_bounded() {
        let poison = PoisonRequests::new(7);
        for number in 0..10_000 {
            poison.broke_connection(RequestFingerprint(number), "a", Moment::ZERO);
        }
        assert_eq!(poison.lock().len(), MAX_REMEMBERED);
        poison.broke_connection(ONE, "b", Moment::ZERO);
        assert!(poison.poisonous_for(ONE, Moment::ZERO).is_some(), "the first are kept");
        let later = Moment::ZERO + REMEMBERED_FOR;
        poison.broke_connection(ONE, "b", later);
        assert_eq!(poison.lock().len(), 1, "and make room when they are old");
    }

    #[test]
    fn fingerprints_differ_by_path_length_both_ends_and_samples_of_the_body() {
        let poison = PoisonRequests::new(7);
        let of = |body: Vec<u8>| poison.fingerprint(&Method::POST, "/v1/completions", &body);
        for length in [0, 1, 100, HASHED_ENDS, HASHED_ENDS + 1, 2 * HASHED_ENDS + 7, 1 << 20] {
            let body = vec![b'x'; length];
            assert_eq!(of(body.clone()), of(body.clone()));
            assert_ne!(of(body.clone()), of([&body[..], b"x"].concat()), "{length}");
            let sampled = HASHED_ENDS + (length.saturating_sub(2 * HASHED_ENDS)) / SAMPLES * 9;
            for at in [0, length.saturating_sub(1), sampled] {
                let mut other = body.clone();
                if let Some(byte) = other.get_mut(at) {
                    *byte = b'y';
                    assert_ne!(of(body.clone()), of(other), "byte {at} of {length}");
                }
            }
        }
        let of_path = |path| poison.fingerprint(&Method::POST, path, b"{}");
        assert_ne!(of_path("/v1/completions"), of_path("/v1/chat/completions"));
        let other = PoisonRequests::new(8).fingerprint(&Method::POST, "/v1/completions", b"{}");
        assert_ne!(of_path("/v1/completions"), other);
    }
}
