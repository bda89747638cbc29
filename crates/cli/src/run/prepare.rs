//! Prepares a run: reads the input, plans it, opens the results so far, and connects the engines.

use super::arguments::RunArguments;
use super::output::{beside, check_complete, check_paths, is_empty, paths};
use crate::address;
use crate::engine::profile as engine_profile;
use crate::fleet::tokenizer;
use crate::input;
use crate::kv_cache::CacheConfig;
use anyhow::{Context, bail, ensure};
use hyper::header::HeaderValue;
use std::fs::File;
use std::io::{BufReader, Write};
use std::path::Path;
use std::sync::Arc;
use wornpath_blocks::HashKey;
use wornpath_execution::{EgressPolicy, Timeouts};
use wornpath_gateway::fleet::discovery::read as read_metrics;
use wornpath_jobs::{
    BatchPods, DedupGroups, DueTime, ExternalSort, Identical, Input, InputError, InputFile,
    InputMark, InputRules, LineForm, PromptHasher, RealDisk, RecordKind, ResultPaths,
    ResultPosition, Results, RetryPolicy, RunWork, Scheduler, SortScratch, places,
};
use wornpath_planner::{Plan, PodLoad, Speeds, Window};
use wornpath_sim::offline::{OfflineEngines, rates};

/// Invalid lines that the error lists.
const LISTED_LINES: usize = 10;

/// A run that is ready to start.
pub(super) struct PreparedRun {
    pub(super) input: InputMark,
    pub(super) paths: ResultPaths,
    pub(super) results: Results,
    pub(super) scheduler: Scheduler,
    pub(super) work: RunWork,
    pub(super) pods: BatchPods,
    /// Predicted share of prompt tokens that come from caches; none if no engine would report it.
    pub(super) predicted: Option<f64>,
}

pub(super) enum RunStart {
    Go(Box<PreparedRun>),
    /// All lines have results already, of which `failed` are errors.
    Done {
        failed: usize,
    },
}

pub(super) fn prepare(arguments: &RunArguments) -> anyhow::Result<RunStart> {
    let pods = pods(arguments)?;
    let paths = paths(arguments);
    check_paths(arguments, &paths)?;
    let lines = read_input(arguments)?;
    let input = lines.mark;
    if arguments.resume && arguments.output.exists() {
        let log = paths.log.display();
        ensure!(paths.log.exists(), "{log} is missing; a run without it cannot be resumed");
        let positions = places(&RealDisk, &paths, input)?;
        if positions.len() == input.lines as usize {
            check_complete(&positions, [&arguments.output, &paths.errors])?;
            let is_error = |position: &&ResultPosition| position.kind == RecordKind::Error;
            let failed = positions.iter().filter(is_error).count();
            return Ok(RunStart::Done { failed });
        }
        ensure!(
            !arguments.preserve_order || is_empty(&arguments.output),
            "{log}: this run was started without --preserve-order; leave that option out"
        );
    }
    // Errors of the command line are found before files are created.
    let engines = OfflineEngines { engine: engine_profile(&arguments.engine)?, kv_tokens: None };
    let speeds = Speeds::equal(arguments.pods.len())?;
    let results = Results::open(&RealDisk, &paths, input)?;
    let forest = lines.forest(|line| !results.is_done(line))?;
    let prompt_tokens = forest.prompt_tokens(&lines.queue);
    let plan = Plan::of_forest(&lines.queue, forest, &speeds, &rates(&engines));
    warn_of_late_lines(&plan, arguments);
    let share = 1.0 - plan.planned_tokens() as f64 / prompt_tokens.max(1) as f64;
    let predicted = lines.reuses_prefixes.then_some(share);
    let window = Window::new(arguments.window.get(), engines.engine.max_step_tokens());
    let copies = DedupGroups::of(&plan);
    let windows = vec![window; arguments.pods.len()];
    let scheduler = Scheduler::new(plan, windows, RetryPolicy::default());
    let file = open(&arguments.prompts)?;
    let source = Arc::new(InputFile::new(arguments.prompts.clone(), file, lines.spans));
    let numbers = Arc::clone(&source);
    let work = RunWork {
        source,
        name: format!("{:016x}", input.hash),
        numbers: Arc::new(move |line| numbers.number(line)),
        copies,
    };
    let prepared = PreparedRun { input, paths, results, scheduler, work, pods, predicted };
    Ok(RunStart::Go(Box::new(prepared)))
}

/// Only warnings: the run goes on if they cannot be written.
fn warn_of_late_lines(plan: &Plan, arguments: &RunArguments) {
    let engine = &arguments.engine;
    let needed = plan.finish().as_secs();
    let mut out = std::io::stderr();
    if let Some(deadline) = arguments.deadline.filter(|deadline| plan.finish() > *deadline) {
        let deadline = deadline.as_secs();
        let _ = writeln!(
            out,
            "the run needs about {needed} s on engines like {engine}, and the deadline is in {deadline} s: some lines will not be done"
        );
        return;
    }
    for class in plan.classes().iter().filter(|class| class.is_late()) {
        let needed = class.finish.as_secs();
        let deadline = class.deadline.unwrap_or_default().as_secs();
        let _ = writeln!(
            out,
            "the lines that are due in {deadline} s need about {needed} s on engines like {engine}: some of them will be late"
        );
    }
}

fn pods(arguments: &RunArguments) -> anyhow::Result<BatchPods> {
    for (at, url) in arguments.pods.iter().enumerate() {
        ensure!(!arguments.pods[..at].contains(url), "--pod {url} is given twice; give it once");
        address::check("--pod", url)?;
        address::refuse_version("--pod", url)?;
    }
    let over_tls = arguments.pods.iter().find(|url| url.starts_with("https://"));
    let tls = over_tls.map(|url| arguments.tls.read_for(url)).transpose()?;
    let egress = EgressPolicy { allowed: None, tls: tls.flatten() };
    let key = arguments.api_key.as_ref().map(|key| {
        let mut value = HeaderValue::from_str(&format!("Bearer {key}")).context(
            "--api-key has a character that no HTTP header may have, such as a line break",
        )?;
        value.set_sensitive(true);
        anyhow::Ok(value)
    });
    // Throughput matters here, not latency: an answer may take an hour.
    let timeouts =
        Timeouts { first_byte: std::time::Duration::from_secs(3_600), ..Timeouts::default() };
    Ok(BatchPods::at(&arguments.pods, egress, timeouts, key.transpose()?, parse_load)?)
}

fn parse_load(page: &str) -> Option<PodLoad> {
    let reported = read_metrics(page, None)?;
    Some(PodLoad {
        running: reported.running as usize,
        waiting: reported.waiting as usize,
        kv_usage: reported.kv_usage,
        kv_tokens: CacheConfig::parse(page).map(|cache| cache.tokens()),
    })
}

fn read_input(arguments: &RunArguments) -> anyhow::Result<Input> {
    let tokenizer = match &arguments.tokenizer {
        Some(folder) => Some(tokenizer(Path::new(""), &folder.to_string_lossy())?),
        None => None,
    };
    let hasher = PromptHasher::new(&HashKey::DEFAULT, arguments.block_size, tokenizer);
    let rules = InputRules {
        form: LineForm::Free,
        most_lines: u32::MAX as usize - 1,
        output_tokens: arguments.output_tokens,
        most_problems: LISTED_LINES,
        identical: match arguments.identical_once {
            true => Identical::Once,
            false => Identical::Each,
        },
        due: DueTime { left: arguments.deadline, ..DueTime::OPEN },
    };
    let file = BufReader::with_capacity(1 << 20, open(&arguments.prompts)?);
    let name = arguments.prompts.display();
    let scratch = SortScratch {
        path: beside(&arguments.output, ".spill"),
        cure: "write the output elsewhere",
        memory: arguments.planning_memory,
    };
    let chains = ExternalSort::to(scratch);
    match Input::read_bounded(file, &rules, &hasher, chains, input::MAX_LINE_BYTES) {
        Ok(lines) => Ok(lines),
        Err(InputError::Lines { count, first }) => {
            let mut text = format!("{name}: {count} invalid lines");
            for (number, problem) in first {
                text.push_str(&format!("\n  line {number}: {problem}"));
            }
            bail!(text)
        }
        Err(error) => bail!("{name}: {error}"),
    }
}

fn open(path: &Path) -> anyhow::Result<File> {
    let cannot_read = || format!("cannot read {}", path.display());
    // Checked before it is opened: opening a pipe without a writer would block.
    let is_file = std::fs::metadata(path).with_context(cannot_read)?.is_file();
    ensure!(
        is_file,
        "{} is not a regular file; lines are read again when they are sent, so give a file",
        path.display()
    );
    input::refuse_gzip(path)?;
    File::open(path).with_context(cannot_read)
}
