//! `wornpath replay`: what routing profiles would have done with recorded traffic, in virtual time.

mod progress;

use crate::check::{BAD_CONFIGURATION, check, read};
use crate::engine::profile as engine_profile;
use crate::input;
use crate::numbers;
use anyhow::{Context, ensure};
use clap::Args;
use progress::ReplayProgress;
use serde_json::json;
use std::io::Write;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;
use wornpath_routing::{ProfileEnv, Role};
use wornpath_sim::replay::{
    Percentiles, ReplayFleet, ReplayRun, Summary, Trace, html_report, replay_with_progress,
};

/// Replay a trace against simulated engines and compare routing profiles
///
/// Runs in virtual time, with the routing and index code of the live server: hours of traffic take seconds.
/// A trace has one JSON object a line: timestamp (ms), input_length, output_length and hash_ids (one per block,
/// equal for equal prefixes), or timestamp, output_length and prompt or messages; sessions have session_id
/// and, on later turns, delay (ms after the turn before) in place of timestamp.
/// Exits with 78 if a profile cannot be used.
#[derive(Args)]
pub(crate) struct ReplayArguments {
    /// The trace
    trace: PathBuf,
    /// Routing profile to try, a file or the name of a shipped one; may be repeated
    #[arg(long = "profile", required = true, value_name = "PROFILE")]
    profiles: Vec<PathBuf>,
    /// Number of engines
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=256))]
    pods: u16,
    /// Engine profile: a built-in name or the path of a JSON file
    #[arg(long, default_value = "8b-h200")]
    engine: String,
    /// Make arrivals so many times as frequent; of sessions, their starts
    #[arg(long, default_value_t = 1.0)]
    speed: f64,
    /// Number of runs, each with its own jitter and choices by chance
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    seeds: u64,
    /// How far arrivals are moved by chance, before --speed
    #[arg(long, default_value = "1s", value_parser = duration)]
    jitter: Duration,
    /// How late cache events reach the router
    #[arg(long, default_value = "0ms", value_parser = duration)]
    events_delay: Duration,
    /// Replay every session so many times over, each copy with its own blocks and start
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    copies: u32,
    /// Tokens per block of the trace
    #[arg(long, default_value = "512", value_parser = numbers::block_size)]
    block_size: NonZeroUsize,
    /// Tokens that each engine's cache holds, if not as its profile says
    #[arg(long, value_parser = numbers::tokens)]
    kv_tokens: Option<usize>,
    /// Also write all figures here, as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Also write a page with plots of each profile's first run
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

/// Requests that a replay may have: some minutes, and gigabytes.
const MOST_TURNS: usize = 20_000_000;

/// How often each session is replayed.
fn copies(trace: &Trace, copies: u32) -> anyhow::Result<usize> {
    let (turns, times) = (trace.turns.len(), copies as usize);
    ensure!(
        times == 1 || trace.turns.iter().any(|turn| turn.session.is_some()),
        "--copies is {copies}, and no request of the trace has a session, so that nothing would be copied; leave it out"
    );
    ensure!(
        turns.saturating_mul(times) <= MOST_TURNS,
        "--copies is {copies}, which makes more than {MOST_TURNS} of {turns} requests; give less"
    );
    Ok(times)
}

/// Replays and prints a table.
pub(crate) fn run(arguments: &ReplayArguments, out: &mut impl Write) -> anyhow::Result<ExitCode> {
    let speed = arguments.speed;
    ensure!(
        (0.001..=1e6).contains(&speed),
        "--speed is {speed}; it must be from a thousandth to a million"
    );
    check_outputs(arguments)?;
    // Before anything runs for minutes, and all of them. Simulated engines answer whole requests.
    let roles = Some(vec![Role::named(Role::SERVE)]);
    let surroundings = ProfileEnv { roles, ..ProfileEnv::default() };
    let mut code = ExitCode::SUCCESS;
    for path in &arguments.profiles {
        if let Err(problems) = check(path, &surroundings)? {
            eprint!("{problems}");
            code = ExitCode::from(BAD_CONFIGURATION);
        }
    }
    if code != ExitCode::SUCCESS {
        return Ok(code);
    }
    let engine = engine_profile(&arguments.engine)?;
    let file = arguments.trace.display().to_string();
    input::refuse_packed(&arguments.trace)?;
    let text =
        std::fs::read_to_string(&arguments.trace).with_context(|| format!("cannot read {file}"))?;
    let trace = Trace::read(&file, &text, arguments.block_size)?;
    let copies = copies(&trace, arguments.copies)?;
    let (requests, cacheable) = {
        let copied = trace.clone().cloned(copies, 1);
        let cacheable = copied.ideal_hit_tokens() as f64 / copied.prompt_tokens() as f64;
        (copied.turns.len(), cacheable)
    };
    let title = format!(
        "{}: {requests} requests, of whose prompts {cacheable:.3} could be cached; on {} engines {}, speed {speed}, {} run(s)",
        arguments.trace.display(),
        arguments.pods,
        engine.name(),
        arguments.seeds
    );
    writeln!(out, "{title}")?;
    writeln!(
        out,
        "{:<24} {:>27}  {:>20}  {:>8} {:>9} {:>8}",
        "profile", "TTFT ms p50 p95 p99", "TPOT ms p50 p99", "hit rate", "busiest", "failed"
    )?;
    let mut report = Vec::new();
    let mut first_runs = Vec::new();
    for path in &arguments.profiles {
        let yaml = read(path)?;
        let name = name(path, &arguments.profiles);
        let mut runs = Vec::new();
        for seed in 1..=arguments.seeds {
            let traffic = trace.clone().cloned(copies, seed);
            let traffic = traffic.jittered(arguments.jitter, seed).faster(speed);
            let fleet = ReplayFleet {
                kv_tokens: arguments.kv_tokens,
                events_delay: arguments.events_delay,
                ..ReplayFleet::new(engine.clone(), usize::from(arguments.pods), seed)
            };
            let file = path.display().to_string();
            let progress = ReplayProgress::new(&name, (seed, arguments.seeds), traffic.turns.len());
            let mut watch = |ended| progress.iter().for_each(|progress| progress.show(ended));
            let records = replay_with_progress(&traffic, (&file, &yaml), &fleet, &mut watch)?;
            drop(progress);
            runs.push(Summary::of(&traffic, &records, usize::from(arguments.pods)));
            if seed == 1 && arguments.html.is_some() {
                first_runs.push((name.clone(), traffic, records));
            }
        }
        print_row(&name, &mean(&runs), out)?;
        out.flush()?;
        report.push(json!({"profile": name, "runs": runs}));
    }
    if let Some(path) = &arguments.json {
        let text = serde_json::to_string_pretty(&json!({"profiles": report}))?;
        std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))?;
    }
    if let Some(path) = &arguments.html {
        let runs =
            first_runs.iter().map(|(name, trace, records)| ReplayRun { name, trace, records });
        let page = html_report(&title, &runs.collect::<Vec<_>>());
        std::fs::write(path, page).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(code)
}

/// Nothing that is read is written over, and nothing that has been written.
fn check_outputs(arguments: &ReplayArguments) -> anyhow::Result<()> {
    let place = |path: &PathBuf| path.canonicalize().or_else(|_| std::path::absolute(path)).ok();
    let inputs = [&arguments.trace].into_iter().chain(&arguments.profiles);
    let inputs: Vec<_> = inputs.map(place).collect();
    let outputs = [("--json", &arguments.json), ("--html", &arguments.html)];
    for (option, path) in
        outputs.into_iter().filter_map(|(option, path)| Some((option, path.as_ref()?)))
    {
        let is_input = path.exists() && inputs.contains(&place(path));
        ensure!(!is_input, "{option} {} is an input, which would be overwritten", path.display());
    }
    if let (Some(json), Some(html)) = (&arguments.json, &arguments.html) {
        let name = html.display();
        ensure!(
            place(json) != place(html),
            "--json and --html are both {name}; give each a file of its own"
        );
    }
    Ok(())
}

/// What a profile is called: its file without the ending, or all of its path where others are called so too.
fn name(path: &Path, all: &[PathBuf]) -> String {
    let stem = |path: &Path| path.file_stem().unwrap_or(path.as_os_str()).to_owned();
    let is_alone = all.iter().filter(|other| stem(other) == stem(path)).count() == 1;
    if is_alone { stem(path).to_string_lossy().into_owned() } else { path.display().to_string() }
}

fn print_row(name: &str, row: &Summary, out: &mut impl Write) -> anyhow::Result<()> {
    let Summary { ttft, tpot, .. } = row;
    if !row.is_answered() {
        return Ok(writeln!(out, "{name:<24} none of {} was answered", row.requests)?);
    }
    writeln!(
        out,
        "{name:<24} {:>8.0} {:>8.0} {:>9.0}  {:>9.1} {:>10.1}  {:>8.3} {:>8.2}x {:>8}",
        ttft.p50, ttft.p95, ttft.p99, tpot.p50, tpot.p99, row.hit_rate, row.imbalance, row.failures
    )?;
    Ok(())
}

/// The mean of each figure over the runs that have them, and all failures.
fn mean(runs: &[Summary]) -> Summary {
    let of = |figure: fn(&Summary) -> f64| {
        let answered: Vec<_> = runs.iter().filter(|run| run.is_answered()).map(figure).collect();
        answered.iter().sum::<f64>() / answered.len().max(1) as f64
    };
    Summary {
        requests: runs.iter().map(|run| run.requests).sum(),
        failures: runs.iter().map(|run| run.failures).sum(),
        ttft: Percentiles {
            p50: of(|run| run.ttft.p50),
            p95: of(|run| run.ttft.p95),
            p99: of(|run| run.ttft.p99),
            longest: of(|run| run.ttft.longest),
        },
        tpot: Percentiles {
            p50: of(|run| run.tpot.p50),
            p95: of(|run| run.tpot.p95),
            p99: of(|run| run.tpot.p99),
            longest: of(|run| run.tpot.longest),
        },
        hit_rate: of(|run| run.hit_rate),
        imbalance: of(|run| run.imbalance),
    }
}

/// `100ms` or `1.5s`.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let (number, unit) = match text.strip_suffix("ms") {
        Some(number) => (number, 1e-3),
        None => (text.strip_suffix('s').unwrap_or(text), 1.0),
    };
    let wrong = || format!("`{text}` is no time; write 100ms or 1.5s");
    if number == text {
        return Err(wrong());
    }
    let seconds: f64 = number.parse().map_err(|_| wrong())?;
    Duration::try_from_secs_f64(seconds * unit).map_err(|_| wrong())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn profiles_are_called_by_their_files_unless_two_are_called_so() {
        let all = ["a/one.yaml", "b/one.yaml", "two.yaml"].map(PathBuf::from);
        assert_eq!(
            all.each_ref().map(|path| name(path, &all)),
            ["a/one.yaml", "b/one.yaml", "two"]
        );
    }
}
