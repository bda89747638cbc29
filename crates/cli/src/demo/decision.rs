//! Shows how the gateway decided a request that it was sent.

use anyhow::Context;
use std::io::Write;
use wornpath_gateway::{RequestSummary, RequestTrace};
use wornpath_routing::StepExplanation;

/// Every candidate with its scores.
pub(super) fn show_scores(record: &RequestSummary, out: &mut dyn Write) -> anyhow::Result<()> {
    for line in seen(record)?.explanation.to_string().lines() {
        writeln!(out, "{}", format!("  {line}").trim_end())?;
    }
    Ok(())
}

/// Which step went where.
pub(super) fn show_plan(record: &RequestSummary, out: &mut dyn Write) -> anyhow::Result<()> {
    let steps: Vec<_> = seen(record)?.explanation.steps.iter().map(planned).collect();
    Ok(writeln!(out, "  plan: {}", steps.join(", then "))?)
}

fn seen(record: &RequestSummary) -> anyhow::Result<&RequestTrace> {
    record.trace.as_deref().with_context(|| format!("request `{}` was not taken down", record.id))
}

fn planned(step: &StepExplanation) -> String {
    let pick = step.pick.as_ref();
    let candidate = pick.and_then(|pick| step.candidates.iter().find(|one| one.pod == pick.pod));
    let pod = candidate.map_or("nobody", |candidate| candidate.name.as_str());
    format!("{} on {pod}", step.step)
}
