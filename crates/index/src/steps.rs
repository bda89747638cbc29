//! Counts the buckets and entries that operations visit, so that tests can hold them to a budget: an
//! operation whose steps grow with the age of its table is a fault, and times on a busy machine do not
//! show it.
//!
//! Only builds with debug assertions count; in a release build all of this is nothing.

#[cfg(debug_assertions)]
use std::cell::Cell;

#[cfg(debug_assertions)]
thread_local! {
    /// How many more steps this thread may take.
    static BUDGET: Cell<u64> = const { Cell::new(u64::MAX) };
}

/// Visits one bucket or entry.
#[inline(always)]
pub(crate) fn step() {
    #[cfg(debug_assertions)]
    BUDGET.set(BUDGET.get().checked_sub(1).expect("the operation is within its budget of steps"));
}

/// Runs `work`, which may visit `budget` buckets and entries of tables on this thread.
///
/// # Panics
/// If it visits more, in builds with debug assertions; in others nothing is counted.
#[doc(hidden)]
pub fn within_steps<T>(budget: u64, work: impl FnOnce() -> T) -> T {
    #[cfg(debug_assertions)]
    let before = BUDGET.replace(budget);
    let done = work();
    #[cfg(debug_assertions)]
    BUDGET.set(before);
    #[cfg(not(debug_assertions))]
    let _ = budget;
    done
}
