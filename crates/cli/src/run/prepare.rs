//! Everything that a run needs before its first request: input, plan, results so far, engines.

use super::RunArguments;
use crate::address;
use crate::engine::profile as engine_profile;
use crate::fleet::tokenizer;
use crate::input;
use anyhow::{Context, bail, ensure};
use hyper::header::HeaderValue;
use std::fs::File;
use std::io::{BufReader, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use wornpath_blocks::HashKey;
use wornpath_execution::{EgressPolicy, Timeouts};
use wornpath_gateway::fleet::discovery::read as read_metrics;
use wornpath_jobs::{
    BatchPods, DedupGroups, ExternalSort, Identical, Input, InputError, InputFile, InputMark,
    InputRules, LineForm, PromptHasher, RealDisk, RecordKind, ResultPaths, ResultPosition, Results,
    RetryPolicy, RunWork, Scheduler, SortScratch, places,
};
use wornpath_planner::{Plan, PodLoad, Speeds, Window};
use wornpath_sim::offline::{OfflineEngines, rates};

/// How many bad lines are named.
const NAMED_LINES: usize = 10;
/// Where results go first that are to be in order.
const UNORDERED: &str = ".unordered";

/// A run that can begin.
pub(super) struct PreparedRun {
    pub(super) input: InputMark,
    pub(super) paths: ResultPaths,
    pub(super) results: Results,
    pub(super) conductor: Scheduler,
    pub(super) work: RunWork,
    pub(super) pods: BatchPods,
    /// The share of prompt tokens that need not be computed.
    pub(super) predicted: f64,
}

/// What there is to do.
pub(super) enum RunStart {
    Go(Box<PreparedRun>),
    /// All lines have their records, and so many of them failed.
    Done {
        failed: usize,
    },
}

/// Reads, plans and opens.
pub(super) fn set_out(arguments: &RunArguments) -> anyhow::Result<RunStart> {
    let (pods, paths) = (pods(arguments)?, paths(arguments));
    check_paths(arguments, &paths)?;
    let intake = intake(arguments)?;
    let input = intake.mark;
    if arguments.resume && arguments.output.exists() {
        let log = paths.log.display();
        ensure!(paths.log.exists(), "there is no {log}; a run without it cannot be resumed");
        let places = places(&RealDisk, &paths, input)?;
        if places.len() == input.lines as usize {
            check_whole(&places, [&arguments.output, &paths.errors])?;
            let failed = places.iter().filter(|place| place.kind == RecordKind::Error).count();
            return Ok(RunStart::Done { failed });
        }
        ensure!(
            !arguments.preserve_order || is_empty(&arguments.output),
            "{log}: this run was begun without --preserve-order; leave that option out"
        );
    }
    // What may be wrong with the command is found before there are files.
    let engines = OfflineEngines { engine: engine_profile(&arguments.engine)?, kv_tokens: None };
    let speeds = Speeds::equal(arguments.pods.len())?;
    let results = Results::open(&RealDisk, &paths, input)?;
    let forest = intake.forest(|line| !results.is_done(line))?;
    let prompt_tokens = forest.prompt_tokens(&intake.queue);
    let plan = Plan::of_forest(&intake.queue, forest, &speeds, &rates(&engines));
    if let Some(deadline) = arguments.deadline.filter(|deadline| plan.finish() > *deadline) {
        let (needs, has) = (plan.finish().as_secs(), deadline.as_secs());
        let engine = &arguments.engine;
        // That nobody reads it is no reason not to run.
        let _ = writeln!(
            std::io::stderr(),
            "engines like {engine} would need {needs} s and the deadline is in {has} s: some lines will be left"
        );
    }
    let predicted = 1.0 - plan.planned_tokens() as f64 / prompt_tokens.max(1) as f64;
    let window = Window::new(arguments.window.get(), engines.engine.max_step_tokens());
    let copies = DedupGroups::of(&plan);
    let conductor =
        Scheduler::new(plan, vec![window; arguments.pods.len()], RetryPolicy::default());
    let file = open(&arguments.prompts)?;
    let source = Arc::new(InputFile::new(arguments.prompts.clone(), file, intake.spans));
    let numbers = Arc::clone(&source);
    let work = RunWork {
        source,
        name: format!("{:016x}", input.hash),
        numbers: Arc::new(move |line| numbers.number(line)),
        copies,
    };
    let trip = PreparedRun { input, paths, results, conductor, work, pods, predicted };
    Ok(RunStart::Go(Box::new(trip)))
}

/// Whether all that was published is in the files, of output and of errors.
fn check_whole(places: &[ResultPosition], files: [&PathBuf; 2]) -> anyhow::Result<()> {
    for (kind, file) in [RecordKind::Output, RecordKind::Error].into_iter().zip(files) {
        let records = places.iter().filter(|place| place.kind == kind);
        let expected: u64 = records.map(|place| u64::from(place.bytes)).sum();
        let found = std::fs::metadata(file).map_or(0, |found| found.len());
        ensure!(
            found >= expected,
            "{}: found {found} bytes, and {expected} were published; it is damaged: bring it back, or run again to another output",
            file.display()
        );
    }
    Ok(())
}

/// Nothing that is there is overwritten, and a run goes on in the files that it was begun with.
fn check_paths(arguments: &RunArguments, paths: &ResultPaths) -> anyhow::Result<()> {
    ensure!(
        arguments.output != Path::new("-"),
        "results cannot go to standard output: what is there is read again with --resume; name a file"
    );
    let input = arguments.prompts.canonicalize().ok();
    for path in [&arguments.output, &paths.output, &paths.errors, &paths.log] {
        let name = path.display();
        ensure!(
            !path.exists() || path.canonicalize().ok() != input,
            "{name} is the input, which would be overwritten; name another output"
        );
        ensure!(
            arguments.resume || !path.exists(),
            "{name} exists; go on with --resume, or name another output"
        );
    }
    let log = paths.log.display();
    ensure!(
        arguments.preserve_order || is_empty(&beside(&arguments.output, UNORDERED)),
        "{log}: this run was begun with --preserve-order; give that option again"
    );
    Ok(())
}

fn is_empty(path: &Path) -> bool {
    std::fs::metadata(path).map_or(true, |found| found.len() == 0)
}

fn pods(arguments: &RunArguments) -> anyhow::Result<BatchPods> {
    for (at, url) in arguments.pods.iter().enumerate() {
        ensure!(!arguments.pods[..at].contains(url), "--pod {url} is given twice; give it once");
        address::check("--pod", url)?;
        address::refuse_version("--pod", url)?;
    }
    let secret = arguments.pods.iter().find(|url| url.starts_with("https://"));
    let tls = secret.map(|url| arguments.certificates.read_for("--pod", url)).transpose()?;
    let reach = EgressPolicy { allowed: None, tls: tls.flatten() };
    let key = arguments.api_key.as_ref().map(|key| {
        let mut value = HeaderValue::from_str(&format!("Bearer {key}"))
            .context("--api-key has characters that no header can have")?;
        value.set_sensitive(true);
        anyhow::Ok(value)
    });
    // Batches are patient: what counts is that answers come at all.
    let patient =
        Timeouts { first_byte: std::time::Duration::from_secs(3_600), ..Timeouts::default() };
    Ok(BatchPods::at(&arguments.pods, reach, patient, key.transpose()?, vitals)?)
}

fn vitals(page: &str) -> Option<PodLoad> {
    let reported = read_metrics(page, None)?;
    Some(PodLoad {
        running: reported.running as usize,
        waiting: reported.waiting as usize,
        kv_usage: reported.kv_usage,
    })
}

fn intake(arguments: &RunArguments) -> anyhow::Result<Input> {
    let tokenizer = match &arguments.tokenizer {
        Some(folder) => Some(tokenizer(Path::new(""), &folder.to_string_lossy())?),
        None => None,
    };
    let sketcher = PromptHasher::new(&HashKey::DEFAULT, arguments.block_size, tokenizer);
    let rules = InputRules {
        form: LineForm::Free,
        most_lines: u32::MAX as usize - 1,
        output_tokens: arguments.output_tokens,
        most_problems: NAMED_LINES,
        identical: match arguments.identical_once {
            true => Identical::Once,
            false => Identical::Each,
        },
    };
    let file = BufReader::with_capacity(1 << 20, open(&arguments.prompts)?);
    let name = arguments.prompts.display();
    let scratch = SortScratch {
        path: beside(&arguments.output, ".spill"),
        cure: "write the output elsewhere",
        memory: arguments.planning_memory,
    };
    match Input::read_long(file, &rules, &sketcher, ExternalSort::to(scratch)) {
        Ok(intake) => Ok(intake),
        Err(InputError::Lines { count, first }) => {
            let mut text = format!("{name}: {count} of its lines cannot be run");
            for (number, problem) in first {
                text.push_str(&format!("\n  line {number}: {problem}"));
            }
            bail!(text)
        }
        Err(error) => bail!("{name}: {error}"),
    }
}

fn open(path: &Path) -> anyhow::Result<File> {
    let (name, cannot) = (path.display(), || format!("cannot read {}", path.display()));
    // Before it is opened: a pipe that nobody writes to would be waited for.
    let is_file = std::fs::metadata(path).with_context(cannot)?.is_file();
    ensure!(is_file, "{name} is no file; its lines are read again when they are run, so give one");
    input::refuse_packed(path)?;
    File::open(path).with_context(cannot)
}

pub(super) fn paths(arguments: &RunArguments) -> ResultPaths {
    let beside = |suffix: &str| beside(&arguments.output, suffix);
    let output = match arguments.preserve_order {
        true => beside(UNORDERED),
        false => arguments.output.clone(),
    };
    ResultPaths { output, errors: beside(".errors.jsonl"), log: beside(".progress") }
}

fn beside(output: &Path, suffix: &str) -> PathBuf {
    let mut name = output.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}
