//! The rounds: every index runs each step before any runs the next, in a rotating order.

use std::time::Duration;

use crate::adapters::{Crtc, KvIndex, Ours};
use crate::clock::Ticks;
use crate::contest::{Contestant, Expected, IndexRun, Input, Stage};
use crate::memory;
use crate::metric::Metric;
use crate::results::Results;
use crate::workload::{CHURNS, Workload};

/// Repetitions and lengths of the measurements.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Effort {
    pub(crate) rounds: usize,
    /// Cases per class of the exactness suite.
    pub(crate) cases: u64,
    /// Generations of a full cache.
    pub(crate) generations: usize,
    /// Passes over all queries per CPU measure and round.
    pub(crate) query_passes: usize,
    /// Passes over all queries per idle latency measure and round.
    pub(crate) latency_passes: usize,
    /// Span of the two-reader measure.
    pub(crate) reader_span: Duration,
}

impl Effort {
    pub(crate) const FULL: Self = Self {
        rounds: 11,
        cases: 400,
        generations: 500,
        query_passes: 4,
        latency_passes: 4,
        reader_span: Duration::from_millis(100),
    };
    pub(crate) const QUICK: Self = Self {
        rounds: 3,
        cases: 60,
        generations: 60,
        query_passes: 2,
        latency_passes: 2,
        reader_span: Duration::from_millis(50),
    };
}

/// All indexes, or the one with this name.
pub(crate) fn contestants<'w>(
    workload: &'w Workload,
    only: Option<&str>,
) -> Vec<Box<dyn Contestant + 'w>> {
    let all: Vec<Box<dyn Contestant + 'w>> = vec![
        Box::new(IndexRun::<KvIndex>::new(workload)),
        Box::new(IndexRun::<Crtc>::new(workload)),
        Box::new(IndexRun::<Ours>::new(workload)),
    ];
    all.into_iter().filter(|run| only.is_none_or(|name| is_column(run.name(), name))).collect()
}

/// Whether a name from the command line selects a column.
pub(crate) fn is_column(column: &str, name: &str) -> bool {
    let name = if name == "ours" { crate::results::OURS } else { name };
    column.eq_ignore_ascii_case(name)
}

/// Measures one size. Wrong answers go to `failures`.
pub(crate) fn measure(
    workload: &Workload,
    only: Option<&str>,
    effort: Effort,
    ticks: Ticks,
    failures: &mut Vec<String>,
) -> Results {
    let mut runs = contestants(workload, only);
    let names = runs.iter().map(|run| run.name()).collect();
    let mut results = Results::new(workload.size.name, names);
    let expected = Expected::of(workload);
    for round in 0..effort.rounds {
        let order: Vec<usize> = (0..runs.len()).map(|i| (i + round) % runs.len()).collect();
        let oracle = (round == 0).then_some(&expected);
        let mut verify = |run: &dyn Contestant, stage| {
            failures.extend(run.check(stage).err());
            failures.extend(oracle.and_then(|expected| run.compare(stage, expected).err()));
        };
        for &i in &order {
            runs[i].create();
            results.add(Metric::Store, i, runs[i].store());
            verify(&*runs[i], Stage::Built);
        }
        reads(&runs, &order, effort, ticks, &mut results);
        for &i in &order {
            runs[i].make_hole();
            runs[i].query(Input::Cumulative, 1);
            let nanos = runs[i].query(Input::Cumulative, effort.query_passes);
            results.add(Metric::QueryOneHole, i, nanos);
        }
        for &i in &order {
            results.add(Metric::Churn, i, runs[i].churn());
        }
        runs.iter_mut().for_each(|run| run.expect());
        for &i in &order {
            let (latency, rate) = runs[i].paced_churn(ticks);
            results.add(Metric::BusyP99, i, latency.p99);
            if rate < 475_000.0 {
                eprintln!("{}: the writer managed {rate:.0} blocks/s", runs[i].name());
            }
        }
        for &i in &order {
            runs[i].query(Input::Cumulative, 1);
            let nanos = runs[i].query(Input::Cumulative, effort.query_passes);
            results.add(Metric::QueryFull, i, nanos);
            runs[i].expire();
            verify(&*runs[i], Stage::Churned);
        }
        for &i in &order {
            let removal = runs[i].removal(ticks);
            results.add(Metric::RemovalCall, i, removal.call_us);
            results.add(Metric::RemovalInvisible, i, removal.invisible_us);
            results.add(Metric::StaleDuring, i, removal.stale_during);
            results.add(Metric::StaleAfter, i, removal.stale_after);
            results.add(Metric::SweepP99, i, removal.p99_ratio);
            verify(&*runs[i], Stage::Removed);
        }
        for run in &mut runs {
            run.end();
        }
    }
    for (i, run) in runs.iter_mut().enumerate() {
        measure_memory(&mut **run, workload, i, &mut results);
    }
    results
}

fn reads(
    runs: &[Box<dyn Contestant + '_>],
    order: &[usize],
    effort: Effort,
    ticks: Ticks,
    results: &mut Results,
) {
    for (metric, input) in [(Metric::Query, Input::Cumulative), (Metric::QueryLocal, Input::Local)]
    {
        for &i in order {
            // The first pass warms the CPU caches, which the others have evicted.
            runs[i].query(input, 1);
            results.add(metric, i, runs[i].query(input, effort.query_passes));
        }
    }
    for &i in order {
        let latency = runs[i].idle(effort.latency_passes, ticks);
        results.add(Metric::IdleP50, i, latency.p50);
        results.add(Metric::IdleP99, i, latency.p99);
    }
    for &i in order {
        results.add(Metric::TwoReaders, i, runs[i].two_readers(effort.reader_span));
    }
}

/// Measures the live bytes of one index, while nothing else is counted.
fn measure_memory(run: &mut dyn Contestant, workload: &Workload, i: usize, results: &mut Results) {
    memory::count_from_here();
    run.create();
    run.store();
    let built = memory::live_bytes() as f64 / workload.pairs_built as f64;
    results.add(Metric::BytesBuilt, i, built);
    for churn in 0..CHURNS {
        run.churn_untimed(churn);
    }
    run.housekeep();
    let pairs = workload.pairs_churned[CHURNS - 1] as f64;
    results.add(Metric::BytesChurned, i, memory::live_bytes() as f64 / pairs);
    run.remove_all();
    results.add(Metric::BytesLeft, i, memory::live_bytes() as f64 / 1e6);
    run.end();
    memory::stop_counting();
}
