//! `wornpath replay`: simulates recorded traffic under routing profiles, in virtual time.

mod html;
mod progress;

use crate::check::{BAD_CONFIGURATION, check, read};
use crate::engine::profile as engine_profile;
use crate::numbers;
use crate::output_files;
use crate::trace_file;
use anyhow::ensure;
use clap::Args;
use html::ReplayRun;
use progress::ReplayProgress;
use serde_json::json;
use std::io::Write;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;
use wornpath_routing::{ProfileEnv, Role};
use wornpath_sim::replay::{
    Percentiles, ProfileText, ReplayFleet, Summary, Trace, replay_with_progress,
};

/// Replay a trace against simulated engines and compare routing profiles
///
/// Runs in virtual time, with the routing and index code of the live server: hours of traffic take
/// seconds. A trace has one JSON object a line: timestamp (ms), input_length, output_length and
/// hash_ids (one per block, equal for equal prefixes), or timestamp, output_length and prompt or
/// messages; sessions have session_id and, on later turns, delay (ms after the previous turn) in
/// place of timestamp. Exits with 78 if a profile is invalid.
#[derive(Args)]
pub(crate) struct ReplayArguments {
    /// Trace to replay
    trace: PathBuf,
    /// Routing profile: a file, or the name of a built-in profile; may be repeated
    #[arg(long = "profile", required = true, value_name = "PROFILE")]
    profiles: Vec<PathBuf>,
    /// Number of engines
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=256))]
    pods: u16,
    /// Engine profile: a built-in name or the path of a JSON file
    #[arg(long, default_value = "8b-h200")]
    engine: String,
    /// Factor by which arrivals are more frequent; for sessions, their starts
    #[arg(long, default_value_t = 1.0)]
    speed: f64,
    /// Number of runs, each with its own jitter and random choices
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    seeds: u64,
    /// Random shift of arrivals, applied before --speed
    #[arg(long, default_value = "1s", value_parser = numbers::duration)]
    jitter: Duration,
    /// Delay of cache events on their way to the router
    #[arg(long, default_value = "0ms", value_parser = numbers::duration)]
    events_delay: Duration,
    /// Number of copies of every session, each with its own blocks and start
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    copies: u32,
    /// Tokens per block of the trace; default: inferred from input_length and hash_ids, or 512 for
    /// texts
    #[arg(long, value_parser = numbers::block_size)]
    block_size: Option<NonZeroUsize>,
    /// Tokens that each engine's KV cache holds; default: as in its profile
    #[arg(long, value_parser = numbers::tokens)]
    kv_tokens: Option<usize>,
    /// Also write all results to this file, as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Also write an HTML page with plots of each profile's first run
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

/// Limit of requests in a replay: it takes some minutes, and gigabytes.
const MAX_TURNS: usize = 20_000_000;

pub(crate) fn check_speed(speed: f64) -> anyhow::Result<()> {
    ensure!((0.001..=1e6).contains(&speed), "--speed is {speed}; it must be from 0.001 to 1000000");
    Ok(())
}

/// The number of copies of each session, if the trace has sessions and the copies are not too many.
pub(crate) fn copies(trace: &Trace, copies: u32) -> anyhow::Result<usize> {
    let turns = trace.turns.len();
    let times = copies as usize;
    ensure!(
        times == 1 || trace.turns.iter().any(|turn| turn.session.is_some()),
        "--copies is {copies}, but the trace has no sessions to copy; leave it out"
    );
    ensure!(
        turns.saturating_mul(times) <= MAX_TURNS,
        "--copies is {copies}: with {turns} requests that exceeds the limit of {MAX_TURNS}; give fewer"
    );
    Ok(times)
}

pub(crate) fn run(arguments: &ReplayArguments, out: &mut impl Write) -> anyhow::Result<ExitCode> {
    let speed = arguments.speed;
    check_speed(speed)?;
    let inputs: Vec<_> = [&arguments.trace].into_iter().chain(&arguments.profiles).collect();
    let outputs = [("--json", arguments.json.as_ref()), ("--html", arguments.html.as_ref())];
    output_files::check(&inputs, &outputs)?;
    // All profiles are checked before a run of minutes. Simulated engines serve whole requests.
    let roles = Some(vec![Role::named(Role::SERVE)]);
    let env = ProfileEnv { roles, ..ProfileEnv::default() };
    let mut code = ExitCode::SUCCESS;
    for path in &arguments.profiles {
        if let Err(problems) = check(path, &env)? {
            eprint!("{problems}");
            code = ExitCode::from(BAD_CONFIGURATION);
        }
    }
    if code != ExitCode::SUCCESS {
        return Ok(code);
    }
    let engine = engine_profile(&arguments.engine)?;
    let trace = trace_file::read(&arguments.trace, arguments.block_size)?;
    let copies = copies(&trace, arguments.copies)?;
    let (requests, cacheable) = {
        let copied = trace.clone().cloned(copies, 1);
        let cacheable = copied.ideal_hit_tokens() as f64 / copied.prompt_tokens() as f64;
        (copied.turns.len(), cacheable)
    };
    let file = arguments.trace.display().to_string();
    let facts = format!(
        "{requests} requests in blocks of {} tokens, ideal hit rate {cacheable:.3}; on {} engines {}, speed {speed}, {} run(s)",
        trace.block_size,
        arguments.pods,
        engine.name(),
        arguments.seeds
    );
    writeln!(out, "{file}: {facts}")?;
    writeln!(
        out,
        "{:<24} {:>27}  {:>20}  {:>8} {:>9} {:>8}",
        "profile", "TTFT ms p50 p95 p99", "TPOT ms p50 p99", "hit rate", "busiest", "failed"
    )?;
    let mut report = Vec::new();
    let mut first_runs = Vec::new();
    let mut progress = ReplayProgress::new(arguments.seeds * arguments.profiles.len() as u64);
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
            let source = path.display().to_string();
            let title = format!("{name}, run {seed} of {}", arguments.seeds);
            let bar = progress.begin(title, traffic.turns.len());
            let profile = ProfileText { name: &source, yaml: &yaml };
            let mut watch = |ended: usize| bar.set_position(ended as u64);
            let records = replay_with_progress(&traffic, profile, &fleet, &mut watch)?;
            runs.push(Summary::of(&traffic, &records, usize::from(arguments.pods)));
            if seed == 1 && arguments.html.is_some() {
                first_runs.push((name.clone(), traffic, records));
            }
        }
        progress.suspend(|| print_row(&name, &mean(&runs), out))?;
        report.push(json!({"profile": name, "runs": runs}));
    }
    if let Some(path) = &arguments.json {
        output_files::write(path, &format!("{:#}", json!({"profiles": report})))?;
    }
    if let Some(path) = &arguments.html {
        let pods = usize::from(arguments.pods);
        let runs = first_runs.iter();
        let runs = runs.map(|(name, trace, records)| ReplayRun { name, trace, records, pods });
        let page = html::page(&file, &facts, &runs.collect::<Vec<_>>());
        output_files::write(path, &page)?;
    }
    Ok(code)
}

/// The name of a profile: its file name without extension, or its whole path if that is not unique.
fn name(path: &Path, all: &[PathBuf]) -> String {
    let stem = |path: &Path| path.file_stem().unwrap_or(path.as_os_str()).to_owned();
    let is_unique = all.iter().filter(|other| stem(other) == stem(path)).count() == 1;
    if is_unique { stem(path).to_string_lossy().into_owned() } else { path.display().to_string() }
}

fn print_row(name: &str, row: &Summary, out: &mut impl Write) -> anyhow::Result<()> {
    let Summary { ttft, tpot, .. } = row;
    if !row.is_answered() {
        return Ok(writeln!(out, "{name:<24} none of {} requests was answered", row.requests)?);
    }
    writeln!(
        out,
        "{name:<24} {:>8.0} {:>8.0} {:>9.0}  {:>9.1} {:>10.1}  {:>8.3} {:>8.2}x {:>8}",
        ttft.p50, ttft.p95, ttft.p99, tpot.p50, tpot.p99, row.hit_rate, row.imbalance, row.failures
    )?;
    Ok(out.flush()?)
}

/// The mean of each figure over the runs with answers, and the sum of failures.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_profile_is_named_by_its_file_unless_two_have_that_name() {
        let all = ["a/one.yaml", "b/one.yaml", "two.yaml"].map(PathBuf::from);
        assert_eq!(
            all.each_ref().map(|path| name(path, &all)),
            ["a/one.yaml", "b/one.yaml", "two"]
        );
    }
}
