//! The default profile against the policies of the field: every trace, every policy, several seeds.
//!
//! Virtual time, so figures do not depend on the machine and are the same on every run.

mod case;
mod disturbance;
mod made;
mod policy;
mod score;

use anyhow::{Context, bail, ensure};
use case::Case;
use disturbance::Disturbance;
use policy::Policy;
use score::{Figures, Row};
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use wornpath_sim::replay::{Summary, Trace, replay};

const USAGE: &str = "\
bench/run routing --traces DIR [--quick] [--save] [--pods 8|16] [--case FILE,ENGINE,PODS,SPEED[,COPIES]]...
  [--policy NAME]... [--ours FILE] [--seeds N] [--threads N] [--disturb late-events|slow-pods|wrong-profile]
DIR may come from WORNPATH_TRACES. Without any folder a small generated trace is replayed.
";

struct Options {
    traces: Option<PathBuf>,
    quick: bool,
    pods: Option<usize>,
    cases: Vec<String>,
    policies: Vec<String>,
    ours: Option<PathBuf>,
    seeds: Option<u64>,
    threads: usize,
    disturbance: Disturbance,
}

fn options() -> anyhow::Result<Options> {
    let mut options = Options {
        traces: std::env::var_os("WORNPATH_TRACES").map(PathBuf::from),
        quick: false,
        pods: None,
        cases: Vec::new(),
        policies: Vec::new(),
        ours: None,
        seeds: None,
        threads: 2,
        disturbance: Disturbance::None,
    };
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().with_context(|| format!("{argument} needs a value"));
        match argument.as_str() {
            "--traces" => options.traces = Some(value()?.into()),
            "--quick" => options.quick = true,
            // Saved runs ask for every figure; this program always prints them.
            "--raw" => {}
            "--pods" => options.pods = Some(value()?.parse()?),
            "--case" => options.cases.push(value()?),
            "--policy" => options.policies.push(value()?),
            "--ours" => options.ours = Some(value()?.into()),
            "--seeds" => options.seeds = Some(value()?.parse()?),
            "--threads" => options.threads = value()?.parse()?,
            "--disturb" => options.disturbance = Disturbance::parse(&value()?)?,
            _ => bail!("`{argument}` is no option\n{USAGE}"),
        }
    }
    ensure!(options.threads > 0, "--threads is 0; one is the least");
    Ok(options)
}

fn main() -> anyhow::Result<()> {
    let options = options()?;
    let mut rows = Vec::new();
    let policies = policies(&options)?;
    for (case, trace) in cases(&options)? {
        println!("{}", case.name());
        println!("{}", score::HEADER);
        let figures = run(&case, &trace, &policies, &options)?;
        for (policy, figures) in policies.iter().zip(&figures) {
            println!("{}", score::line(&policy.name, figures));
        }
        let row = Row::of(&case, &policies, &figures);
        println!("{row}\n");
        rows.push(row);
    }
    print!("{}", score::verdict(&rows));
    Ok(())
}

fn policies(options: &Options) -> anyhow::Result<Vec<Policy>> {
    let mut ours = policy::ours();
    if let Some(path) = &options.ours {
        ours.yaml = std::fs::read_to_string(path)
            .with_context(|| format!("cannot read {}", path.display()))?;
    }
    let mut all = policy::peers();
    if let Some(unknown) = options.policies.iter().find(|name| all.iter().all(|p| p.name != **name))
    {
        bail!("--policy `{unknown}` is no peer");
    }
    all.retain(|policy| match options.policies[..] {
        [] => !(options.quick && policy.is_slow()),
        _ => options.policies.contains(&policy.name),
    });
    all.insert(0, ours);
    Ok(all)
}

fn cases(options: &Options) -> anyhow::Result<Vec<(Case, Trace)>> {
    let Some(folder) = &options.traces else {
        return Ok(vec![made::case()]);
    };
    let mut cases = Vec::new();
    for text in &options.cases {
        cases.push(Case::parse(text, 3)?);
    }
    if cases.is_empty() {
        cases = case::listed();
        cases.retain(|case| options.pods.is_none_or(|pods| case.pods == pods));
    }
    if options.quick {
        cases.retain(|case| case.pods <= 8);
    }
    let mut read = Vec::new();
    for mut case in cases {
        case.seeds = options.seeds.unwrap_or(if options.quick { 1 } else { case.seeds });
        case.speed *= options.disturbance.speed_factor();
        let trace = case.read(folder)?;
        read.push((case, trace));
    }
    Ok(read)
}

/// The figures of every policy, the mean of all seeds.
fn run(
    case: &Case,
    trace: &Trace,
    policies: &[Policy],
    options: &Options,
) -> anyhow::Result<Vec<Figures>> {
    let seeds = case.seeds as usize;
    let next = AtomicUsize::new(0);
    let done = Mutex::new(vec![None; policies.len() * seeds]);
    let work = || -> anyhow::Result<()> {
        loop {
            let job = next.fetch_add(1, Ordering::Relaxed);
            let Some(policy) = policies.get(job / seeds) else { return Ok(()) };
            let seed = (job % seeds) as u64 + 1;
            let mut fleet = case.fleet(seed)?;
            options.disturbance.apply(&mut fleet);
            let yaml = policy.written_for(fleet.engine.step_cost().per_prefill_token);
            let traffic = case.traffic(trace, seed);
            let records = replay(&traffic, (&policy.name, &yaml), &fleet)?;
            let summary = Summary::of(&traffic, &records);
            done.lock().expect("no replay panics")[job] = Some(summary);
        }
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..options.threads).map(|_| scope.spawn(work)).collect();
        threads.into_iter().try_for_each(|thread| thread.join().expect("no replay panics"))
    })?;
    let summaries: Vec<Summary> =
        done.into_inner().expect("no replay panics").into_iter().flatten().collect();
    Ok(summaries.chunks(seeds).map(Figures::mean).collect())
}
