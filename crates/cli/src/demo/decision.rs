//! Asks the gateway's own profile how it would decide a request now, and shows why.

use serde_json::Value;
use std::io::Write;
use wornpath_gateway::Gateway;
use wornpath_index::PodId;
use wornpath_routing::{Desk, Outcome, Recorder, Request, Rng, RoutingPlan, World};

/// What is shown of a decision.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Show {
    /// Every candidate with its scores, and the plan.
    Scores,
    /// The plan alone.
    Plan,
}

/// Decides `body` as if a client had sent it, and sends nothing.
pub(super) fn show(
    gateway: &Gateway,
    body: &Value,
    what: Show,
    out: &mut dyn Write,
) -> anyhow::Result<()> {
    let (roster, routing) = (gateway.roster(), gateway.routing());
    let mut request = Request::from_json(body.to_string().as_bytes())?;
    request.model = roster.model(request.model.base.as_str());
    request.arrival = gateway.now();
    let (_, profile) = routing.profile("/v1/chat/completions", &request.model.base, None);
    let clock = || gateway.now();
    let mut recorder = Recorder::new(&clock);
    let mut context = profile.context(request);
    let (mut desk, mut rng) = (Desk::new(gateway.index()), Rng::new(0));
    let outcome = match profile.prepare_explained(&mut context, &mut recorder) {
        Err(rejection) => Outcome::Reject(rejection),
        Ok(()) => {
            let (fleet, now) = (roster.fleet(), gateway.now());
            let mut world = World { fleet, desk: &mut desk, now, rng: &mut rng };
            profile.decide_explained(&mut context, &mut world, &mut recorder)
        }
    };
    if what == Show::Scores {
        for line in recorder.finish().to_string().lines() {
            writeln!(out, "  {line}")?;
        }
    }
    let name = |pod: PodId| {
        roster
            .seat(pod)
            .map_or_else(|| "a pod that has gone".into(), |seat| seat.pod.facts().name.to_string())
    };
    match outcome {
        Outcome::Plan(plan) => show_plan(&plan, &name, out)?,
        Outcome::Hold(_) => writeln!(out, "  it would wait until a pod has room")?,
        Outcome::Reject(rejection) => {
            writeln!(out, "  it would be rejected: {} {}", rejection.status, rejection.reason)?;
        }
    }
    Ok(())
}

fn show_plan(
    plan: &RoutingPlan,
    name: &dyn Fn(PodId) -> String,
    out: &mut dyn Write,
) -> anyhow::Result<()> {
    for step in &plan.steps {
        let pod = step.pod.map_or_else(|| "a pod bound when it starts".to_owned(), name);
        let others: Vec<_> = step.fallbacks.iter().map(|pod| name(*pod)).collect();
        let others = if others.is_empty() { "nobody".to_owned() } else { others.join(", ") };
        writeln!(out, "  plan: {} on {pod}, else {others}; {}", step.name, step.cache)?;
    }
    for mark in &plan.marks {
        writeln!(out, "  note: {mark}")?;
    }
    Ok(())
}
