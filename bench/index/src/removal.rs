//! Removal of a pod: the time of the call, stale answers, and the latency of queries meanwhile.
//!
//! A reader notes the phase of the removal before every query. So a query that is counted as
//! "started after the call returned" certainly did, independent of clocks.

use std::hint::black_box;
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

use crate::adapters::{Index, Reader};
use crate::clock::{Ticks, pin, stamp};
use crate::stats::Latency;
use crate::workload::QUERIES;

/// Pods removed with nothing else running.
pub(crate) const ALONE: RangeInclusive<u32> = 0..=3;
/// Pods removed while a reader reads.
pub(crate) const WATCHED: RangeInclusive<u32> = 4..=11;

/// The cost of removal.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Removal {
    /// Microseconds that a call takes, alone: the mean of four.
    pub(crate) call_us: f64,
    /// Microseconds from the start of a call to the end of the last query that answered the pod,
    /// with a reader: the mean of eight.
    pub(crate) invisible_us: f64,
    /// Of the queries started while a call ran, how many answered the pod, in percent.
    pub(crate) stale_during: f64,
    /// Of the queries started after a call had returned, how many answered the pod, in percent.
    pub(crate) stale_after: f64,
    /// p99 of the queries while pods were removed and swept, relative to the p99 right before.
    pub(crate) p99_ratio: f64,
}

/// Queries of the reader before a pod is removed, so that it is certainly running by then.
const WARM_UP: usize = 1024;

const STARTING: u8 = 0;
const READING: u8 = 1;
const CALLED: u8 = 2;
const RETURNED: u8 = 3;
const SWEPT: u8 = 4;
const STOP: u8 = 5;

/// What the reader observed while one pod was removed.
#[derive(Default)]
struct Watch {
    during: StaleCount,
    after: StaleCount,
    last_seen: u64,
    samples: Vec<u32>,
}

/// Queries that still answered the pod, and all queries.
#[derive(Clone, Copy, Default)]
struct StaleCount {
    stale: u64,
    all: u64,
}

impl StaleCount {
    fn add(&mut self, other: Self) {
        self.stale += other.stale;
        self.all += other.all;
    }

    fn percent(self) -> f64 {
        100.0 * self.stale as f64 / (self.all as f64).max(1.0)
    }
}

/// Removes twelve pods and finishes their sweeps.
pub(crate) fn measure<I: Index>(
    shared: &I::Shared,
    writer: &mut I::Writer,
    queries: &I::Queries,
    ticks: Ticks,
) -> Removal {
    let mut call = Duration::ZERO;
    for pod in ALONE {
        let start = Instant::now();
        I::remove_pod(shared, writer, pod);
        call += start.elapsed();
        while I::sweep(shared, writer) {}
    }
    let mut idle = idle_samples::<I>(shared, queries);
    let mut seen_ticks = 0;
    let mut busy = Vec::new();
    let mut during = StaleCount::default();
    let mut after = StaleCount::default();
    for pod in WATCHED {
        let (called, watch) = remove_watched::<I>(shared, writer, queries, pod);
        seen_ticks += watch.last_seen.saturating_sub(called);
        busy.extend(watch.samples);
        during.add(watch.during);
        after.add(watch.after);
    }
    Removal {
        call_us: call.as_nanos() as f64 / 1000.0 / ALONE.count() as f64,
        invisible_us: seen_ticks as f64 * ticks.nanos / 1000.0 / WATCHED.count() as f64,
        stale_during: during.percent(),
        stale_after: after.percent(),
        p99_ratio: Latency::of(&mut busy, ticks).p99 / Latency::of(&mut idle, ticks).p99,
    }
}

fn idle_samples<I: Index>(shared: &I::Shared, queries: &I::Queries) -> Vec<u32> {
    let mut reader = I::reader(shared);
    let mut samples = Vec::with_capacity(2 * QUERIES);
    let mut last = stamp();
    for query in (0..QUERIES).chain(0..QUERIES) {
        reader.lookup(queries, query);
        // The watching reader checks for its pod; this one does the same work.
        black_box(reader.answers(*WATCHED.start()));
        let now = stamp();
        samples.push((now - last) as u32);
        last = now;
    }
    samples
}

/// Removes one pod on another core while this thread reads. Returns the stamp of the call and the
/// observations.
fn remove_watched<I: Index>(
    shared: &I::Shared,
    writer: &mut I::Writer,
    queries: &I::Queries,
    pod: u32,
) -> (u64, Watch) {
    let phase = AtomicU8::new(STARTING);
    std::thread::scope(|scope| {
        let phase = &phase;
        let removing = scope.spawn(move || {
            pin(1);
            while phase.load(Ordering::SeqCst) == STARTING {
                std::hint::spin_loop();
            }
            let called = stamp();
            phase.store(CALLED, Ordering::SeqCst);
            I::remove_pod(shared, writer, pod);
            phase.store(RETURNED, Ordering::SeqCst);
            while I::sweep(shared, writer) {}
            phase.store(SWEPT, Ordering::SeqCst);
            std::thread::sleep(Duration::from_millis(2));
            phase.store(STOP, Ordering::SeqCst);
            called
        });
        let watch = watch::<I>(shared, queries, pod, phase);
        (removing.join().expect("the remover panics only when the index does"), watch)
    })
}

fn watch<I: Index>(shared: &I::Shared, queries: &I::Queries, pod: u32, phase: &AtomicU8) -> Watch {
    let mut reader = I::reader(shared);
    let mut watch = Watch { samples: Vec::with_capacity(1 << 16), ..Watch::default() };
    let mut reads = 0;
    let mut last = stamp();
    loop {
        if reads == WARM_UP {
            phase.store(READING, Ordering::SeqCst);
        }
        let started_in = phase.load(Ordering::SeqCst);
        if started_in == STOP {
            return watch;
        }
        reader.lookup(queries, reads % QUERIES);
        let answered = reader.answers(pod);
        let now = stamp();
        if started_in == CALLED || started_in == RETURNED {
            watch.samples.push((now - last) as u32);
        }
        last = now;
        reads += 1;
        let counts = match started_in {
            STARTING | READING => continue,
            CALLED => &mut watch.during,
            _ => &mut watch.after,
        };
        counts.stale += u64::from(answered);
        counts.all += 1;
        if answered {
            watch.last_seen = now;
        }
    }
}
