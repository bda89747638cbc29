//! The one place that says which atomics and locks the index runs on.
//!
//! Ordinary builds use the standard library. Under `--cfg loom` the same code runs in a checker that
//! tries every interleaving, under `--cfg shuttle` in one that tries random ones from a seed.

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

/// Locks, also after a panic elsewhere: every guarded state is valid between statements that can
/// panic, and a router that stops routing because one event was bad helps nobody.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Lets the writer that is in the way finish.
pub(crate) fn pause() {
    #[cfg(not(any(loom, shuttle)))]
    std::hint::spin_loop();
    #[cfg(loom)]
    loom::thread::yield_now();
    #[cfg(shuttle)]
    shuttle::thread::yield_now();
}

/// Lets the writer whose turn it is finish: it may have been put to sleep, so the processor is given up.
pub(crate) fn stand_aside() {
    #[cfg(not(any(loom, shuttle)))]
    std::thread::yield_now();
    #[cfg(any(loom, shuttle))]
    pause();
}
