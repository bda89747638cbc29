//! `wornpath plan`: predicts what planning a file of prompts would gain, before anything is sent.

mod arguments;
mod engine_cache;
mod forest;
mod html;
mod order;
mod prompts;
mod report;
mod timeline;

use crate::engine::profile as engine_profile;
use crate::output_files;
use anyhow::Context;
pub(crate) use arguments::PlanArguments;
use html::Drawing;
use prompts::Prompts;
use report::{PlanMethod, PlanReport, WholeFile};
use std::io::Write;
use std::time::Duration;
use timeline::{Kinds, Timeline};
use wornpath_config::builtin_profile;
use wornpath_planner::lint::lint;
use wornpath_planner::{Cohorts, Forest, Plan, PromptGroups, Speeds};
use wornpath_sim::offline::{self, OfflineEngines, least_time, rates};
use wornpath_sim::replay::{ProfileText, ReplayFleet, Trace, TraceStart, replay_with_reads};

/// Clients per pod when nothing is planned: this many, or as many sequences as an engine runs. The
/// faster counts, so that a plan gets no credit for what more connections would do as well.
const FEW_CLIENTS: usize = 32;
/// Clients per pod if prompts are so long that requests of more clients time out in the router.
const FEWER_CLIENTS: [usize; 2] = [8, 1];

pub(crate) fn run(arguments: &PlanArguments, out: &mut impl Write) -> anyhow::Result<()> {
    let mut engines = OfflineEngines {
        engine: engine_profile(&arguments.engine)?,
        kv_tokens: arguments.kv_tokens,
    };
    let caches = engine_cache::read_caches(&arguments.pod, &arguments.tls, arguments.block_size)?;
    // Plans are for equal engines: the smallest cache counts.
    engines.kv_tokens =
        caches.iter().filter_map(|cache| cache.kv_tokens).min().or(engines.kv_tokens);
    let outputs = [("--html", arguments.html.as_ref()), ("--order", arguments.order.as_ref())];
    output_files::check(&[&arguments.prompts], &outputs)?;
    let prompts = Prompts::read(arguments)?;
    if let Some(path) = &arguments.order {
        return order::write(path, &prompts, &engines, pods(arguments), out);
    }
    let (mut report, drawing) = report_of(arguments, &engines, &prompts)?;
    report.asked = caches.iter().map(|cache| cache.describe(engines.engine.name())).collect();
    if let (Some(path), Some(drawing)) = (&arguments.html, drawing) {
        output_files::write(path, &html::page(&report, &drawing))?;
    }
    if arguments.json {
        writeln!(out, "{}", serde_json::to_string_pretty(&report.to_json())?)?;
        return Ok(());
    }
    report.write(out)
}

/// The number of engines to plan for.
fn pods(arguments: &PlanArguments) -> usize {
    match arguments.pod.len() {
        0 => usize::from(arguments.pods),
        asked => asked,
    }
}

fn report_of(
    arguments: &PlanArguments,
    engines: &OfflineEngines,
    prompts: &Prompts,
) -> anyhow::Result<(PlanReport, Option<Drawing>)> {
    let pods = pods(arguments);
    let trace = &prompts.trace;
    let forest = prompts.forest()?;
    let groups = PromptGroups::of(forest.shared().iter().copied());
    let biggest = report::biggest(&prompts.queue, &forest, &groups, prompts);
    let cells = arguments.html.as_ref().map(|_| forest::cells(&groups, &forest, prompts));
    let is_part = trace.turns.len() < prompts.queue.len();
    let whole = is_part.then(|| WholeFile {
        requests: prompts.queue.len(),
        prompt_tokens: forest.prompt_tokens(&prompts.queue),
        least_tokens: forest.least_tokens(&prompts.queue),
    });
    let part = is_part.then(|| offline::queue_of(trace, |turn| turn.output_tokens)).transpose()?;
    let (queue, forest) = match &part {
        Some(part) => (part, Forest::of(part)),
        None => (&prompts.queue, forest),
    };
    let longest = forest.longest_tokens(queue);
    anyhow::ensure!(
        longest <= engines.kv_tokens(),
        "the longest prompt with its answer has {longest} tokens, more than the {} of an engine's KV cache; \
         give a larger --engine or --kv-tokens, or shorten the prompt",
        engines.kv_tokens()
    );
    let bound = least_time(queue, &forest, engines, pods);
    let kinds = arguments
        .html
        .as_ref()
        .map(|_| Kinds::of(&PromptGroups::of(forest.shared().iter().copied()), &forest, prompts));
    let least_tokens = forest.least_tokens(queue);
    let prompt_tokens = forest.prompt_tokens(queue);
    let plan = Plan::of_forest(queue, forest, &Speeds::equal(pods)?, &rates(engines));
    let cohorts = Cohorts::of(queue, &plan, engines.engine.max_sequences(), engines.kv_tokens());
    let decode_groups = plan.decode_groups().len();
    let (ran, records) = offline::run_recorded(trace, plan, engines)?;
    let ways = vec![
        simulate_online("file order", trace, builtin("round-robin"), engines, pods)?,
        simulate_online("online routing", trace, builtin("cache-aware"), engines, pods)?,
        PlanMethod {
            name: "plan",
            computed: ran.computed_tokens,
            makespan: ran.makespan,
            kv_reads: ran.kv_reads,
        },
    ];
    let sample: Vec<&str> = prompts.sample.iter().map(|(_, text)| text.as_str()).collect();
    let mut findings = lint(&sample, 4 * arguments.block_size.get());
    for finding in &mut findings {
        let line = |number: usize| prompts.sample[number].0;
        finding.example = (line(finding.example.0), line(finding.example.1));
    }
    let timeline = kinds.map(|kinds| Timeline::of(&records, pods, kinds));
    let drawing = cells.zip(timeline).map(|(cells, timeline)| Drawing {
        cells,
        timeline,
        linted: prompts.sample.len(),
    });
    let report = PlanReport {
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
        cohorts,
        decode_groups,
        kv_bytes_per_token: engines.engine.kv_bytes_per_token(),
        has_cascade: engines.engine.step_cost().cascade.is_some(),
        findings,
        whole,
        asked: Vec::new(),
        price_per_hour: arguments.price_per_hour,
    };
    Ok((report, drawing))
}

fn builtin(name: &'static str) -> ProfileText<'static> {
    let yaml = builtin_profile(name).expect("the name of a built-in profile");
    ProfileText { name, yaml }
}

/// Simulates the file in its order through the router, with the best number of clients.
fn simulate_online(
    name: &'static str,
    trace: &Trace,
    profile: ProfileText<'static>,
    engines: &OfflineEngines,
    pods: usize,
) -> anyhow::Result<PlanMethod> {
    let fleet = ReplayFleet {
        kv_tokens: engines.kv_tokens,
        ..ReplayFleet::new(engines.engine.clone(), pods, 1)
    };
    let mut best: Option<PlanMethod> = None;
    for clients in [FEW_CLIENTS, engines.engine.max_sequences()] {
        let way = simulate_clients(clients * pods, name, trace.clone(), profile, &fleet)?;
        best = best.into_iter().chain(way).min_by_key(|way| way.makespan);
    }
    for clients in FEWER_CLIENTS {
        if best.is_none() {
            best = simulate_clients(clients * pods, name, trace.clone(), profile, &fleet)?;
        }
    }
    best.with_context(|| format!("{name}: simulated requests fail with any number of clients"))
}

/// Simulates a number of clients; none if a request fails, as when it waits too long in the router.
fn simulate_clients(
    clients: usize,
    name: &'static str,
    mut trace: Trace,
    profile: ProfileText<'static>,
    fleet: &ReplayFleet,
) -> anyhow::Result<Option<PlanMethod>> {
    for (number, turn) in trace.turns.iter_mut().enumerate() {
        turn.start = match number.checked_sub(clients) {
            Some(before) => TraceStart::After { turn: before, delay: Duration::ZERO },
            None => TraceStart::At(Duration::ZERO),
        };
    }
    let (records, kv_reads) = replay_with_reads(&trace, profile, fleet)?;
    let mut way = PlanMethod { name, computed: 0, makespan: Duration::ZERO, kv_reads };
    for (turn, record) in trace.turns.iter().zip(records) {
        let Some(end) = record.end else { return Ok(None) };
        way.makespan = way.makespan.max(end);
        way.computed += (turn.prompt_tokens - record.cached_tokens) as u64;
    }
    Ok(Some(way))
}
