//! `wornpath run`: a file of prompts, planned, sent to engines, and every line answered once.

mod order;
mod prepare;
mod progress;

use crate::numbers;
use crate::run::order::put_in_order;
use crate::run::prepare::{PreparedRun, RunStart, paths, set_out};
use crate::run::progress::Display;
use crate::server::CertificateArguments;
use anyhow::Context;
use clap::Args;
use std::io::Write;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{Instant, sleep};
use wornpath_jobs::{Publish, RealDisk, Results, RunControl, RunProgress, TokenUsage};

/// Every line has a record, and some of them say that it failed.
const SOME_FAILED: u8 = 1;
/// It ended early: `--resume` runs the rest.
const UNFINISHED: u8 = 3;
/// Ended by a signal, as shells say it.
const INTERRUPTED: u8 = 130;

/// Said of a run that ends by an error. What has been published stays.
const CANNOT_GO_ON: &str =
    "the run cannot go on; once what stands below is cured, run the rest with --resume";

/// Bytes of chains of hashes in memory: those of a million lines of 16 blocks, about.
pub(crate) const PLANNING_MEMORY: usize = 128 << 20;

/// What `--help` says after the options.
const MORE: &str = "\
Lines are OpenAI's batch lines (custom_id, url, body) or bodies alone (messages, prompt or input). Results have
the form of OpenAI's batch output and appear as they are ready; lines that failed for good are in
<output>.errors.jsonl. <output>.progress says what of both counts: with it, --resume runs exactly the rest,
whether the run was interrupted, killed, or lost its power.

Exit status: 0 all answered, 1 some lines failed, 3 ended before all was done, 130 interrupted.

Examples:
  wornpath run prompts.jsonl -o out.jsonl --pod http://a:8000 --pod http://b:8000
  wornpath run prompts.jsonl -o out.jsonl --pod http://a:8000 --resume --deadline 2h";

/// Run a file of prompts on engines, in the order that computes every shared prefix about once
#[derive(Args)]
#[command(after_long_help = MORE)]
pub(crate) struct RunArguments {
    /// The prompts, one JSON object a line
    prompts: PathBuf,
    /// Where results go
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    /// Address of an engine; may be given again
    #[arg(long = "pod", value_name = "URL", required = true, num_args = 1..)]
    pods: Vec<String>,
    /// Go on with a run that did not end
    #[arg(long)]
    resume: bool,
    /// Stop after this time, like 90s, 30m or 2h; the rest can be resumed
    #[arg(long, value_name = "TIME", value_parser = duration)]
    deadline: Option<Duration>,
    /// Results in the order of the prompts; they appear when all are there
    #[arg(long)]
    preserve_order: bool,
    /// Compute lines with equal bodies once, if they are deterministic: temperature 0, a seed, or embeddings
    #[arg(long)]
    identical_once: bool,
    /// Requests that an engine gets at once, at most
    #[arg(long, default_value = "256", value_name = "REQUESTS")]
    window: NonZeroUsize,
    /// Engine profile that pods are assumed to be like, to balance them
    #[arg(long, default_value = "8b-h200")]
    engine: String,
    /// Folder with the model's tokenizer.json; without one, four bytes count as a token
    #[arg(long, value_name = "FOLDER")]
    tokenizer: Option<PathBuf>,
    /// Tokens per block of the engines' caches
    #[arg(long, default_value = "16", value_parser = numbers::block_size)]
    block_size: NonZeroUsize,
    /// Tokens that an answer is expected to have, where a line does not say
    #[arg(long, default_value_t = 256)]
    output_tokens: usize,
    /// Key that engines want to see
    #[arg(long, env = "WORNPATH_API_KEY", hide_env_values = true)]
    api_key: Option<String>,
    #[command(flatten)]
    certificates: CertificateArguments,
    /// Give up when no engine can be reached for this time
    #[arg(long, value_name = "TIME", default_value = "10m", value_parser = duration)]
    give_up_after: Duration,
    /// Bytes of hashes that planning keeps in memory; what is more goes to disk
    #[arg(long, hide = true, value_name = "BYTES", default_value_t = PLANNING_MEMORY)]
    planning_memory: usize,
}

/// `90s`, `30m`, `2h`, `1d`.
fn duration(text: &str) -> Result<Duration, String> {
    let wrong = || format!("`{text}` is no time; write it like 90s, 30m, 2h or 1d");
    let (number, unit) = text.split_at_checked(text.len().saturating_sub(1)).ok_or_else(wrong)?;
    let seconds = match unit {
        "s" => 1,
        "m" => 60,
        "h" => 3_600,
        "d" => 86_400,
        _ => return Err(wrong()),
    };
    let number: u64 = number.parse().map_err(|_| wrong())?;
    number.checked_mul(seconds).map(Duration::from_secs).ok_or_else(wrong)
}

/// Why a run ends before its end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Early {
    Interrupted,
    Deadline,
    NoPods,
}

/// Runs the file.
pub(crate) fn run(arguments: &RunArguments, out: &mut impl Write) -> anyhow::Result<ExitCode> {
    let trip = match set_out(arguments)? {
        RunStart::Go(trip) => *trip,
        RunStart::Done { failed } => {
            writeln!(out, "{}: all lines are there, nothing to do", arguments.output.display())?;
            if failed == 0 {
                return Ok(ExitCode::SUCCESS);
            }
            writeln!(out, "failed lines: {}", paths(arguments).errors.display())?;
            return Ok(ExitCode::from(SOME_FAILED));
        }
    };
    let PreparedRun { input, paths, predicted, work, .. } = &trip;
    let (input, paths, predicted) = (*input, paths.clone(), *predicted);
    let copies = work.copies.count();
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let before = trip.results.usage();
    let (results, early, time) = runtime.block_on(drive(trip, arguments))?;
    let (counts, usage) = (results.counts(), results.usage());
    let is_without_errors = results.ends()[1] == 0;
    drop(results);
    if counts.pending() == 0 {
        if arguments.preserve_order {
            put_in_order(&RealDisk, &paths, input, &arguments.output)?;
        }
        if is_without_errors {
            std::fs::remove_file(&paths.errors)
                .with_context(|| format!("cannot remove {}", paths.errors.display()))?;
        }
    }
    let (name, seconds) = (arguments.output.display(), time.as_secs_f64());
    writeln!(
        out,
        "{name}: {} of {} lines answered, {} failed, {} left, in {seconds:.1} s",
        counts.completed,
        counts.total,
        counts.failed,
        counts.pending()
    )?;
    let observed = TokenUsage {
        input: usage.input - before.input,
        cached: usage.cached - before.cached,
        output: usage.output - before.output,
    };
    if observed.input > 0 {
        let share = 100.0 * observed.cached as f64 / observed.input as f64;
        let predicted = 100.0 * predicted;
        writeln!(
            out,
            "{} prompt tokens, {share:.1}% of them from caches (predicted: {predicted:.1}%); {} output tokens",
            observed.input, observed.output
        )?;
    }
    if copies > 0 {
        writeln!(out, "{copies} lines are equal to others and were not computed")?;
    }
    if counts.failed > 0 {
        writeln!(out, "failed lines: {}", paths.errors.display())?;
    }
    Ok(match early {
        None if counts.failed > 0 => ExitCode::from(SOME_FAILED),
        None => ExitCode::SUCCESS,
        Some(early) => {
            let why = match early {
                Early::Interrupted => "interrupted",
                Early::Deadline => "the deadline has come",
                Early::NoPods => "no engine can be reached",
            };
            writeln!(out, "{why}; run the rest with --resume")?;
            ExitCode::from(if early == Early::Interrupted { INTERRUPTED } else { UNFINISHED })
        }
    })
}

/// Runs until all is done, or until a reason to stop.
async fn drive(
    trip: PreparedRun,
    arguments: &RunArguments,
) -> anyhow::Result<(Results, Option<Early>, Duration)> {
    let started = Instant::now();
    let (wish, wishes) = watch::channel(RunControl::GoOn);
    let (progress, seen) = watch::channel(RunProgress::default());
    let PreparedRun { conductor, work, pods, results, .. } = trip;
    let channels = (wishes, progress);
    let mut running =
        tokio::spawn(wornpath_jobs::run(conductor, work, Arc::new(pods), results, channels));
    let display = tokio::spawn(Display::start(seen.clone(), arguments.pods.clone()).show());
    let early = tokio::select! {
        finished = &mut running => {
            display.abort();
            let finished = finished?.context(CANNOT_GO_ON)?;
            return Ok((finished.publisher, None, started.elapsed()));
        }
        ended = wornpath_gateway::shutdown_signal() => { ended?; Early::Interrupted }
        () = until(arguments.deadline) => Early::Deadline,
        () = nobody_there(seen, arguments) => Early::NoPods,
    };
    wish.send_replace(RunControl::Stop);
    let finished = running.await?.context(CANNOT_GO_ON)?;
    display.abort();
    // Its line is finished before anything else is said.
    let _ = display.await;
    if let (Early::NoPods, Some((pod, why))) = (early, finished.progress.trouble) {
        let _ = writeln!(std::io::stderr(), "{}: {why}", arguments.pods[pod]);
    }
    if let Some(why) = finished.progress.blocked {
        let _ = writeln!(std::io::stderr(), "the last answers were not kept: {why}");
    }
    Ok((finished.publisher, Some(early), started.elapsed()))
}

async fn until(deadline: Option<Duration>) {
    match deadline {
        Some(deadline) => sleep(deadline).await,
        None => std::future::pending().await,
    }
}

/// Ends when no pod could be reached for too long.
async fn nobody_there(mut seen: watch::Receiver<RunProgress>, arguments: &RunArguments) {
    let all = arguments.pods.len();
    loop {
        if seen.wait_for(|progress| progress.gone == all).await.is_err() {
            return std::future::pending().await;
        }
        tokio::select! {
            () = sleep(arguments.give_up_after) => return,
            back = seen.wait_for(|progress| progress.gone < all) => drop(back),
        }
    }
}
