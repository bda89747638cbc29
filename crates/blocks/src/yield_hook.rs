//! What a thread does between the parts of work that takes long: nothing, unless it was told.
//!
//! A fair scheduler lets a thread that was kept waiting catch up, for milliseconds and however low its priority is,
//! before another that is woken meanwhile. A thread that is to make way gives up what it is owed by yielding now and
//! then, and the work says when.

use std::cell::Cell;

thread_local!(static PAUSE: Cell<fn()> = const { Cell::new(|| ()) });

/// From now on this thread calls `yield_hook` before every piece of a text that it tokenizes: about every tenth of a
/// millisecond.
pub fn pause_with(pause: fn()) {
    PAUSE.set(pause);
}

/// A part of long work is done.
pub(crate) fn pause() {
    PAUSE.get()();
}
