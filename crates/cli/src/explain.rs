//! `wornpath explain`: routes one request in a described fleet and explains the decision.

use crate::check::{BAD_CONFIGURATION, check};
use crate::fleet::{build, read_fleet};
use anyhow::{Context, bail};
use clap::Args;
use hyper::header::HeaderName;
use serde_json::{Value, json};
use std::fs;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;
use wornpath_blocks::chat::{Grammar, exact_numbers};
use wornpath_index::Moment;
use wornpath_routing::fleet_spec::BuiltFleet;
use wornpath_routing::{
    DecisionEnv, DecisionState, Name, Outcome, PodFacts, Problems, Profile, ProfileEnv, Recorder,
    Request, Rng, RoutingPlan,
};

/// Route one request in a described fleet, and explain the decision
///
/// Exits with 78 if the profile or the fleet is invalid.
#[derive(Args)]
pub(crate) struct ExplainArguments {
    /// File with the request's JSON body; `-` for standard input
    #[arg(default_value = "-")]
    body: PathBuf,
    /// Routing profile: a file, or the name of a built-in profile
    #[arg(long, value_name = "PROFILE")]
    profile: PathBuf,
    /// Fleet description: models, pods, loads and cached prompts
    #[arg(long, value_name = "FILE")]
    fleet: PathBuf,
    /// Header of the request, as `name: value`; may be repeated
    #[arg(long, value_name = "HEADER")]
    header: Vec<String>,
    /// Tenant of the request
    #[arg(long)]
    tenant: Option<String>,
    /// Seed of random choices
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Print everything as JSON
    #[arg(long)]
    json: bool,
}

/// Time of the decision, late enough for any age of events that a fleet description has.
const NOW: Moment = Moment::from_secs(1 << 30);

/// Decides, or lists the problems of both the profile and the fleet.
pub(crate) fn run(arguments: &ExplainArguments, out: &mut dyn Write) -> anyhow::Result<ExitCode> {
    let mut env = ProfileEnv::default();
    let fleet = match read_fleet(&arguments.fleet)? {
        Ok(spec) => {
            let built = build(&arguments.fleet, &spec, NOW)?;
            env.models = Arc::clone(&built.models);
            env.roles = Some(spec.roles());
            Ok(built)
        }
        Err(problems) => Err(problems),
    };
    match (fleet, check(&arguments.profile, &env)?) {
        (Ok(built), Ok(profile)) => decide(arguments, &built, &profile, out),
        (fleet, profile) => {
            print_problems(arguments, [fleet.err(), profile.err()].iter().flatten(), out)?;
            Ok(ExitCode::from(BAD_CONFIGURATION))
        }
    }
}

fn print_problems<'a>(
    arguments: &ExplainArguments,
    mut problems: impl Iterator<Item = &'a Problems>,
    out: &mut dyn Write,
) -> std::io::Result<()> {
    if !arguments.json {
        return problems.try_for_each(|problems| write!(out, "{problems}"));
    }
    let all: Vec<Value> = problems
        .flat_map(|problems| problems.to_json().as_array().cloned().unwrap_or_default())
        .collect();
    writeln!(out, "{:#}", json!({"problems": all}))
}

fn decide(
    arguments: &ExplainArguments,
    built: &BuiltFleet,
    profile: &Profile,
    out: &mut dyn Write,
) -> anyhow::Result<ExitCode> {
    let mut request = request(arguments, built)?;
    request.arrival = NOW;

    let clock = clock();
    let mut recorder = Recorder::new(&clock);
    let mut context = profile.context(request);
    let mut state = DecisionState::new(&built.index);
    let mut rng = Rng::new(arguments.seed);
    let outcome = match profile.prepare_explained(&mut context, &mut recorder) {
        Err(rejection) => Outcome::Reject(rejection),
        Ok(()) => {
            let mut env =
                DecisionEnv { fleet: &built.fleet, state: &mut state, now: NOW, rng: &mut rng };
            profile.decide_explained(&mut context, &mut env, &mut recorder)
        }
    };
    let explanation = recorder.finish();
    if arguments.json {
        let outcome = outcome_json(&outcome, built);
        let all = json!({"explanation": explanation.to_json(), "outcome": outcome});
        writeln!(out, "{all:#}")?;
    } else {
        write!(out, "{explanation}")?;
        print_outcome(&outcome, built, out)?;
    }
    Ok(ExitCode::SUCCESS)
}

#[expect(clippy::disallowed_methods, reason = "the edge reads the clock, for timings only")]
fn clock() -> impl Fn() -> Moment {
    let start = Instant::now();
    move || Moment::at(start.elapsed())
}

fn request(arguments: &ExplainArguments, built: &BuiltFleet) -> anyhow::Result<Request> {
    let path = &arguments.body;
    let body = if path == Path::new("-") {
        let mut body = Vec::new();
        std::io::stdin().lock().read_to_end(&mut body).context("cannot read standard input")?;
        body
    } else {
        fs::read(path).with_context(|| format!("cannot read {}", path.display()))?
    };
    // Numbers are parsed as the gateway parses them.
    let exact = str::from_utf8(&body).map(|text| exact_numbers(text, Grammar::Json));
    let mut request = Request::from_json(exact.as_ref().map_or(&body, |text| text.as_bytes()))
        .with_context(|| format!("{} is not a valid request", path.display()))?;
    for header in &arguments.header {
        let Some((name, value)) = header.split_once(':') else {
            bail!("header `{header}` has no colon; write `name: value`");
        };
        let Ok(name) = HeaderName::try_from(name.trim()) else {
            bail!("header `{header}`: invalid header name `{name}`; write `name: value`");
        };
        request.headers.push((name.as_str().to_owned(), value.trim().to_owned()));
    }
    request.tenant = arguments.tenant.as_deref().map(Name::from);
    resolve(&mut request, built);
    Ok(request)
}

/// Maps an adapter's name to its base model with the adapter, and no name to the only model.
fn resolve(request: &mut Request, built: &BuiltFleet) {
    let name = request.model.base.clone();
    if built.models.find(&name).is_some() {
        return;
    }
    if let ([only], "") = (built.models.all(), name.as_str()) {
        request.model.base = only.name().clone();
        return;
    }
    let facts = || built.fleet.pods().iter().map(wornpath_routing::FleetPod::facts);
    let serves = |facts: &&PodFacts| facts.loras.contains(&name);
    if let Some(base) = facts().find(serves).and_then(|facts| facts.models.first()) {
        request.model.base = base.clone();
        request.model.lora = Some(name);
    }
}

fn outcome_json(outcome: &Outcome, built: &BuiltFleet) -> Value {
    match outcome {
        Outcome::Plan(plan) => json!({"plan": plan.to_json(|pod| built.name(pod))}),
        Outcome::Hold(hold) => json!({"hold": {
            "priority": hold.class.priority.level(),
            "waits_at_most_ms": hold.class.deadline.since(NOW).as_secs_f64() * 1e3,
        }}),
        Outcome::Reject(rejection) => json!({"reject": {
            "status": rejection.status, "reason": rejection.reason,
            "retry_after_s": rejection.retry_after.map(|time| time.as_secs_f64()),
        }}),
    }
}

fn print_outcome(outcome: &Outcome, built: &BuiltFleet, out: &mut dyn Write) -> anyhow::Result<()> {
    match outcome {
        Outcome::Plan(plan) => print_plan(plan, built, out)?,
        Outcome::Hold(_) => writeln!(out, "\nhold: queued until a pod has capacity")?,
        Outcome::Reject(rejection) => {
            writeln!(out, "\nreject: {} {}", rejection.status, rejection.reason)?;
        }
    }
    Ok(())
}

fn print_plan(plan: &RoutingPlan, built: &BuiltFleet, out: &mut dyn Write) -> anyhow::Result<()> {
    writeln!(out, "\nplan")?;
    for step in &plan.steps {
        let pod = step
            .pod
            .map_or_else(|| "a pod chosen when the step starts".to_owned(), |pod| built.name(pod));
        let fallbacks: Vec<_> = step.fallbacks.iter().map(|pod| built.name(*pod)).collect();
        let fallbacks = if fallbacks.is_empty() { "none".to_owned() } else { fallbacks.join(", ") };
        writeln!(out, "  {}: {pod}, fallback {fallbacks}; {}", step.name, step.cache)?;
    }
    for mark in &plan.marks {
        writeln!(out, "  note: {mark}")?;
    }
    Ok(())
}
