//! Clocks: CPU time of a thread, and a time stamp cheap enough to take before every query.
//!
//! CPU time is what a thread used, so a neighbour on the machine disturbs it only through the
//! caches. Latency needs the wall: the time stamp counter costs about ten nanoseconds, and one
//! stamp serves as the end of a query and the start of the next.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// The CPU clock of one thread.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CpuClock(libc::clockid_t);

impl CpuClock {
    /// The clock of the calling thread.
    pub(crate) const CALLER: Self = Self(libc::CLOCK_THREAD_CPUTIME_ID);

    /// The clock of another thread, which must not have been joined yet.
    pub(crate) fn of(thread: libc::pthread_t) -> Self {
        let mut clock = 0;
        // SAFETY: the thread has not been joined, so its id is valid; `clock` is a valid pointer
        // target.
        let error = unsafe { libc::pthread_getcpuclockid(thread, &raw mut clock) };
        assert_eq!(error, 0, "a thread that runs has a CPU clock");
        Self(clock)
    }

    /// CPU time used so far.
    pub(crate) fn now(self) -> Duration {
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: `time` is valid for writing the result.
        let error = unsafe { libc::clock_gettime(self.0, &raw mut time) };
        assert_eq!(error, 0, "the kernel knows the CPU clocks of threads");
        Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32)
    }
}

/// Binds the calling thread to one core, if there are two; else leaves it alone.
pub(crate) fn pin(core: usize) {
    // Asked once, before the first thread is bound: a bound thread and its children see one core.
    static CORES: OnceLock<usize> = OnceLock::new();
    if *CORES.get_or_init(|| std::thread::available_parallelism().map_or(1, usize::from)) < 2 {
        return;
    }
    // SAFETY: a zeroed set is the empty set, and both calls get a set of the size they are told.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(core, &mut set);
        // A refusal (a container with other cores) leaves placement to the kernel.
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set);
    }
}

/// A time stamp, in ticks.
#[inline(always)]
pub(crate) fn stamp() -> u64 {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every x86-64 processor has the instructions; they touch no memory.
    unsafe {
        // The fence keeps a query's loads from being counted for the next query.
        std::arch::x86_64::_mm_lfence();
        std::arch::x86_64::_rdtsc()
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        static START: OnceLock<Instant> = OnceLock::new();
        START.get_or_init(Instant::now).elapsed().as_nanos() as u64
    }
}

/// How ticks become nanoseconds, and what a stamp costs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ticks {
    /// Nanoseconds per tick.
    pub(crate) nanos: f64,
    /// Nanoseconds that taking one stamp adds to every sample.
    pub(crate) overhead: f64,
}

impl Ticks {
    /// Measures both, in about 30 ms.
    pub(crate) fn calibrate() -> Self {
        let wall = Instant::now();
        let first = stamp();
        while wall.elapsed() < Duration::from_millis(20) {}
        let nanos = wall.elapsed().as_nanos() as f64 / (stamp() - first) as f64;
        let first = stamp();
        let count = 100_000;
        for _ in 1..count {
            std::hint::black_box(stamp());
        }
        let overhead = (stamp() - first) as f64 * nanos / f64::from(count);
        Self { nanos, overhead }
    }
}
