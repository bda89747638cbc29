//! Counts the allocations of a decision; off while anything is timed.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

/// The system's allocator, with a counter that can be switched on.
pub(crate) struct Counting;

static ON: AtomicBool = AtomicBool::new(false);
static CALLS: AtomicU64 = AtomicU64::new(0);

/// Starts to count at zero.
pub(crate) fn start() {
    CALLS.store(0, Relaxed);
    ON.store(true, Relaxed);
}

/// Allocations since the start.
pub(crate) fn stop() -> u64 {
    ON.store(false, Relaxed);
    CALLS.load(Relaxed)
}

fn count() {
    if ON.load(Relaxed) {
        CALLS.fetch_add(1, Relaxed);
    }
}

// SAFETY: every call goes to the system's allocator unchanged; counting touches no memory of it.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller's promise about `layout` is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        // SAFETY: as above.
        unsafe { System.realloc(pointer, layout, size) }
    }
}
