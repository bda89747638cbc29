//! The rounds: every index takes each step before any takes the next, in an order that rotates.

use std::time::Duration;

use crate::adapters::{Crtc, KvIndex, Ours};
use crate::clock::Ticks;
use crate::contest::{Contestant, Expected, Input, Life, Stage};
use crate::memory;
use crate::metric::Metric;
use crate::results::Results;
use crate::workload::{CHURNS, Workload};

/// How long everything runs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Effort {
    pub(crate) rounds: usize,
    /// Stories per class of the exactness suite.
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

/// All indexes that take part, or the one that is named.
pub(crate) fn contestants<'w>(
    workload: &'w Workload,
    only: Option<&str>,
) -> Vec<Box<dyn Contestant + 'w>> {
    let all: Vec<Box<dyn Contestant + 'w>> = vec![
        Box::new(Life::<KvIndex>::new(workload)),
        Box::new(Life::<Crtc>::new(workload)),
        Box::new(Life::<Ours>::new(workload)),
    ];
    all.into_iter().filter(|life| only.is_none_or(|name| matches(life.name(), name))).collect()
}

/// Whether a column is meant by a name given on the command line.
fn matches(column: &str, name: &str) -> bool {
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
    let mut lives = contestants(workload, only);
    let names = lives.iter().map(|life| life.name()).collect();
    let mut results = Results::new(workload.size.name, names);
    let expected = Expected::of(workload);
    for round in 0..effort.rounds {
        let order: Vec<usize> = (0..lives.len()).map(|i| (i + round) % lives.len()).collect();
        let oracle = (round == 0).then_some(&expected);
        let mut verify = |life: &dyn Contestant, stage| {
            failures.extend(life.check(stage).err());
            failures.extend(oracle.and_then(|expected| life.compare(stage, expected).err()));
        };
        for &i in &order {
            lives[i].create();
            results.add(Metric::Store, i, lives[i].store());
            verify(&*lives[i], Stage::Built);
        }
        reads(&lives, &order, effort, ticks, &mut results);
        for &i in &order {
            results.add(Metric::Churn, i, lives[i].churn());
        }
        for &i in &order {
            let (latency, rate) = lives[i].paced_churn(ticks);
            results.add(Metric::BusyP99, i, latency.p99);
            if rate < 475_000.0 {
                eprintln!("{}: the writer managed {rate:.0} blocks/s", lives[i].name());
            }
            verify(&*lives[i], Stage::Churned);
        }
        for &i in &order {
            let removal = lives[i].removal(ticks);
            results.add(Metric::RemovalCall, i, removal.call_us);
            results.add(Metric::RemovalInvisible, i, removal.invisible_us);
            results.add(Metric::StaleDuring, i, removal.stale_during);
            results.add(Metric::StaleAfter, i, removal.stale_after);
            results.add(Metric::SweepP99, i, removal.p99_ratio);
            verify(&*lives[i], Stage::Removed);
        }
        for life in &mut lives {
            life.end();
        }
    }
    for (i, life) in lives.iter_mut().enumerate() {
        weigh(&mut **life, workload, i, &mut results);
    }
    results
}

fn reads(
    lives: &[Box<dyn Contestant + '_>],
    order: &[usize],
    effort: Effort,
    ticks: Ticks,
    results: &mut Results,
) {
    for (metric, input) in [(Metric::Query, Input::Cumulative), (Metric::QueryLocal, Input::Local)]
    {
        for &i in order {
            // The first pass brings back into the caches what the others have pushed out.
            lives[i].query(input, 1);
            results.add(metric, i, lives[i].query(input, effort.query_passes));
        }
    }
    for &i in order {
        let latency = lives[i].idle(effort.latency_passes, ticks);
        results.add(Metric::IdleP50, i, latency.p50);
        results.add(Metric::IdleP99, i, latency.p99);
    }
    for &i in order {
        results.add(Metric::TwoReaders, i, lives[i].two_readers(effort.reader_span));
    }
}

/// Live bytes of one index, with nothing else being counted.
fn weigh(life: &mut dyn Contestant, workload: &Workload, i: usize, results: &mut Results) {
    memory::count_from_here();
    life.create();
    life.store();
    let built = memory::live_bytes() as f64 / workload.pairs_built as f64;
    results.add(Metric::BytesBuilt, i, built);
    for churn in 0..CHURNS {
        life.churn_untimed(churn);
    }
    life.tidy();
    let pairs = workload.pairs_churned[CHURNS - 1] as f64;
    results.add(Metric::BytesChurned, i, memory::live_bytes() as f64 / pairs);
    life.remove_all();
    results.add(Metric::BytesLeft, i, memory::live_bytes() as f64 / 1e6);
    life.end();
    memory::stop_counting();
}
