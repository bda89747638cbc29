//! One index through workload TREE, measured step by step.
//!
//! The steps are object-safe, so that the harness can run one step of every index before the next:
//! measurements close in time are compared with each other.

use std::hint::black_box;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use crate::adapters::{Index, Naive, Reader};
use crate::clock::{CpuClock, Ticks, pin, stamp};
use crate::removal::{self, Removal};
use crate::stats::Latency;
use crate::workload::{CHECKED, QUERIES, Workload};

/// Blocks per second that the paced writer writes.
const WRITE_RATE: f64 = 500_000.0;
/// Events that the paced writer applies between two readings of the clock.
const WRITE_BURST: usize = 8;
/// Queries compared with the oracle, pod by pod.
const FINGERPRINTED: usize = 1024;
/// Samples kept while a writer runs.
const MOST_SAMPLES: usize = 4 << 20;

/// The hashes that a query passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Input {
    /// The fastest input the API takes: the chained hashes for ours, contents for the peers.
    Cumulative,
    /// Content hashes: an index computes the chain itself, if it needs one.
    Local,
}

/// Points at which the correct answers are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    Built,
    Churned,
    Removed,
}

/// What the oracle answers, as one hash per query, at each stage.
pub(crate) struct Expected([Vec<u64>; 3]);

impl Expected {
    /// Runs the oracle through all stages.
    pub(crate) fn of(workload: &Workload) -> Self {
        let mut run = IndexRun::<Naive>::new(workload);
        run.create();
        run.apply(0..workload.built);
        let built = run.fingerprints();
        run.apply(workload.built..workload.churned[1]);
        let churned = run.fingerprints();
        for pod in removal::ALONE.chain(removal::WATCHED) {
            run.remove_pod(pod);
        }
        Self([built, churned, run.fingerprints()])
    }
}

/// The steps of a contestant.
pub(crate) trait Contestant {
    fn name(&self) -> &'static str;
    /// Makes an empty index.
    fn create(&mut self);
    /// Drops the index.
    fn end(&mut self);
    /// Builds; CPU nanoseconds per block stored.
    fn store(&mut self) -> f64;
    /// Runs the first churn; CPU nanoseconds per block stored or removed.
    fn churn(&mut self) -> f64;
    /// Applies churn number `round`, untimed.
    fn churn_untimed(&mut self, round: usize);
    /// CPU nanoseconds per query.
    fn query(&self, input: Input, passes: usize) -> f64;
    /// Makes a hole on one pod, in a chain that no query asks for.
    fn make_hole(&mut self);
    /// Expects every query on a pod.
    fn expect(&mut self);
    /// Drops all expectations.
    fn expire(&mut self);
    /// Latency with nothing else running.
    fn idle(&self, passes: usize, ticks: Ticks) -> Latency;
    /// Runs the second churn at the fixed rate while a reader reads: its latency, and blocks per
    /// second that the writer managed.
    fn paced_churn(&mut self, ticks: Ticks) -> (Latency, f64);
    /// Queries per microsecond of two threads together.
    fn two_readers(&self, span: Duration) -> f64;
    /// Removes pods, alone and with a reader.
    fn removal(&mut self, ticks: Ticks) -> Removal;
    /// Removes every pod and finishes all sweeping and housekeeping.
    fn remove_all(&mut self);
    /// Runs housekeeping.
    fn housekeep(&mut self);
    /// Compares the answers with the check values.
    fn check(&self, stage: Stage) -> Result<(), String>;
    /// Compares the answers with the oracle.
    fn compare(&self, stage: Stage, expected: &Expected) -> Result<(), String>;
}

/// An index with the workload in its own format.
pub(crate) struct IndexRun<'w, I: Index> {
    workload: &'w Workload,
    log: I::Log,
    queries: I::Queries,
    index: Option<(I::Shared, I::Writer)>,
}

impl<'w, I: Index> IndexRun<'w, I> {
    pub(crate) fn new(workload: &'w Workload) -> Self {
        let log = I::log(&workload.log);
        let queries = I::queries(&workload.queries);
        Self { workload, log, queries, index: None }
    }

    fn shared(&self) -> &I::Shared {
        &self.index.as_ref().expect("every step comes after `create`").0
    }

    fn apply(&mut self, events: std::ops::Range<usize>) -> Duration {
        let (shared, writer) = self.index.as_mut().expect("every step comes after `create`");
        let clock = I::writer_clock(writer);
        let start = clock.now();
        I::apply(shared, writer, &self.log, events);
        clock.now() - start
    }

    fn timed(&mut self, events: std::ops::Range<usize>) -> f64 {
        let blocks = self.workload.log.blocks_in(events.clone());
        self.apply(events).as_nanos() as f64 / blocks as f64
    }

    fn remove_pod(&mut self, pod: u32) {
        let (shared, writer) = self.index.as_mut().expect("every step comes after `create`");
        I::remove_pod(shared, writer, pod);
        while I::sweep(shared, writer) {}
    }

    fn fingerprints(&self) -> Vec<u64> {
        let mut reader = I::reader(self.shared());
        let mut depths = vec![0; self.workload.size.pods];
        let mut hash = |query| {
            reader.lookup(&self.queries, query);
            reader.depths(&mut depths);
            depths.iter().fold(0_u64, |hash, depth| {
                (hash ^ u64::from(*depth)).wrapping_mul(0x0100_0000_01B3).rotate_left(17)
            })
        };
        (0..FINGERPRINTED).map(&mut hash).collect()
    }
}

impl<I: Index> Contestant for IndexRun<'_, I> {
    fn name(&self) -> &'static str {
        I::NAME
    }

    fn create(&mut self) {
        self.index = Some(I::create(self.workload.size.pods));
    }

    fn end(&mut self) {
        self.index = None;
    }

    fn store(&mut self) -> f64 {
        self.timed(0..self.workload.built)
    }

    fn churn(&mut self) -> f64 {
        self.timed(self.workload.built..self.workload.churned[0])
    }

    fn churn_untimed(&mut self, round: usize) {
        let from =
            round.checked_sub(1).map_or(self.workload.built, |last| self.workload.churned[last]);
        self.apply(from..self.workload.churned[round]);
    }

    fn query(&self, input: Input, passes: usize) -> f64 {
        let mut reader = I::reader(self.shared());
        let start = CpuClock::CALLER.now();
        for _ in 0..passes {
            for query in 0..QUERIES {
                match input {
                    Input::Cumulative => reader.lookup(&self.queries, query),
                    Input::Local => reader.lookup_local(&self.queries, query),
                }
                black_box(&mut reader);
            }
        }
        (CpuClock::CALLER.now() - start).as_nanos() as f64 / (passes * QUERIES) as f64
    }

    fn make_hole(&mut self) {
        self.apply(self.workload.hole.clone());
    }

    fn expect(&mut self) {
        let (_, writer) = self.index.as_mut().expect("every step comes after `create`");
        for query in 0..QUERIES {
            I::expect(writer, &self.queries, query, query % self.workload.size.pods);
        }
    }

    fn expire(&mut self) {
        let (_, writer) = self.index.as_mut().expect("every step comes after `create`");
        I::expire(writer);
    }

    fn idle(&self, passes: usize, ticks: Ticks) -> Latency {
        let mut reader = I::reader(self.shared());
        let mut samples = Vec::with_capacity(passes * QUERIES);
        let mut last = stamp();
        for query in (0..passes).flat_map(|_| 0..QUERIES) {
            reader.lookup(&self.queries, query);
            black_box(&mut reader);
            let now = stamp();
            samples.push((now - last) as u32);
            last = now;
        }
        Latency::of(&mut samples, ticks)
    }

    fn paced_churn(&mut self, ticks: Ticks) -> (Latency, f64) {
        let events = self.workload.churned[0]..self.workload.churned[1];
        let blocks = self.workload.log.blocks_in(events.clone());
        let (shared, writer) = self.index.as_mut().expect("every step comes after `create`");
        let log = &self.log;
        let source = &self.workload.log;
        let mut samples = Vec::with_capacity(MOST_SAMPLES);
        let ready = Barrier::new(2);
        let done = AtomicBool::new(false);
        let span = std::thread::scope(|scope| {
            let shared = &*shared;
            let ready = &ready;
            let done = &done;
            let writing = scope.spawn(move || {
                pin(1);
                ready.wait();
                let start = Instant::now();
                let mut written = 0;
                for from in events.clone().step_by(WRITE_BURST) {
                    let burst = from..events.end.min(from + WRITE_BURST);
                    written += source.blocks_in(burst.clone());
                    I::apply(shared, writer, log, burst);
                    let due = Duration::from_secs_f64(written as f64 / WRITE_RATE);
                    std::thread::sleep(due.saturating_sub(start.elapsed()));
                }
                done.store(true, Relaxed);
                start.elapsed()
            });
            let mut reader = I::reader(shared);
            ready.wait();
            let mut query = 0;
            let mut last = stamp();
            while !done.load(Relaxed) {
                reader.lookup(&self.queries, query);
                black_box(&mut reader);
                let now = stamp();
                if samples.len() < MOST_SAMPLES {
                    samples.push((now - last) as u32);
                }
                last = now;
                query = (query + 1) % QUERIES;
            }
            writing.join().expect("the writer panics only when the index does")
        });
        (Latency::of(&mut samples, ticks), blocks as f64 / span.as_secs_f64())
    }

    fn two_readers(&self, span: Duration) -> f64 {
        let shared = self.shared();
        let queries = &self.queries;
        let ready = Barrier::new(2);
        let done = AtomicBool::new(false);
        let total = AtomicU64::new(0);
        let read = |core: usize, lead: bool| {
            pin(core);
            let mut reader = I::reader(shared);
            ready.wait();
            let start = Instant::now();
            let mut query = core * QUERIES / 2;
            let mut count = 0;
            while !done.load(Relaxed) {
                for _ in 0..32 {
                    reader.lookup(queries, query);
                    black_box(&mut reader);
                    query = (query + 1) % QUERIES;
                }
                count += 32;
                if lead && start.elapsed() >= span {
                    done.store(true, Relaxed);
                }
            }
            total.fetch_add(count, Relaxed);
            start.elapsed()
        };
        let elapsed = std::thread::scope(|scope| {
            scope.spawn(|| read(1, false));
            read(0, true)
        });
        total.load(Relaxed) as f64 / elapsed.as_micros() as f64
    }

    fn removal(&mut self, ticks: Ticks) -> Removal {
        let (shared, writer) = self.index.as_mut().expect("every step comes after `create`");
        removal::measure::<I>(shared, writer, &self.queries, ticks)
    }

    fn remove_all(&mut self) {
        for pod in 0..self.workload.size.pods as u32 {
            self.remove_pod(pod);
        }
        self.housekeep();
    }

    fn housekeep(&mut self) {
        let (_, writer) = self.index.as_mut().expect("every step comes after `create`");
        I::housekeep(writer);
    }

    fn check(&self, stage: Stage) -> Result<(), String> {
        let mut reader = I::reader(self.shared());
        let mut depths = vec![0; self.workload.size.pods];
        let mut sum = 0_u64;
        let mut pods = 0_usize;
        for query in 0..CHECKED {
            reader.lookup(&self.queries, query);
            reader.depths(&mut depths);
            sum += depths.iter().map(|depth| u64::from(*depth)).sum::<u64>();
            pods += depths.iter().filter(|depth| **depth > 0).count();
        }
        let check = self.workload.size.check;
        let (want, want_pods) = match stage {
            Stage::Built => (check.depths_built, Some(check.mean_pods_tenths)),
            Stage::Churned => (check.depths_churned, None),
            Stage::Removed => (check.depths_removed, None),
        };
        let tenths = (pods as f64 / CHECKED as f64 * 10.0).round() as u64;
        let context = format!("{} {} {stage:?}", self.workload.size.name, I::NAME);
        if sum != want {
            return Err(format!("{context}: sum of depths is {sum}, must be {want}"));
        }
        match want_pods {
            Some(want) if want != tenths => {
                Err(format!("{context}: mean pods in tenths is {tenths}, must be {want}"))
            }
            _ => Ok(()),
        }
    }

    fn compare(&self, stage: Stage, expected: &Expected) -> Result<(), String> {
        let ours = self.fingerprints();
        let wrong = ours.iter().zip(&expected.0[stage as usize]).filter(|(a, b)| a != b).count();
        match wrong {
            0 => Ok(()),
            _ => Err(format!(
                "{} {} {stage:?}: {wrong} of {FINGERPRINTED} answers differ from the naive scan",
                self.workload.size.name,
                I::NAME
            )),
        }
    }
}
