//! `wornpath size`: finds the smallest fleet that meets latency objectives on recorded traffic.

mod arguments;
mod html;
mod report;

use crate::check::{BAD_CONFIGURATION, check, read};
use crate::engine::profile as engine_profile;
use crate::output_files;
use crate::progress::{SHARE, bar};
use crate::replay::{check_speed, copies};
use crate::trace_file;
use anyhow::ensure;
pub(crate) use arguments::SizeArguments;
use indicatif::ProgressBar;
use report::SizeReport;
use std::collections::BTreeMap;
use std::io::Write;
use std::process::ExitCode;
use wornpath_routing::{Problems, ProfileEnv, Role};
use wornpath_sim::replay::ProfileText;
use wornpath_sim::sizing::{CountSearch, Effort, FleetSize, Measured, Sizing, Tried};

/// Exit status if no fleet meets the objectives.
const NOT_MET: u8 = 1;
/// Cache sizes that are tried: so many parts of the engine's.
const CACHE_STEPS: usize = 16;

pub(crate) fn run(arguments: &SizeArguments, out: &mut impl Write) -> anyhow::Result<ExitCode> {
    check_speed(arguments.speed)?;
    let inputs = [&arguments.trace, &arguments.profile];
    output_files::check(&inputs, &[("--html", arguments.html.as_ref())])?;
    // Simulated engines serve whole requests.
    let roles = Some(vec![Role::named(Role::SERVE)]);
    let env = ProfileEnv { roles, ..ProfileEnv::default() };
    if let Err(problems) = check(&arguments.profile, &env)? {
        eprint!("{problems}");
        return Ok(ExitCode::from(BAD_CONFIGURATION));
    }
    let engine = engine_profile(&arguments.engine)?;
    let trace = trace_file::read(&arguments.trace, arguments.block_size)?;
    let copies = copies(&trace, arguments.copies)?;
    let run = |seed| {
        let copied = trace.clone().cloned(copies, seed);
        copied.jittered(arguments.jitter, seed).faster(arguments.speed)
    };
    let yaml = read(&arguments.profile)?;
    let profile = arguments.profile.display().to_string();
    let sizing = Sizing {
        runs: (1..=arguments.seeds).map(run).collect(),
        profile: ProfileText { name: &profile, yaml: &yaml },
        engine,
        objectives: arguments.objectives.clone(),
    };
    let kv_tokens = arguments.kv_tokens.unwrap_or(sizing.engine.kv_tokens());
    let longest = sizing.longest_request();
    ensure!(
        longest <= kv_tokens,
        "the longest prompt with its answer has {longest} tokens, more than the {kv_tokens} of an engine's KV cache, so \
         that it fails on any number of pods; give a larger --engine or --kv-tokens, or leave it out of the trace"
    );
    let mut trials = Trials::new(&sizing);
    let found = trials.least_pods(usize::from(arguments.max_pods), kv_tokens)?;
    let cache = match found {
        Some(pods) => Some(trials.least_cache(pods, kv_tokens)?),
        None => None,
    };
    trials.bar.finish_and_clear();
    let report = SizeReport::of(arguments, &sizing, trials, found, cache);
    if let Some(path) = &arguments.html {
        output_files::write(path, &report.html())?;
    }
    if arguments.json {
        writeln!(out, "{:#}", report.to_json())?;
    } else {
        report.write(out)?;
    }
    Ok(if found.is_some() { ExitCode::SUCCESS } else { ExitCode::from(NOT_MET) })
}

/// The fleets that were tried, and what each achieved.
struct Trials<'a> {
    sizing: &'a Sizing<'a>,
    measured: BTreeMap<FleetSize, Measured>,
    bar: ProgressBar,
}

impl<'a> Trials<'a> {
    fn new(sizing: &'a Sizing<'a>) -> Self {
        let requests = sizing.runs.first().map_or(0, |run| run.turns.len());
        Self { sizing, measured: BTreeMap::new(), bar: bar(requests as u64, SHARE) }
    }

    /// The smallest number of pods that meets the objectives; also measures its neighbours.
    fn least_pods(&mut self, most: usize, kv_tokens: usize) -> Result<Option<usize>, Problems> {
        let found = self.search(most, |pods| FleetSize { pods, kv_tokens })?;
        let figures: Vec<usize> = match found {
            Some(pods) => vec![pods - 1, pods, pods + 1],
            None => vec![most],
        };
        for pods in figures.into_iter().filter(|pods| (1..=256).contains(pods)) {
            self.attempt(FleetSize { pods, kv_tokens }, Effort::Whole)?;
        }
        Ok(found)
    }

    /// The smallest cache with which so many pods still meet the objectives, in steps; also
    /// measures one step less.
    fn least_cache(&mut self, pods: usize, kv_tokens: usize) -> Result<usize, Problems> {
        let step = kv_tokens.div_ceil(CACHE_STEPS);
        let longest = self.sizing.longest_request();
        // The first step is the smallest cache that serves every request.
        let first = longest.div_ceil(step);
        let size = |at: usize| kv_tokens.min(step * (first + at - 1)).max(longest);
        let steps = CACHE_STEPS + 1 - first;
        let found =
            self.search(steps, |at| FleetSize { pods, kv_tokens: size(at) })?.unwrap_or(steps);
        if found > 1 {
            self.attempt(FleetSize { pods, kv_tokens: size(found - 1) }, Effort::Whole)?;
        }
        Ok(size(found))
    }

    fn search(
        &mut self,
        most: usize,
        size: impl Fn(usize) -> FleetSize,
    ) -> Result<Option<usize>, Problems> {
        let trials = std::cell::RefCell::new(self);
        let tried = |effort| {
            let trials = &trials;
            let size = &size;
            move |count| {
                let is_met = trials.borrow_mut().attempt(size(count), effort)?.is_met;
                Ok::<_, Problems>(if is_met { Tried::Met } else { Tried::Missed })
            }
        };
        let found = CountSearch::up_to(most).run(tried(Effort::Whole), tried(Effort::Verdict))?;
        Ok(found.map(|found| found.least))
    }

    /// Tries a fleet, unless it was tried with the same effort or more.
    fn attempt(&mut self, size: FleetSize, effort: Effort) -> Result<&Measured, Problems> {
        let is_known = |known: &Measured| effort == Effort::Verdict || known.figures.is_some();
        if !self.measured.get(&size).is_some_and(is_known) {
            let FleetSize { pods, kv_tokens } = size;
            let prefix = format!("{pods} pods, {kv_tokens} tokens of KV cache ");
            self.bar.set_prefix(prefix);
            self.bar.reset();
            let all = self.bar.length().unwrap_or(0) as f64;
            let bar = &self.bar;
            let mut watch = |share: f64| bar.set_position((share * all) as u64);
            let measured = self.sizing.measure(size, effort, &mut watch)?;
            self.measured.insert(size, measured);
        }
        Ok(&self.measured[&size])
    }
}
