//! Counts the buckets and entries that operations visit, so that tests can enforce a budget: an
//! operation whose steps grow with the age of its table is a bug, and timings on a busy machine do
//! not show it.
//!
//! Lookups count every block that they ask the table for.
//!
//! Only builds with debug assertions count; in a release build this module compiles to nothing.

#[cfg(debug_assertions)]
use std::cell::Cell;

#[cfg(debug_assertions)]
thread_local! {
    /// The steps that this thread may still take.
    static BUDGET: Cell<u64> = const { Cell::new(u64::MAX) };
}

/// Counts one visited bucket or entry.
#[inline(always)]
pub(crate) fn step() {
    #[cfg(debug_assertions)]
    BUDGET.set(BUDGET.get().checked_sub(1).expect("the operation is within its budget of steps"));
}

/// Runs `work` with a budget of `budget` visited buckets and entries of tables on this thread.
///
/// # Panics
/// If it visits more, in builds with debug assertions; other builds count nothing.
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

/// Runs `work`, and counts the buckets and entries that it visits: none in builds without debug
/// assertions.
#[doc(hidden)]
pub fn steps_of(work: impl FnOnce()) -> u64 {
    #[cfg(debug_assertions)]
    {
        let before = BUDGET.replace(u64::MAX);
        work();
        let steps = u64::MAX - BUDGET.get();
        BUDGET.set(before.saturating_sub(steps));
        steps
    }
    #[cfg(not(debug_assertions))]
    {
        work();
        0
    }
}
