//! Asking for cache lines ahead of their use: the only unsafe code of the index.
//!
//! An ordinary load would bring the line too. But a processor retires instructions in order, so a load
//! that misses holds up everything after it until the line is there, and what was to overlap with the
//! wait does not. `bench/README.md` has the figures.
#![allow(unsafe_code)]

/// Asks for the line on which `place` begins, and does not wait for it. Where the processor offers no
/// such thing, nothing happens.
#[inline(always)]
pub(crate) fn prefetch<T>(place: &T) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a prefetch reads nothing that the program can see and never faults, whatever the
        // address; and this is the address of a live reference.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(place).cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = place;
}

/// The same for a line that is going to be written: it is taken away from whoever wrote it last, so that the write
/// need not ask once more.
#[inline(always)]
pub(crate) fn prefetch_to_write<T>(place: &T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: as above. The intrinsic would be an ordinary prefetch unless built for newer processors; those that do
    // not know the instruction pass over it.
    unsafe {
        std::arch::asm!(
            "prefetchw [{}]",
            in(reg) std::ptr::from_ref(place),
            options(nostack, preserves_flags, readonly),
        );
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = place;
}
