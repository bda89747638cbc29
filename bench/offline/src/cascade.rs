//! Requests that decode together on engines with cascade attention, and the same queue on the same
//! engines without it.

use crate::strategies::{Comparison, Figures};
use crate::workload::{self, Workload};
use crate::{KV_BYTES, Verdict};
use wornpath_sim::EngineProfile;

const PODS: usize = 4;
const ENGINE: &str = "8b-h200-measured";

/// The bars: upper limits of the planned makespan, divided by that without cascade attention.
const DOCUMENTS: f64 = 0.8;
const EXAMPLES: f64 = 1.001;

/// Compares both workloads and prints what decode steps read.
pub(crate) fn compare(verdict: &mut Verdict) -> anyhow::Result<()> {
    let with = EngineProfile::built_in(ENGINE)?;
    let without = with.without_cascade();
    let workloads =
        [(workload::few_documents(), DOCUMENTS), (workload::few_examples(), EXAMPLES)];
    println!("\n{PODS} engines {ENGINE}; KV = gigabytes that a decode step reads");
    for (workload, bar) in workloads {
        let Workload { name, trace, .. } = &workload;
        let plain = Comparison::new(trace, &without, None, PODS)?;
        let cascade = Comparison::new(trace, &with, None, PODS)?;
        let planned = cascade.planned()?;
        println!(
            "\n{name}: {} requests; at least {:.1} s without cascade attention, {:.1} s with it",
            trace.turns.len(),
            plain.least_time().least().as_secs_f64(),
            cascade.least_time().least().as_secs_f64()
        );
        row("round-robin", cascade.round_robin()?);
        row("online cache-aware", cascade.cache_aware()?);
        row("plan", planned);
        let without = plain.planned()?;
        row("plan, without cascade", without);
        let seconds = planned.makespan.as_secs_f64();
        let ratio = seconds / without.makespan.as_secs_f64();
        let least = cascade.least_time().least().as_secs_f64();
        verdict.check(&format!("{name}: plan with / without cascade attention"), ratio, bar);
        verdict.check(&format!("{name}: lower bound / planned seconds"), least / seconds, 1.0);
    }
    Ok(())
}

fn row(name: &str, figures: Figures) {
    println!(
        "  {name:<24} makespan {:>8.2} s  KV {:>8.2} GB  cascade in {:>3.0}% of steps",
        figures.makespan.as_secs_f64(),
        figures.kv_reads.tokens_per_step() * KV_BYTES / 1e9,
        figures.kv_reads.cascade_share() * 100.0
    );
}
