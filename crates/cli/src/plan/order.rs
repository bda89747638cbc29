//! `--order`: the planned order of a file, for jobs that send the requests themselves.
//!
//! Nothing is simulated, so this takes the time that reading and sorting the prompts takes.

use super::prompts::Prompts;
use anyhow::Context;
use serde_json::json;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;
use wornpath_planner::{Plan, Speeds};
use wornpath_sim::offline::{OfflineEngines, rates};

/// Writes one object per request, pod after pod, each pod's requests in the order to send them.
pub(super) fn write(
    path: &Path,
    prompts: &Prompts,
    engines: &OfflineEngines,
    pods: usize,
    out: &mut impl Write,
) -> anyhow::Result<()> {
    let queue = &prompts.queue;
    let forest = prompts.forest()?;
    let prompt_tokens = forest.prompt_tokens(queue);
    let plan = Plan::of_forest(queue, forest, &Speeds::equal(pods)?, &rates(engines));
    let failed = || format!("cannot write {}", path.display());
    let mut file = BufWriter::new(File::create(path).with_context(failed)?);
    for segment in plan.segments() {
        let stops = &plan.route().stops()[segment.stops.clone()];
        for (at, stop) in stops.iter().enumerate() {
            // Another pod computed the request before the first of a segment.
            let shared = match at {
                0 => 0,
                _ => queue.prompt_tokens(stop.job) - stop.fresh as usize,
            };
            let line = prompts.line(stop.job.index());
            let row = json!({"line": line, "pod": segment.pod, "shared_tokens": shared});
            writeln!(file, "{row}").with_context(failed)?;
        }
    }
    file.flush().with_context(failed)?;
    writeln!(
        out,
        "{}: {} requests for {pods} pods; {} of {prompt_tokens} prompt tokens are computed",
        path.display(),
        queue.len(),
        plan.planned_tokens()
    )?;
    Ok(())
}
