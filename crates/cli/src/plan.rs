//! `wornpath plan`: what planning a file of prompts would bring, before anything is sent.

mod html;
mod options;
mod prompts;
mod report;

use crate::engine::profile as engine_profile;
use crate::numbers;
use crate::run::PLANNING_MEMORY;
use crate::server::CertificateArguments;
use anyhow::{Context, ensure};
use clap::Args;
use prompts::Prompts;
use report::{PlanMethod, PlanReport};
use std::io::Write;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::time::Duration;
use wornpath_planner::lint::lint;
use wornpath_planner::{Cohorts, Forest, Plan, PromptGroups, Speeds};
use wornpath_sim::offline::{self, OfflineEngines, least_time, rates};
use wornpath_sim::replay::{ReplayFleet, Trace, TraceStart, replay};

const ROUND_ROBIN: (&str, &str) =
    ("round-robin", include_str!("../../../profiles/round-robin.yaml"));
const CACHE_AWARE: (&str, &str) =
    ("cache-aware", include_str!("../../../profiles/cache-aware.yaml"));

/// Requests in flight per pod when nothing is planned: few, or as many as an engine runs. The faster counts, so
/// that a plan is never praised for what more connections would do as well.
const FEW_CLIENTS: usize = 32;
/// Where prompts are so long that the router gives some up with as many, there are these.
const FEWER_CLIENTS: [usize; 2] = [8, 1];

/// Say what planning a file of prompts would bring
///
/// Reads one JSON object a line: an OpenAI batch line (custom_id, url, body), a body alone (messages, prompt or
/// input), or a line of a trace (hash_ids, input_length, output_length). Simulates the file on engines in
/// three ways: in its own order, through the online router, and planned. No prompt is sent anywhere; with --pod
/// engines are asked how large their caches are. Of a file with more than 100000 requests the first so many are
/// simulated.
#[derive(Args)]
pub(crate) struct PlanArguments {
    /// The prompts
    prompts: PathBuf,
    /// Number of engines
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=256))]
    pods: u16,
    /// An engine to plan for, which is asked how large its cache is; may be given again
    #[arg(long = "pod", value_name = "URL", conflicts_with_all = ["pods", "kv_tokens"])]
    pod: Vec<String>,
    #[command(flatten)]
    certificates: CertificateArguments,
    /// Engine profile: a built-in name or the path of a JSON file
    #[arg(long, default_value = "8b-h200")]
    engine: String,
    /// Tokens that each engine's cache holds, if not as its profile says
    #[arg(long, value_parser = numbers::tokens)]
    kv_tokens: Option<usize>,
    /// Folder with the model's tokenizer.json; without one, four bytes count as a token
    #[arg(long, value_name = "FOLDER")]
    tokenizer: Option<PathBuf>,
    /// Tokens per block; traces have 512
    #[arg(long, default_value = "16", value_parser = numbers::block_size)]
    block_size: NonZeroUsize,
    /// Tokens that an answer is expected to have, where a line does not say
    #[arg(long, default_value_t = 256)]
    output_tokens: usize,
    /// What an engine costs per hour, to show costs in that currency
    #[arg(long, allow_negative_numbers = true, value_parser = numbers::price)]
    price_per_hour: Option<f64>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Also write a page with the forest drawn
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Bytes of hashes that planning keeps in memory; what is more goes to disk
    #[arg(long, hide = true, value_name = "BYTES", default_value_t = PLANNING_MEMORY)]
    planning_memory: usize,
}

/// Reads, plans, simulates and reports.
pub(crate) fn run(arguments: &PlanArguments, out: &mut impl Write) -> anyhow::Result<()> {
    let mut engines = OfflineEngines {
        engine: engine_profile(&arguments.engine)?,
        kv_tokens: arguments.kv_tokens,
    };
    let asked = options::ask(&arguments.pod, &arguments.certificates, arguments.block_size)?;
    // Plans are for equal engines: the smallest cache counts.
    engines.kv_tokens = asked.iter().filter_map(|pod| pod.kv_tokens).min().or(engines.kv_tokens);
    if let Some(page) = &arguments.html {
        let same = |one: &Path, other: &Path| one.canonicalize().ok() == other.canonicalize().ok();
        let is_input = page.exists() && same(page, &arguments.prompts);
        ensure!(!is_input, "--html {} is the input, which would be overwritten", page.display());
    }
    let prompts = Prompts::read(arguments)?;
    let mut report = report_of(arguments, &engines, &prompts)?;
    report.asked = asked.iter().map(|pod| pod.told(engines.engine.name())).collect();
    if let Some(path) = &arguments.html {
        let page = html::page(&report);
        std::fs::write(path, page).with_context(|| format!("cannot write {}", path.display()))?;
    }
    if arguments.json {
        writeln!(out, "{}", serde_json::to_string_pretty(&report.to_json())?)?;
        return Ok(());
    }
    report.write(out)
}

fn report_of(
    arguments: &PlanArguments,
    engines: &OfflineEngines,
    prompts: &Prompts,
) -> anyhow::Result<PlanReport> {
    let pods = match arguments.pod.len() {
        0 => usize::from(arguments.pods),
        asked => asked,
    };
    let trace = &prompts.trace;
    let forest = prompts.forest()?;
    let groups = PromptGroups::of(forest.shared().iter().copied());
    let biggest = report::biggest(&prompts.queue, &forest, &groups, prompts);
    let drawn = report::drawn(&groups, forest.order().len());
    let is_part = trace.turns.len() < prompts.queue.len();
    let whole = is_part.then(|| {
        let (all, least) =
            (forest.prompt_tokens(&prompts.queue), forest.least_tokens(&prompts.queue));
        (prompts.queue.len(), all, least)
    });
    let part = is_part.then(|| offline::queue_of(trace, |turn| turn.output_tokens)).transpose()?;
    let (queue, forest) = match &part {
        Some(part) => (part, Forest::of(part)),
        None => (&prompts.queue, forest),
    };
    let longest = forest.longest_tokens(queue);
    anyhow::ensure!(
        longest <= engines.kv_tokens(),
        "the longest prompt with its answer has {longest} tokens and an engine's cache holds {}; \
         take a larger --engine or --kv-tokens, or a shorter prompt",
        engines.kv_tokens()
    );
    let bound = least_time(queue, &forest, engines, pods);
    let (least_tokens, prompt_tokens) = (forest.least_tokens(queue), forest.prompt_tokens(queue));
    let plan = Plan::of_forest(queue, forest, &Speeds::equal(pods)?, &rates(engines));
    let cohorts = Cohorts::of(queue, &plan, engines.engine.max_sequences(), engines.kv_tokens());
    let ran = offline::run(trace, plan, engines)?;
    let ways = vec![
        online("file order", trace, ROUND_ROBIN, (engines, pods))?,
        online("online routing", trace, CACHE_AWARE, (engines, pods))?,
        PlanMethod { name: "plan", computed: ran.computed_tokens, makespan: ran.makespan },
    ];
    let sample: Vec<&str> = prompts.sample.iter().map(|(_, text)| text.as_str()).collect();
    let mut findings = lint(&sample, 4 * arguments.block_size.get());
    for finding in &mut findings {
        let line = |number: usize| prompts.sample[number].0;
        finding.example = (line(finding.example.0), line(finding.example.1));
    }
    Ok(PlanReport {
        file: arguments.prompts.display().to_string(),
        requests: trace.turns.len(),
        pods,
        engine: engines.engine.name().to_owned(),
        exact: prompts.exact,
        prompt_tokens,
        least_tokens,
        least_time: bound.least(),
        ways,
        biggest,
        drawn,
        cohorts,
        findings,
        whole,
        asked: Vec::new(),
        price_per_hour: arguments.price_per_hour,
    })
}

/// The file worked off in its order by the best number of clients.
fn online(
    name: &'static str,
    trace: &Trace,
    profile: (&str, &str),
    (engines, pods): (&OfflineEngines, usize),
) -> anyhow::Result<PlanMethod> {
    let fleet = ReplayFleet {
        kv_tokens: engines.kv_tokens,
        ..ReplayFleet::new(engines.engine.clone(), pods, 1)
    };
    let mut best: Option<PlanMethod> = None;
    for clients in [FEW_CLIENTS, engines.engine.max_sequences()] {
        let way = with_clients(clients * pods, name, trace.clone(), (profile, &fleet))?;
        best = best.into_iter().chain(way).min_by_key(|way| way.makespan);
    }
    for clients in FEWER_CLIENTS {
        if best.is_none() {
            best = with_clients(clients * pods, name, trace.clone(), (profile, &fleet))?;
        }
    }
    best.with_context(|| format!("{name}: simulated requests fail however few clients there are"))
}

/// None if some wait longer than the router lets them: so many clients are no way to do it.
fn with_clients(
    clients: usize,
    name: &'static str,
    mut trace: Trace,
    (profile, fleet): ((&str, &str), &ReplayFleet),
) -> anyhow::Result<Option<PlanMethod>> {
    for (number, turn) in trace.turns.iter_mut().enumerate() {
        turn.start = match number.checked_sub(clients) {
            Some(before) => TraceStart::After { turn: before, delay: Duration::ZERO },
            None => TraceStart::At(Duration::ZERO),
        };
    }
    let mut way = PlanMethod { name, computed: 0, makespan: Duration::ZERO };
    for (turn, record) in trace.turns.iter().zip(replay(&trace, profile, fleet)?) {
        let Some(end) = record.end else { return Ok(None) };
        way.makespan = way.makespan.max(end);
        way.computed += (turn.prompt_tokens - record.cached_tokens) as u64;
    }
    Ok(Some(way))
}
