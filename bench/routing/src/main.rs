//! The default profile against other routing policies: every trace, every policy, several seeds;
//! then the same under each disturbance of the fleet, and with peers that use our wait queue.
//!
//! Time is virtual, so figures do not depend on the machine and are the same on every run.

mod case;
mod distribution;
mod disturbance;
mod generated;
mod policy;
mod random_case;
mod result_cache;
mod score;

use anyhow::{Context, bail, ensure};
use case::Case;
use disturbance::Disturbance;
use policy::Policy;
use random_case::{Half, RandomRun};
use result_cache::CachedSummary;
use score::{Figures, Row};
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use wornpath_sim::replay::{ProfileText, Summary, Trace, replay};

const USAGE: &str = "\
bench/run routing --traces DIR [--quick] [--save] [--pods 8|16] [--case FILE,ENGINE,PODS,SPEED[,COPIES]]...
  [--policy NAME]... [--ours FILE] [--seeds N] [--threads N] [--keep FOLDER]
  [--part none|late-events|slow-pods|known-slow-pods|pod-leaves|wrong-profile|two-routers|tiers|queue|random|routers]...
  [--half development|held-out] [--cases N] [--first N] [--rows] [--stop-after SECONDS] [--exchange MS]...
DIR may come from WORNPATH_TRACES. Without a folder generated traffic is replayed, which no profile was tuned on.
With --keep the summary of every replay is cached in the folder, and cached replays are not run again.
Without --part all parts are run; those after the first at 8 pods, with one seed unless --seeds is given.
Part `random` judges the default profile, and every other profile given with --ours, on random cases, 150 of each half unless --cases
is given, from number --first on; --rows lists the cases of the development half; after --stop-after the
complete cases are judged. Part `routers` compares two and four routers, alone and with an exchange (every 10 ms, unless --exchange is
given), with one that sees everything, on random cases of the held-out half unless --half is given.
";

struct Options {
    traces: Option<PathBuf>,
    quick: bool,
    pods: Option<usize>,
    cases: Vec<String>,
    policies: Vec<String>,
    ours: Vec<PathBuf>,
    seeds: Option<u64>,
    threads: usize,
    keep: Option<PathBuf>,
    parts: Vec<Part>,
    half: Option<Half>,
    cases_per_half: Option<usize>,
    first: usize,
    rows: bool,
    exchange: Vec<Duration>,
    stop_at: Option<Instant>,
}

/// A part of the run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Part {
    /// All policies, under a disturbance or none.
    Under(Disturbance),
    /// Peers with our wait queue.
    Queue,
    /// Random cases.
    Random,
    /// Several routers on random cases.
    Routers,
}

impl Part {
    fn parse(text: &str) -> anyhow::Result<Self> {
        if text == "queue" {
            return Ok(Self::Queue);
        }
        if text == "random" {
            return Ok(Self::Random);
        }
        if text == "routers" {
            return Ok(Self::Routers);
        }
        Disturbance::parse(text).map(Self::Under)
    }

    fn all() -> Vec<Self> {
        let under = Disturbance::NAMED.iter().map(|(_, disturbance)| Self::Under(*disturbance));
        under.chain([Self::Queue, Self::Random, Self::Routers]).collect()
    }

    fn name(self) -> &'static str {
        match self {
            Self::Under(disturbance) => disturbance.name(),
            Self::Queue => "peers with our queue",
            Self::Random => "random cases",
            Self::Routers => "several routers",
        }
    }

    fn disturbance(self) -> Disturbance {
        match self {
            Self::Under(disturbance) => disturbance,
            Self::Queue | Self::Random | Self::Routers => Disturbance::None,
        }
    }

    fn is_first(self) -> bool {
        self == Self::Under(Disturbance::None)
    }
}

fn options() -> anyhow::Result<Options> {
    let mut options = Options {
        traces: std::env::var_os("WORNPATH_TRACES").map(PathBuf::from),
        quick: false,
        pods: None,
        cases: Vec::new(),
        policies: Vec::new(),
        ours: Vec::new(),
        seeds: None,
        threads: 2,
        keep: None,
        parts: Vec::new(),
        half: None,
        cases_per_half: None,
        first: 0,
        rows: false,
        exchange: Vec::new(),
        stop_at: None,
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
            "--ours" => options.ours.push(value()?.into()),
            "--seeds" => options.seeds = Some(value()?.parse()?),
            "--threads" => options.threads = value()?.parse()?,
            "--keep" => options.keep = Some(value()?.into()),
            "--half" => options.half = Some(Half::parse(&value()?)?),
            "--cases" => options.cases_per_half = Some(value()?.parse()?),
            "--first" => options.first = value()?.parse()?,
            "--stop-after" => {
                options.stop_at = Some(Instant::now() + Duration::from_secs(value()?.parse()?));
            }
            "--rows" => options.rows = true,
            "--exchange" => options.exchange.push(Duration::from_millis(value()?.parse()?)),
            "--part" => options.parts.push(Part::parse(&value()?)?),
            _ => bail!("unknown option `{argument}`\n{USAGE}"),
        }
    }
    ensure!(options.threads > 0, "--threads is 0; it must be at least 1");
    if options.parts.is_empty() {
        options.parts = if options.quick { vec![Part::all()[0]] } else { Part::all() };
    }
    Ok(options)
}

fn main() -> anyhow::Result<()> {
    let options = options()?;
    let policies = policies(&options)?;
    if let Some(folder) = &options.keep {
        std::fs::create_dir_all(folder)
            .with_context(|| format!("cannot create {}", folder.display()))?;
    }
    let mut verdicts = String::new();
    let mut last = String::new();
    for part in &options.parts {
        if *part == Part::Random {
            verdicts += &judge_random(&options, &policies)?;
            continue;
        }
        if *part == Part::Routers {
            verdicts += &judge_routers(&options, &policies[0])?;
            continue;
        }
        let mut policies = policies.clone();
        if *part == Part::Queue {
            policy::share_queue(&mut policies);
        }
        if !part.is_first() {
            policies.retain(|policy| !policy.is_slow());
            println!("== {}", part.name());
        }
        let mut rows = Vec::new();
        for (case, trace) in cases(&options, *part)? {
            println!("{}", case.name());
            println!("{}", score::HEADER);
            let figures = run(&case, &trace, &policies, *part, &options)?;
            for (policy, figures) in policies.iter().zip(&figures) {
                println!("{}", score::line(&policy.name, figures));
            }
            let row = Row::of(&case, &policies, &figures);
            println!("{row}\n");
            rows.push(row);
        }
        match part.is_first() {
            true => last = score::verdict(&rows),
            false => verdicts += &score::robustness(part.name(), &rows),
        }
    }
    // The figures that sum everything up come last.
    print!("{verdicts}{last}");
    Ok(())
}

fn policies(options: &Options) -> anyhow::Result<Vec<Policy>> {
    let mut ours = policy::ours();
    if let Some(path) = options.ours.first() {
        ours.yaml = std::fs::read_to_string(path)
            .with_context(|| format!("cannot read {}", path.display()))?;
    }
    let mut all = policy::peers();
    if let Some(unknown) = options.policies.iter().find(|name| all.iter().all(|p| p.name != **name))
    {
        bail!("--policy `{unknown}`: unknown peer");
    }
    all.retain(|policy| match options.policies[..] {
        [] => !(options.quick && policy.is_slow()),
        _ => options.policies.contains(&policy.name),
    });
    all.insert(0, ours);
    Ok(all)
}

/// Prints the figures of random cases, and returns the bars.
fn judge_random(options: &Options, policies: &[Policy]) -> anyhow::Result<String> {
    let mut policies = policies.to_vec();
    for path in options.ours.iter().skip(1).rev() {
        let yaml = std::fs::read_to_string(path)
            .with_context(|| format!("cannot read {}", path.display()))?;
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        policies.insert(1, Policy { name, yaml });
    }
    let ours = options.ours.len().max(1);
    let names: Vec<&str> = policies.iter().map(|policy| policy.name.as_str()).collect();
    let default = if options.quick { 30 } else { 150 };
    let mut bars = String::new();
    for half in Half::ALL {
        if options.half.is_some_and(|only| only != half) {
            continue;
        }
        let run = RandomRun {
            half,
            cases: options.cases_per_half.unwrap_or(default),
            first: options.first,
            threads: options.threads,
            keep: options.keep.as_deref(),
            stop_at: options.stop_at,
        };
        let cases = random_case::run(run, &policies)?;
        println!("== {} random cases, {} half, to the best peer of each", cases.len(), half.name());
        println!("{}", random_case::table(&cases, &names, ours));
        if options.rows && half == Half::Development {
            println!("{}", random_case::rows(&cases, &names, ours));
        }
        bars += &random_case::bars(&cases, half.name(), policies.len(), ours);
    }
    Ok(bars)
}

/// Prints the figures of several routers on random cases, and returns the bars.
fn judge_routers(options: &Options, ours: &Policy) -> anyhow::Result<String> {
    let run = RandomRun {
        half: options.half.unwrap_or(Half::HeldOut),
        cases: options.cases_per_half.unwrap_or(if options.quick { 10 } else { 60 }),
        first: options.first,
        threads: options.threads,
        keep: options.keep.as_deref(),
        stop_at: options.stop_at,
    };
    println!("== several routers, {} half", run.half.name());
    const DEFAULT: [Duration; 1] = [Duration::from_millis(10)];
    let intervals = if options.exchange.is_empty() { &DEFAULT[..] } else { &options.exchange[..] };
    random_case::judge_routers(run, ours, intervals)
}

fn cases(options: &Options, part: Part) -> anyhow::Result<Vec<(Case, Trace)>> {
    let few = options.quick || !part.is_first();
    let factor = part.disturbance().speed_factor();
    let fit = |case: &mut Case| {
        case.seeds = options.seeds.unwrap_or(if few { 1 } else { case.seeds });
        case.speed *= factor;
    };
    let Some(folder) = &options.traces else {
        let mut generated = generated::cases();
        generated.iter_mut().for_each(|(case, _)| fit(case));
        return Ok(generated);
    };
    let mut cases = Vec::new();
    for text in &options.cases {
        cases.push(Case::parse(text, 3)?);
    }
    if cases.is_empty() {
        cases = case::recorded();
        cases.retain(|case| options.pods.is_none_or(|pods| case.pods == pods));
    }
    if few && options.cases.is_empty() {
        cases.retain(|case| case.pods <= 8);
    }
    let mut read = Vec::new();
    for mut case in cases {
        fit(&mut case);
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
    part: Part,
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
            let yaml = policy.yaml_for(fleet.engine.step_cost().per_prefill_token);
            let key = (part.name(), case.name_of_one(), seed, &yaml);
            let cache = CachedSummary::of(options.keep.as_deref(), &policy.name, key);
            if let Some(summary) = cache.read::<Summary>() {
                done.lock().expect("no replay panics")[job] = Some(summary);
                continue;
            }
            let traffic = case.traffic(trace, seed);
            part.disturbance().apply(&mut fleet, &traffic);
            let profile = ProfileText { name: &policy.name, yaml: &yaml };
            let records = replay(&traffic, profile, &fleet)?;
            let summary = Summary::of(&traffic, &records, case.pods);
            cache.write(&summary)?;
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
