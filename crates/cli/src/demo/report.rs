//! Texts of the demo: two runs side by side, and the explanations of single decisions.

use super::load::DemoTally;
use anyhow::Context;
use std::io::Write;
use wornpath_gateway::{RequestSummary, RequestTrace};
use wornpath_routing::StepExplanation;

/// Writes the totals of each policy as a table.
pub(super) fn write_table(
    runs: [(&str, &DemoTally); 2],
    out: &mut dyn Write,
) -> std::io::Result<()> {
    let [one, two] = runs.map(|(policy, _)| policy);
    writeln!(out, "\n  {:<26}{one:>14}{two:>14}", "")?;
    let mut row = |name: &str, cell: &dyn Fn(&DemoTally) -> String| {
        let [one, two] = runs.map(|(_, tally)| cell(tally));
        writeln!(out, "  {name:<26}{one:>14}{two:>14}")
    };
    row("TTFT p50", &|tally| format!("{:.0} ms", tally.ttft().p50))?;
    row("TTFT p95", &|tally| format!("{:.0} ms", tally.ttft().p95))?;
    row("prompt tokens from caches", &|tally| format!("{:.1}%", tally.hit_rate() * 100.0))?;
    row("prefill tokens saved", &|tally| tally.cached_tokens.to_string())?;
    row("GPU seconds saved", &|tally| format!("{:.1}", tally.saved_ms / 1e3))?;
    row("failed requests", &|tally| tally.failures.len().to_string())
}

/// Why the second run is no better than the first, if it is not. Times are shown but not compared,
/// because a busy machine slows either run.
pub(super) fn not_better(before: &DemoTally, after: &DemoTally) -> Option<String> {
    let rate = after.hit_rate();
    let rate_before = before.hit_rate();
    if rate <= rate_before {
        return Some(format!("its hit rate is {rate:.3}, not above {rate_before:.3}"));
    }
    let saved = after.saved_ms / 1e3;
    let saved_before = before.saved_ms / 1e3;
    let reason = || format!("it saved {saved:.1} GPU seconds, not more than {saved_before:.1}");
    (saved <= saved_before).then(reason)
}

/// Writes every candidate of a decision with its scores.
pub(super) fn write_scores(record: &RequestSummary, out: &mut dyn Write) -> anyhow::Result<()> {
    for line in trace(record)?.explanation.to_string().lines() {
        writeln!(out, "{}", format!("  {line}").trim_end())?;
    }
    Ok(())
}

/// Writes the pod of each step of a decision.
pub(super) fn write_plan(record: &RequestSummary, out: &mut dyn Write) -> anyhow::Result<()> {
    let steps: Vec<_> = trace(record)?.explanation.steps.iter().map(planned).collect();
    Ok(writeln!(out, "  plan: {}", steps.join(", then "))?)
}

fn trace(record: &RequestSummary) -> anyhow::Result<&RequestTrace> {
    record.trace.as_deref().with_context(|| format!("no explanation of request `{}`", record.id))
}

fn planned(step: &StepExplanation) -> String {
    let pick = step.pick.as_ref();
    let candidate = pick.and_then(|pick| step.candidates.iter().find(|one| one.pod == pick.pod));
    let pod = candidate.map_or("no pod", |candidate| candidate.name.as_str());
    format!("{} on {pod}", step.step)
}
