//! `wornpath replay`: simulates recorded traffic under routing profiles, in virtual time.

mod html;
mod pods;
mod progress;

use crate::check::{BAD_CONFIGURATION, check, read};
use crate::engine::profile as engine_profile;
use crate::fleet::read_fleet;
use crate::numbers;
use crate::output_files;
use crate::trace_file;
use anyhow::{Context, ensure};
use clap::Args;
use html::ReplayRun;
use pods::{PodCounts, ReplayPods, pod_counts};
use progress::ReplayProgress;
use serde_json::json;
use std::io::Write;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;
use wornpath_routing::ProfileEnv;
use wornpath_sim::replay::{
    Percentiles, ProfileText, ReplayFleet, Summary, Trace, replay_with_progress,
};

/// Replay a trace against simulated engines and compare routing profiles
///
/// Runs in virtual time, with the routing and index code of the live server: hours of traffic take
/// seconds. A trace has one JSON object a line: timestamp (ms), input_length, output_length and
/// hash_ids (one per block, equal for equal prefixes), or timestamp, output_length and prompt or
/// messages; sessions have session_id and, on later turns, delay (ms after the previous turn) in
/// place of timestamp. Engines cache the reply of a turn where the next turn of its session has the
/// blocks of both. Exits with 78 if a profile is invalid.
#[derive(Args)]
pub(crate) struct ReplayArguments {
    /// Trace to replay
    trace: PathBuf,
    /// Routing profile: a file, or the name of a built-in profile; may be repeated
    #[arg(long = "profile", required = true, value_name = "PROFILE")]
    profiles: Vec<PathBuf>,
    /// Number of engines, or how many there are of each role: prefill=2,decode=2; a profile of one
    /// step gets as many engines that serve whole requests
    #[arg(long, default_value = "8", value_name = "N|ROLE=N,...", value_parser = pod_counts)]
    pods: PodCounts,
    /// Engines with their roles, places, labels, KV capacities and speeds, in a file as for check
    /// --fleet; models are not read
    #[arg(long, value_name = "FILE", conflicts_with = "pods")]
    fleet: Option<PathBuf>,
    /// Engine profile of pods without a speed of their own: a built-in name or the path of a JSON
    /// file
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
    /// Tokens that each engine's KV cache holds, unless the fleet file says so; default: as in its
    /// profile
    #[arg(long, value_parser = numbers::tokens)]
    kv_tokens: Option<usize>,
    /// Tokens that a second cache tier in each engine's host memory holds
    #[arg(long, default_value_t = 0)]
    host_tokens: usize,
    /// Tokens that a third cache tier on each engine's disk holds
    #[arg(long, default_value_t = 0)]
    disk_tokens: usize,
    /// Also write all results to this file, as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Also write an HTML page with plots of each profile's first run
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

/// The pods that the options describe, or none if the fleet file is not valid; its problems are
/// printed.
fn given_pods(arguments: &ReplayArguments) -> anyhow::Result<Option<ReplayPods>> {
    let Some(path) = &arguments.fleet else {
        return Ok(Some(ReplayPods::of_counts(&arguments.pods)));
    };
    match read_fleet(path)? {
        Ok(spec) => {
            let pods = ReplayPods::described(&spec);
            Ok(Some(pods.with_context(|| path.display().to_string())?))
        }
        Err(problems) => {
            eprint!("{problems}");
            Ok(None)
        }
    }
}

/// The pods of each profile, or none if a profile is not valid; its problems are printed.
fn checked_pods(
    arguments: &ReplayArguments,
    given: &ReplayPods,
) -> anyhow::Result<Option<Vec<ReplayPods>>> {
    let mut pods = Vec::new();
    for path in &arguments.profiles {
        let any = ProfileEnv::default();
        let own = match check(path, &any)? {
            Ok(profile) => given.for_profile(&profile),
            // Checked again below, with the roles.
            Err(_) => given.clone(),
        };
        let env = ProfileEnv { roles: Some(own.roles()), ..ProfileEnv::default() };
        match check(path, &env)? {
            Ok(profile) if profile.is_one_call_or_handover() => pods.push(own),
            Ok(profile) => {
                let steps = profile.graph().steps.iter().map(|step| step.name.as_str());
                eprintln!(
                    "{}: a plan has the steps {}; a replay runs one step, or a prefill whose KV cache the second step \
                     takes, both without `bind: late`",
                    path.display(),
                    steps.collect::<Vec<_>>().join(", ")
                );
            }
            Err(problems) => eprint!("{problems}"),
        }
    }
    Ok((pods.len() == arguments.profiles.len()).then_some(pods))
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
    // All profiles are checked before a run of minutes.
    let Some(given) = given_pods(arguments)? else {
        return Ok(ExitCode::from(BAD_CONFIGURATION));
    };
    let Some(pods) = checked_pods(arguments, &given)? else {
        return Ok(ExitCode::from(BAD_CONFIGURATION));
    };
    let engine = engine_profile(&arguments.engine)?;
    let trace = trace_file::read(&arguments.trace, arguments.block_size)?;
    let copies = copies(&trace, arguments.copies)?;
    let (requests, replies, cacheable) = {
        let copied = trace.clone().cloned(copies, 1);
        let cacheable = copied.ideal_hit_tokens() as f64 / copied.prompt_tokens() as f64;
        let replies = copied.replies().iter().filter(|reply| !reply.is_empty()).count();
        (copied.turns.len(), replies, cacheable)
    };
    let replies = match replies {
        0 => String::new(),
        replies => format!(", {replies} replies cached"),
    };
    let file = arguments.trace.display().to_string();
    let facts = format!(
        "{requests} requests in blocks of {} tokens{replies}, ideal hit rate {cacheable:.3}; on {} engines {}, speed {speed}, {} run(s)",
        trace.block_size,
        given.all(),
        given.shown(&engine),
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
    for (path, pods) in arguments.profiles.iter().zip(&pods) {
        let yaml = read(path)?;
        let name = name(path, &arguments.profiles);
        let mut runs = Vec::new();
        for seed in 1..=arguments.seeds {
            let traffic = trace.clone().cloned(copies, seed);
            let traffic = traffic.jittered(arguments.jitter, seed).faster(speed);
            let fleet = ReplayFleet {
                kv_tokens: arguments.kv_tokens,
                host_tokens: arguments.host_tokens,
                disk_tokens: arguments.disk_tokens,
                events_delay: arguments.events_delay,
                ..pods.fleet(&engine, seed)
            };
            let source = path.display().to_string();
            let title = format!("{name}, run {seed} of {}", arguments.seeds);
            let bar = progress.begin(title, traffic.turns.len());
            let profile = ProfileText { name: &source, yaml: &yaml };
            let mut watch = |ended: usize| bar.set_position(ended as u64);
            let records = replay_with_progress(&traffic, profile, &fleet, &mut watch)?;
            runs.push(Summary::of(&traffic, &records, pods.all()));
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
        let pods = given.all();
        let runs = first_runs.iter();
        let runs = runs.map(|(name, trace, records)| ReplayRun { name, trace, records, pods });
        let page = html::page(&file, &facts, &runs.collect::<Vec<_>>());
        output_files::write(path, &page)?;
    }
    Ok(ExitCode::SUCCESS)
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
