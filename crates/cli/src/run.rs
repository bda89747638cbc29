//! `wornpath run`: plans a file of prompts and sends it to engines; every line gets one result.

mod arguments;
mod failed_lines;
mod output;
mod prepare;
mod progress;

use anyhow::Context;
pub(crate) use arguments::RunArguments;
use output::{paths, put_in_order};
use prepare::{PreparedRun, RunStart, prepare};
use progress::Display;
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};
use wornpath_jobs::{Publish, RealDisk, Results, RunChannels, RunControl, RunProgress, TokenUsage};

/// Exit status if every line has a result, and some failed.
const SOME_FAILED: u8 = 1;
/// Exit status if the run ended early: `--resume` runs the rest.
const UNFINISHED: u8 = 3;
/// Exit status after a signal, by the convention of shells.
pub(crate) const INTERRUPTED: u8 = 130;

/// Context of an error that ends a run. Published results stay.
const RUN_FAILED: &str = "run failed; fix the error below, then run the rest with --resume";

/// Why a run stops before all lines are done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum EarlyStop {
    Interrupted,
    Deadline,
    NoPods,
}

pub(crate) fn run(arguments: &RunArguments, out: &mut impl Write) -> anyhow::Result<ExitCode> {
    let prepared = match prepare(arguments)? {
        RunStart::Go(prepared) => *prepared,
        RunStart::Done { failed } => {
            writeln!(out, "{}: all lines are done, nothing to do", arguments.output.display())?;
            if failed == 0 {
                return Ok(ExitCode::SUCCESS);
            }
            let errors = paths(arguments).errors;
            report_failures(&errors, out)?;
            return Ok(ExitCode::from(SOME_FAILED));
        }
    };
    let input = prepared.input;
    let paths = prepared.paths.clone();
    let predicted = prepared.predicted;
    let duplicates = prepared.work.copies.count();
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let before = prepared.results.usage();
    let Finished { results, early, time } = runtime.block_on(drive(prepared, arguments))?;
    let counts = results.counts();
    let usage = results.usage();
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
    let name = arguments.output.display();
    let seconds = time.as_secs_f64();
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
        let caches = predicted.map_or_else(String::new, |predicted| {
            let predicted = 100.0 * predicted;
            format!(", {share:.1}% of them from caches (predicted: {predicted:.1}%)")
        });
        writeln!(
            out,
            "{} prompt tokens{caches}; {} output tokens",
            observed.input, observed.output
        )?;
    }
    if duplicates > 0 {
        writeln!(out, "{duplicates} duplicate lines were not computed again")?;
    }
    if counts.failed > 0 {
        report_failures(&paths.errors, out)?;
    }
    Ok(match early {
        None if counts.failed > 0 => ExitCode::from(SOME_FAILED),
        None => ExitCode::SUCCESS,
        Some(early) => {
            let reason = match early {
                EarlyStop::Interrupted => "interrupted",
                EarlyStop::Deadline => "deadline exceeded",
                EarlyStop::NoPods => "no engine reachable",
            };
            writeln!(out, "{reason}; run the rest with --resume")?;
            ExitCode::from(if early == EarlyStop::Interrupted { INTERRUPTED } else { UNFINISHED })
        }
    })
}

/// Writes why lines failed, the first of each kind, and where all of them are.
fn report_failures(errors: &Path, out: &mut impl Write) -> anyhow::Result<()> {
    failed_lines::count(errors)?.report(out)?;
    Ok(writeln!(out, "failed lines: {}", errors.display())?)
}

/// A run that has ended.
struct Finished {
    results: Results,
    /// None if all lines are done.
    early: Option<EarlyStop>,
    time: Duration,
}

/// Runs until all lines are done, or until a reason to stop.
async fn drive(prepared: PreparedRun, arguments: &RunArguments) -> anyhow::Result<Finished> {
    let started = Instant::now();
    let (control, controls) = watch::channel(RunControl::GoOn);
    let (progress, seen) = watch::channel(RunProgress::default());
    let PreparedRun { scheduler, work, pods, results, paths, .. } = prepared;
    let channels = RunChannels { control: controls, progress };
    let mut running =
        tokio::spawn(wornpath_jobs::run(scheduler, work, Arc::new(pods), results, channels));
    let display = Display::start(seen.clone(), arguments.pods.clone(), paths.errors);
    let display = tokio::spawn(display.show());
    let early = tokio::select! {
        finished = &mut running => {
            end(display).await;
            let results = finished?.context(RUN_FAILED)?.publisher;
            return Ok(Finished { results, early: None, time: started.elapsed() });
        }
        ended = wornpath_gateway::shutdown_signal() => { ended?; EarlyStop::Interrupted }
        () = until(arguments.deadline) => EarlyStop::Deadline,
        () = all_pods_unreachable(seen, arguments) => EarlyStop::NoPods,
    };
    control.send_replace(RunControl::Stop);
    let finished = running.await?.context(RUN_FAILED)?;
    end(display).await;
    if let (EarlyStop::NoPods, Some((pod, reason))) = (early, finished.progress.trouble) {
        let _ = writeln!(std::io::stderr(), "{}: {reason}", arguments.pods[pod]);
    }
    if let Some(reason) = finished.progress.blocked {
        let _ = writeln!(std::io::stderr(), "the last results were not written: {reason}");
    }
    Ok(Finished { results: finished.publisher, early: Some(early), time: started.elapsed() })
}

/// Ends the progress bar, so that it is complete before anything else is printed.
async fn end(display: JoinHandle<()>) {
    display.abort();
    // It was cancelled.
    let _ = display.await;
}

async fn until(deadline: Option<Duration>) {
    match deadline {
        Some(deadline) => sleep(deadline).await,
        None => std::future::pending().await,
    }
}

/// Returns when all pods have been unreachable for `--give-up-after`.
async fn all_pods_unreachable(mut seen: watch::Receiver<RunProgress>, arguments: &RunArguments) {
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
