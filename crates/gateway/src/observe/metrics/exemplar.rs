//! Exemplars: for each bucket of a histogram, the last traced request that was counted there.

use std::fmt;
use std::sync::{Mutex, PoisonError, TryLockError};

use crate::observe::buckets::BOUNDS;
use crate::observe::timestamp::Timestamp;

/// A traced request that was counted in a bucket.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Exemplar {
    /// Its trace id.
    pub(crate) trace: u128,
    pub(crate) seconds: f64,
    pub(crate) at: Timestamp,
}

/// One place per exported bucket.
pub(crate) type BucketExemplars = [Option<Exemplar>; BOUNDS.len() + 1];

/// The exemplars of a histogram; without memory of their own until a traced request is counted.
#[derive(Default)]
pub(crate) struct Exemplars(Mutex<Option<Box<BucketExemplars>>>);

impl Exemplars {
    /// Keeps an exemplar, unless another thread is at the same histogram: the next one will do.
    pub(crate) fn keep(&self, exemplar: Exemplar) {
        let mut kept = match self.0.try_lock() {
            Ok(kept) => kept,
            Err(TryLockError::Poisoned(kept)) => kept.into_inner(),
            Err(TryLockError::WouldBlock) => return,
        };
        let bucket = BOUNDS.partition_point(|bound| *bound < exemplar.seconds);
        kept.get_or_insert_default()[bucket] = Some(exemplar);
    }

    pub(crate) fn all(&self) -> Option<Box<BucketExemplars>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl fmt::Debug for Exemplars {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Exemplars")
    }
}
