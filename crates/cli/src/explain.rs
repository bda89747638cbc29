//! `wornpath explain`: decides one request against a described fleet and shows why.

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
use std::time::{Duration, Instant};
use wornpath_blocks::chat::{Grammar, exact_numbers};
use wornpath_routing::fleet_spec::BuiltFleet;
use wornpath_routing::{
    DecisionEnv, DecisionState, Name, Outcome, PodFacts, Problems, Profile, ProfileEnv, Recorder,
    Request, Rng, RoutingPlan,
};

/// Decide one request against a described fleet, and show why
///
/// Exits with 78 if the profile or the fleet cannot be used.
#[derive(Args)]
pub(crate) struct ExplainArguments {
    /// The request's JSON body; `-` for standard input
    #[arg(default_value = "-")]
    body: PathBuf,
    /// The profile that decides: a file, or the name of a shipped one
    #[arg(long, value_name = "PROFILE")]
    profile: PathBuf,
    /// The fleet: models, pods, loads and cached prompts
    #[arg(long, value_name = "FILE")]
    fleet: PathBuf,
    /// A header of the request, as `name: value`; may be given again
    #[arg(long, value_name = "HEADER")]
    header: Vec<String>,
    /// Whose request it is
    #[arg(long)]
    tenant: Option<String>,
    /// Where chance comes from
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Show everything as JSON
    #[arg(long)]
    json: bool,
}

/// When the decision is made: far enough from the beginning of time for the silences that fleets describe.
const NOW: Duration = Duration::from_secs(1 << 30);

/// Decides and tells `out`; or says what is wrong with the profile and the fleet, both of them.
pub(crate) fn run(arguments: &ExplainArguments, out: &mut dyn Write) -> anyhow::Result<ExitCode> {
    let mut surroundings = ProfileEnv::default();
    let fleet = match read_fleet(&arguments.fleet)? {
        Ok(described) => {
            let built = build(&arguments.fleet, &described, NOW)?;
            surroundings.models = Arc::clone(&built.models);
            surroundings.roles = Some(described.roles());
            Ok(built)
        }
        Err(problems) => Err(problems),
    };
    match (fleet, check(&arguments.profile, &surroundings)?) {
        (Ok(built), Ok(profile)) => decide(arguments, &built, &profile, out),
        (fleet, profile) => {
            refuse(arguments, [fleet.err(), profile.err()].iter().flatten(), out)?;
            Ok(ExitCode::from(BAD_CONFIGURATION))
        }
    }
}

fn refuse<'a>(
    arguments: &ExplainArguments,
    mut refused: impl Iterator<Item = &'a Problems>,
    out: &mut dyn Write,
) -> std::io::Result<()> {
    if !arguments.json {
        return refused.try_for_each(|problems| write!(out, "{problems}"));
    }
    let all: Vec<Value> = refused
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
    let (mut state, mut rng) = (DecisionState::new(&built.index), Rng::new(arguments.seed));
    let outcome = match profile.prepare_explained(&mut context, &mut recorder) {
        Err(rejection) => Outcome::Reject(rejection),
        Ok(()) => {
            let mut world =
                DecisionEnv { fleet: &built.fleet, state: &mut state, now: NOW, rng: &mut rng };
            profile.decide_explained(&mut context, &mut world, &mut recorder)
        }
    };
    let explanation = recorder.finish();
    if arguments.json {
        let outcome = outcome_json(&outcome, built);
        let all = json!({"explanation": explanation.to_json(), "outcome": outcome});
        writeln!(out, "{all:#}")?;
    } else {
        write!(out, "{explanation}")?;
        show(&outcome, built, out)?;
    }
    Ok(ExitCode::SUCCESS)
}

#[expect(clippy::disallowed_methods, reason = "the edge reads the clock, for timings only")]
fn clock() -> impl Fn() -> Duration {
    let start = Instant::now();
    move || start.elapsed()
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
    // Numbers as the gateway reads them.
    let exact = str::from_utf8(&body).map(|text| exact_numbers(text, Grammar::Json));
    let mut request = Request::from_json(exact.as_ref().map_or(&body, |text| text.as_bytes()))
        .with_context(|| format!("{} is no request", path.display()))?;
    for header in &arguments.header {
        let Some((name, value)) = header.split_once(':') else {
            bail!("header `{header}` has no colon; write `name: value`");
        };
        let Ok(name) = HeaderName::try_from(name.trim()) else {
            bail!("header `{header}`: `{name}` is no name of a header; write `name: value`");
        };
        request.headers.push((name.as_str().to_owned(), value.trim().to_owned()));
    }
    request.tenant = arguments.tenant.as_deref().map(Name::from);
    resolve(&mut request, built);
    Ok(request)
}

/// An adapter's name means its base model with the adapter; no name at all means the only model.
fn resolve(request: &mut Request, built: &BuiltFleet) {
    let asked = request.model.base.clone();
    if built.models.find(&asked).is_some() {
        return;
    }
    if let ([only], "") = (built.models.all(), asked.as_str()) {
        request.model.base = only.name().clone();
        return;
    }
    let facts = || built.fleet.pods().iter().map(wornpath_routing::FleetPod::facts);
    let serves = |facts: &&PodFacts| facts.loras.contains(&asked);
    if let Some(base) = facts().find(serves).and_then(|facts| facts.models.first()) {
        request.model.base = base.clone();
        request.model.lora = Some(asked);
    }
}

fn outcome_json(outcome: &Outcome, built: &BuiltFleet) -> Value {
    match outcome {
        Outcome::Plan(plan) => json!({"plan": plan.to_json(|pod| built.name(pod))}),
        Outcome::Hold(hold) => json!({"hold": {
            "priority": hold.class.priority.level(),
            "waits_at_most_ms": hold.class.deadline.saturating_sub(NOW).as_secs_f64() * 1e3,
        }}),
        Outcome::Reject(rejection) => json!({"reject": {
            "status": rejection.status, "reason": rejection.reason,
            "retry_after_s": rejection.retry_after.map(|time| time.as_secs_f64()),
        }}),
    }
}

fn show(outcome: &Outcome, built: &BuiltFleet, out: &mut dyn Write) -> anyhow::Result<()> {
    match outcome {
        Outcome::Plan(plan) => show_plan(plan, built, out)?,
        Outcome::Hold(_) => writeln!(out, "\nhold: it waits until a pod has room")?,
        Outcome::Reject(rejection) => {
            writeln!(out, "\nreject: {} {}", rejection.status, rejection.reason)?;
        }
    }
    Ok(())
}

fn show_plan(plan: &RoutingPlan, built: &BuiltFleet, out: &mut dyn Write) -> anyhow::Result<()> {
    writeln!(out, "\nplan")?;
    for step in &plan.steps {
        let pod =
            step.pod.map_or_else(|| "a pod bound when it starts".to_owned(), |pod| built.name(pod));
        let others: Vec<_> = step.fallbacks.iter().map(|pod| built.name(*pod)).collect();
        let others = if others.is_empty() { "nobody".to_owned() } else { others.join(", ") };
        writeln!(out, "  {}: {pod}, else {others}; {}", step.name, step.cache)?;
    }
    for mark in &plan.marks {
        writeln!(out, "  note: {mark}")?;
    }
    Ok(())
}
