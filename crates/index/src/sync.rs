//! The atomics and locks that the index runs on, chosen in this module only.
//!
//! Ordinary builds use the standard library. Under `--cfg loom` the same code runs in a checker
//! that explores every interleaving, under `--cfg shuttle` in one that explores random ones from a
//! seed.

#[cfg(not(any(loom, shuttle)))]
pub(crate) use std::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicU32, AtomicU64, Ordering},
};

#[cfg(loom)]
pub(crate) use loom::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicU32, AtomicU64, Ordering},
};

#[cfg(shuttle)]
pub(crate) use shuttle::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicU32, AtomicU64, Ordering},
};

use std::sync::PoisonError;

/// Locks a mutex and ignores poisoning: every guarded state is valid between statements that can
/// panic, and one malformed event must not stop the router.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Waits briefly for a writer on another core to finish a few stores.
pub(crate) fn spin() {
    #[cfg(not(any(loom, shuttle)))]
    std::hint::spin_loop();
    #[cfg(loom)]
    loom::thread::yield_now();
    #[cfg(shuttle)]
    shuttle::thread::yield_now();
}

/// Waits for the writer that holds a shard: it may be descheduled, so this thread yields its core.
pub(crate) fn yield_now() {
    #[cfg(not(any(loom, shuttle)))]
    std::thread::yield_now();
    #[cfg(any(loom, shuttle))]
    spin();
}
