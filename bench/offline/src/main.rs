//! Whole queues on simulated engines: in file order, routed online, sorted, and planned.
//!
//! Prints for each the prompt tokens computed and the makespan, both divided by a lower bound for
//! every order, and exits with a failure if a bar is missed.

mod cascade;
mod scale;
mod strategies;
mod workload;

use std::path::PathBuf;
use std::process::ExitCode;
use strategies::{Comparison, Figures};
use workload::Workload;
use wornpath_sim::EngineProfile;

const PODS: usize = 8;

/// Bytes of one token's key/value vectors in the engine's profile.
const KV_BYTES: f64 = 131_072.0;

/// The bars: upper limits of the ratios.
const COMPUTED: f64 = 1.02;
const MAKESPAN: f64 = 1.10;
const ONLINE: f64 = 1.01;
const UNKNOWN: f64 = 1.10;

/// Missed bars, and the worst ratios of all plans.
#[derive(Default)]
struct Verdict {
    missed: Vec<String>,
    computed: f64,
    makespan: f64,
}

impl Verdict {
    fn check(&mut self, what: &str, value: f64, bar: f64) {
        if value > bar {
            self.missed.push(format!("{what} is {value:.3}, above {bar}"));
        }
    }
}

fn main() -> anyhow::Result<ExitCode> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.iter().any(|argument| argument == "--scale") {
        return scale::plan_a_million().map(|()| ExitCode::SUCCESS);
    }
    let engine = EngineProfile::built_in("8b-h200")?;
    let mut workloads = vec![workload::documents(), workload::examples(), workload::labels()];
    for path in arguments.iter().filter(|argument| !argument.starts_with("--")) {
        workloads.push(workload::recorded(&PathBuf::from(path))?);
    }
    println!(
        "{PODS} engines {}; computed = prompt tokens computed / least possible",
        engine.name()
    );
    let mut verdict = Verdict::default();
    for workload in &workloads {
        for kv_tokens in [Some(workload.tight), None] {
            compare(workload, &engine, kv_tokens, &mut verdict)?;
        }
    }
    cascade::compare(&mut verdict)?;
    let (seconds, mebibytes) = scale::measure()?;
    println!(
        "\n1,000,000 requests x 64 blocks planned in {seconds:.2} s, {mebibytes:.0} MiB at most"
    );
    verdict.check("planning time in seconds", seconds, 8.0);
    verdict.check("memory in MiB", mebibytes, 1_024.0);
    for missed in &verdict.missed {
        println!("MISS {missed}");
    }
    println!(
        "offline: worst computed/bound = {:.3}, worst makespan/bound = {:.3}",
        verdict.computed, verdict.makespan
    );
    Ok(if verdict.missed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn compare(
    workload: &Workload,
    engine: &EngineProfile,
    kv_tokens: Option<usize>,
    verdict: &mut Verdict,
) -> anyhow::Result<()> {
    let comparison = Comparison::new(&workload.trace, engine, kv_tokens, PODS)?;
    let least_tokens = comparison.least_tokens() as f64;
    let least_time = comparison.least_time().least();
    println!(
        "\n{}: {} requests, {} KV tokens per pod; at least {least_tokens} tokens and {:.1} s",
        workload.name,
        workload.trace.turns.len(),
        comparison.kv_tokens(),
        least_time.as_secs_f64()
    );
    let computed = |figures: Figures| figures.computed as f64 / least_tokens;
    let makespan = |figures: Figures| figures.makespan.as_secs_f64() / least_time.as_secs_f64();
    let row = |name: &str, figures: Figures| {
        println!(
            "  {name:<24} computed {:>6.3}x  makespan {:>8.2} s {:>6.3}x  KV per decode step {:>7.2} GB",
            computed(figures),
            figures.makespan.as_secs_f64(),
            makespan(figures),
            figures.kv_reads.tokens_per_step() * KV_BYTES / 1e9
        );
    };
    let online = comparison.cache_aware()?;
    let plan = comparison.planned()?;
    let unknown = comparison.planned_with_average_outputs()?;
    row("round-robin", comparison.round_robin()?);
    row("online cache-aware", online);
    row("sorting alone", comparison.sorted()?);
    row("plan", plan);
    row("plan, outputs unknown", unknown);
    let name = format!("{} at {} KV tokens", workload.name, comparison.kv_tokens());
    let time = |figures: Figures| figures.makespan.as_secs_f64();
    verdict.check(&format!("{name}: computed"), computed(plan), COMPUTED);
    verdict.check(&format!("{name}: makespan"), makespan(plan), MAKESPAN);
    verdict.check(&format!("{name}: plan / online time"), time(plan) / time(online), ONLINE);
    verdict.check(&format!("{name}: unknown outputs"), time(unknown) / time(plan), UNKNOWN);
    verdict.computed = verdict.computed.max(computed(plan));
    verdict.makespan = verdict.makespan.max(makespan(plan));
    Ok(())
}
