//! Random cases: fleets and traffic that no one looks at one by one. A policy is tuned on the
//! development half; its published figures are those of the held-out half.

mod axes;
mod capacity;
mod judge;
mod measure;
mod routers;
mod traffic;

use crate::policy::Policy;
use crate::result_cache::CachedSummary;
use anyhow::Context;
use axes::Axes;
use measure::Measured;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;
use wornpath_sim::replay::{ProfileText, replay};

pub(crate) use judge::{bars, rows, table};
pub(crate) use routers::judge_routers;

/// Half of the cases, by seed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Half {
    /// Even seeds.
    Development,
    /// Odd seeds.
    HeldOut,
}

impl Half {
    pub(crate) const ALL: [Self; 2] = [Self::Development, Self::HeldOut];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Development => "development",
            Self::HeldOut => "held-out",
        }
    }

    pub(crate) fn parse(text: &str) -> anyhow::Result<Self> {
        let named = Self::ALL.into_iter().find(|half| half.name() == text);
        named.with_context(|| format!("--half `{text}`: give development or held-out"))
    }

    fn seed(self, at: usize) -> u64 {
        2 * at as u64 + u64::from(self == Self::HeldOut)
    }
}

/// What to run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RandomRun<'a> {
    pub(crate) half: Half,
    pub(crate) cases: usize,
    /// The first case's number within its half.
    pub(crate) first: usize,
    pub(crate) threads: usize,
    pub(crate) keep: Option<&'a Path>,
    /// When to stop: cases that are not complete by then are left out.
    pub(crate) stop_at: Option<Instant>,
}

/// A case, and the figures of every policy in it.
pub(crate) struct JudgedCase {
    pub(crate) name: String,
    pub(crate) figures: Vec<Measured>,
}

/// Replays every case with every policy.
pub(crate) fn run(of: RandomRun<'_>, policies: &[Policy]) -> anyhow::Result<Vec<JudgedCase>> {
    let next = AtomicUsize::new(0);
    let done = Mutex::new(Vec::new());
    let work = || -> anyhow::Result<()> {
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            if at >= of.cases {
                return Ok(());
            }
            let started = Instant::now();
            let Some(case) = judged(of.half.seed(of.first + at), policies, &of)? else {
                return Ok(());
            };
            let seconds = started.elapsed().as_secs_f64();
            eprintln!("{} case {at}: {seconds:.1} s", of.half.name());
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

/// The figures of a case, or none if the time is over.
fn judged(
    seed: u64,
    policies: &[Policy],
    of: &RandomRun<'_>,
) -> anyhow::Result<Option<JudgedCase>> {
    let axes = Axes::of(seed);
    let fleet = axes.fleet()?;
    let name = axes.to_string();
    // Made when the first figure is missing.
    let mut traffic = None;
    let mut figures = Vec::with_capacity(policies.len());
    for policy in policies {
        let yaml = policy.yaml_for(fleet.engine.step_cost().per_prefill_token);
        let cache = CachedSummary::of(of.keep, &policy.name, ("random", &name, &yaml));
        if let Some(measured) = cache.read() {
            figures.push(measured);
            continue;
        }
        if of.stop_at.is_some_and(|time| Instant::now() >= time) {
            return Ok(None);
        }
        let traffic = traffic.get_or_insert_with(|| traffic::traffic(&axes, &fleet));
        let records = replay(traffic, ProfileText { name: &policy.name, yaml: &yaml }, &fleet)?;
        let measured = Measured::of(traffic, &records, &fleet);
        cache.write(&measured)?;
        figures.push(measured);
    }
    Ok(Some(JudgedCase { name, figures }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_case_depends_on_its_seed_alone_and_the_halves_share_none() {
        for at in 0..20 {
            let [one, other] = Half::ALL.map(|half| half.seed(at));
            assert_ne!(one, other);
            assert_eq!((one % 2, other % 2), (0, 1));
        }
        let axes = Axes::of(6);
        let fleet = axes.fleet().expect("a built-in engine");
        assert_eq!(axes.to_string(), Axes::of(6).to_string());
        assert_eq!(traffic::traffic(&axes, &fleet), traffic::traffic(&axes, &fleet));
    }
}
