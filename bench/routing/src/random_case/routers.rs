//! Several routers of the same pods against one that sees everything, on random cases: what it costs
//! that a router knows of the others only what they tell it.

use super::axes::Axes;
use super::measure::Measured;
use super::{RandomRun, traffic};
use crate::policy::Policy;
use crate::result_cache::CachedSummary;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use wornpath_sim::replay::{ProfileText, replay};

/// The highest ratio of a p95 TTFT to that of one router.
const BAR: f64 = 1.05;
/// Milliseconds below which two times are the same.
const LEAST: f64 = 5.0;

/// The routers of a replay.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Routers {
    count: usize,
    exchange: Option<Duration>,
    /// Added to the seed of the routers' random choices: what that changes is chance.
    reseeded: u64,
}

impl Routers {
    const ONE: Self = Self { count: 1, exchange: None, reseeded: 0 };

    fn name(self) -> String {
        match self {
            Self { count: 1, .. } => "one router, other random choices".to_owned(),
            Self { count, exchange: None, .. } => format!("{count} routers, alone"),
            Self { count, exchange: Some(every), .. } => {
                format!("{count} routers, exchange every {} ms", every.as_millis())
            }
        }
    }
}

/// Replays the cases with one, two and four routers that exchange at these intervals, and returns
/// the table and the bars.
pub(crate) fn judge_routers(
    of: RandomRun<'_>,
    policy: &Policy,
    intervals: &[Duration],
) -> anyhow::Result<String> {
    let exchanges: Vec<_> = [None].into_iter().chain(intervals.iter().copied().map(Some)).collect();
    let several = [2, 4].into_iter().flat_map(|count| {
        exchanges.iter().map(move |exchange| Routers { count, exchange: *exchange, reseeded: 0 })
    });
    let all: Vec<Routers> = [Routers::ONE, Routers { reseeded: 1000, ..Routers::ONE }]
        .into_iter()
        .chain(several)
        .collect();
    let mut ratios = vec![Vec::new(); all.len()];
    for (name, figures) in run(of, policy, &all)? {
        let p95 = |measured: &Measured| measured.ttft.p95 + LEAST;
        let one = p95(&figures[0]);
        let row: Vec<_> = figures.iter().map(|measured| p95(measured) / one).collect();
        let shown: Vec<_> = row[1..].iter().map(|ratio| format!("{ratio:.3}")).collect();
        println!("  {} | {:.0} ms {name}", shown.join(" "), figures[0].ttft.p95);
        ratios.iter_mut().zip(row).for_each(|(all, ratio)| all.push(ratio));
    }
    println!("  p95 TTFT to one router              mean    worst   within {BAR}");
    let mut bars = String::new();
    for (routers, ratios) in all.iter().zip(&mut ratios).skip(1) {
        ratios.sort_by(f64::total_cmp);
        let mean = ratios.iter().map(|ratio| ratio.ln()).sum::<f64>() / ratios.len() as f64;
        let worst = ratios.last().copied().unwrap_or(f64::NAN);
        let within = ratios.iter().filter(|ratio| **ratio <= BAR).count();
        let name = routers.name();
        println!("  {name:<34} {:>7.3} {worst:>8.3} {within:>5} of {}", mean.exp(), ratios.len());
        if routers.exchange.is_some() {
            let verdict = if worst <= BAR { "pass" } else { "MISS" };
            bars += &format!("{verdict} {name}: worst p95 {worst:.3} of one router, bar {BAR}\n");
        }
    }
    Ok(bars)
}

/// The figures of each case with each set of routers.
fn run(
    of: RandomRun<'_>,
    policy: &Policy,
    all: &[Routers],
) -> anyhow::Result<Vec<(String, Vec<Measured>)>> {
    let next = AtomicUsize::new(0);
    let done = Mutex::new(Vec::new());
    let work = || -> anyhow::Result<()> {
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            if at >= of.cases || of.stop_at.is_some_and(|time| Instant::now() >= time) {
                return Ok(());
            }
            let case = figures(&Axes::of(of.half.seed(of.first + at)), policy, all, of)?;
            done.lock().expect("no replay panics").push((at, case));
        }
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..of.threads).map(|_| scope.spawn(work)).collect();
        threads.into_iter().try_for_each(|thread| thread.join().expect("no replay panics"))
    })?;
    let mut done = done.into_inner().expect("no replay panics");
    done.sort_by_key(|(at, _)| *at);
    Ok(done.into_iter().map(|(_, case)| case).collect())
}

fn figures(
    axes: &Axes,
    policy: &Policy,
    all: &[Routers],
    of: RandomRun<'_>,
) -> anyhow::Result<(String, Vec<Measured>)> {
    let fleet = axes.fleet()?;
    let name = axes.to_string();
    let yaml = policy.yaml_for(fleet.engine.step_cost().per_prefill_token);
    let mut traffic = None;
    let mut figures = Vec::with_capacity(all.len());
    for routers in all {
        let cache = CachedSummary::of(of.keep, "routers", (&name, &yaml, routers));
        if let Some(measured) = cache.read() {
            figures.push(measured);
            continue;
        }
        let traffic = traffic.get_or_insert_with(|| traffic::traffic(axes, &fleet));
        let mut fleet = fleet.clone();
        fleet.routers = routers.count;
        fleet.exchange = routers.exchange;
        fleet.seed = fleet.seed.wrapping_add(routers.reseeded);
        let records = replay(traffic, ProfileText { name: &policy.name, yaml: &yaml }, &fleet)?;
        let measured = Measured::of(traffic, &records, &fleet);
        cache.write(&measured)?;
        figures.push(measured);
    }
    Ok((name, figures))
}
