//! Prefetches cache lines: the only unsafe code of the index.
//!
//! An ordinary load would fetch the line too. But a processor retires instructions in order, so a
//! load that misses blocks all later instructions until the line arrives, and the work meant to
//! overlap with the miss does not. `bench/README.md` has the figures.
#![allow(unsafe_code)]

/// Prefetches the line on which `target` begins, without waiting for it. Does nothing on processors
/// other than x86-64.
#[inline(always)]
pub(crate) fn prefetch<T>(target: &T) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a prefetch has no effect that the program can observe and never faults, for any
        // address; and this is the address of a live reference.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(target).cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = target;
}

/// The same for a line that will be written: it takes the line from the core that wrote it last, so
/// that the write needs no second request.
#[inline(always)]
pub(crate) fn prefetch_to_write<T>(target: &T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: as above. The intrinsic would be an ordinary prefetch unless built for newer
    // processors; processors that do not know the instruction ignore it.
    unsafe {
        std::arch::asm!(
            "prefetchw [{}]",
            in(reg) std::ptr::from_ref(target),
            options(nostack, preserves_flags, readonly),
        );
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = target;
}
