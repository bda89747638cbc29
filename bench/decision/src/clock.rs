//! CPU time of this thread, which a neighbour on the machine disturbs only through the caches.

use std::time::Duration;

/// CPU time that the calling thread has used.
pub(crate) fn cpu() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is valid for writing the result.
    let error = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    assert_eq!(error, 0, "the kernel knows the CPU clocks of threads");
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32)
}

/// The cost of reading the clock, which is part of every difference, in microseconds: a median.
pub(crate) fn overhead() -> f64 {
    let mut all: Vec<_> = (0..10_001)
        .map(|_| {
            let first = cpu();
            (cpu() - first).as_secs_f64() * 1e6
        })
        .collect();
    all.sort_by(f64::total_cmp);
    all[all.len() / 2]
}

/// Binds the thread to the first core. A refusal leaves placement to the kernel.
pub(crate) fn pin() {
    // SAFETY: a zeroed set is the empty set, and both calls get a set of the size they are told.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(0, &mut set);
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set);
    }
}
