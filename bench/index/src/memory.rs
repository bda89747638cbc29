//! Live bytes: what the process has allocated and not freed, by difference.
//!
//! Counting is off while anything is timed: a shared counter would cost the peer that allocates
//! per query more than the others. Memory is measured in a phase of its own, one adapter at a time.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering::Relaxed};

/// The system's allocator, with a counter that can be switched on.
pub(crate) struct Counting;

static ON: AtomicBool = AtomicBool::new(false);
static LIVE: AtomicI64 = AtomicI64::new(0);

/// Starts to count. What was allocated before counts as zero, so only differences mean something.
pub(crate) fn count_from_here() {
    LIVE.store(0, Relaxed);
    ON.store(true, Relaxed);
}

/// Stops counting.
pub(crate) fn stop_counting() {
    ON.store(false, Relaxed);
}

/// Bytes allocated less bytes freed since counting started.
pub(crate) fn live_bytes() -> i64 {
    LIVE.load(Relaxed)
}

fn add(bytes: i64) {
    if ON.load(Relaxed) {
        LIVE.fetch_add(bytes, Relaxed);
    }
}

// SAFETY: every call goes to the system's allocator unchanged; counting touches no memory of it.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        add(layout.size() as i64);
        // SAFETY: the caller's promise about `layout` is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        add(layout.size() as i64);
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        add(-(layout.size() as i64));
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        add(size as i64 - layout.size() as i64);
        // SAFETY: as above.
        unsafe { System.realloc(pointer, layout, size) }
    }
}
