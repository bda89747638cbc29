//! The index side by side with its peers, in one process; see `bench/README.md`.

mod adapters;
mod adversary;
mod clock;
mod contest;
mod depths;
mod exact;
mod full;
mod log;
mod memory;
mod metric;
mod profile;
mod removal;
mod report;
mod results;
mod rounds;
mod stats;
mod workload;

use std::process::ExitCode;

use profile::Phase;
use rounds::Effort;
use workload::{SIZES, Size, Workload};

#[global_allocator]
static ALLOCATOR: memory::Counting = memory::Counting;

const USAGE: &str = "usage: [--quick] [--raw] [--rounds N] [--size NAME]... [--only INDEX] \
                     [--phase query|store|churn] [--exact] [--full] [--depths]";

/// The command line.
struct Arguments {
    effort: Effort,
    sizes: Vec<Size>,
    only: Option<String>,
    phase: Option<Phase>,
    raw: bool,
    /// Only the exactness suite.
    exact: bool,
    /// Only full caches.
    full: bool,
    /// Only many depths.
    depths: bool,
}

impl Arguments {
    fn parse(mut words: impl Iterator<Item = String>) -> Result<Self, String> {
        let mut parsed = Self {
            effort: Effort::FULL,
            sizes: Vec::new(),
            only: None,
            phase: None,
            raw: false,
            exact: false,
            full: false,
            depths: false,
        };
        while let Some(word) = words.next() {
            let mut value = || words.next().ok_or(format!("{word} needs a value; {USAGE}"));
            match word.as_str() {
                "--quick" => parsed.effort = Effort::QUICK,
                "--raw" => parsed.raw = true,
                "--exact" => parsed.exact = true,
                "--full" => parsed.full = true,
                "--depths" => parsed.depths = true,
                "--only" => parsed.only = Some(value()?),
                "--rounds" => {
                    let rounds = value()?;
                    parsed.effort.rounds =
                        rounds.parse().map_err(|_| format!("--rounds {rounds}: not a number"))?;
                }
                "--size" => {
                    let name = value()?;
                    let size = SIZES.iter().find(|size| size.name == name);
                    parsed.sizes.push(*size.ok_or(format!("--size {name}: unknown; see README"))?);
                }
                "--phase" => {
                    parsed.phase = Some(match value()?.as_str() {
                        "query" => Phase::Query,
                        "store" => Phase::Store,
                        "churn" => Phase::Churn,
                        other => return Err(format!("--phase {other}: unknown; {USAGE}")),
                    });
                }
                _ => return Err(format!("{word}: unknown; {USAGE}")),
            }
        }
        if parsed.sizes.is_empty() {
            parsed.sizes = SIZES.to_vec();
        }
        Ok(parsed)
    }
}

fn main() -> ExitCode {
    let arguments = match Arguments::parse(std::env::args().skip(1)) {
        Ok(arguments) => arguments,
        Err(problem) => {
            eprintln!("{problem}");
            return ExitCode::from(2);
        }
    };
    clock::pin(0);
    let only = arguments.only.as_deref();
    if let Some(phase) = arguments.phase {
        for size in arguments.sizes {
            profile::run(&Workload::generate(size), only, phase, arguments.effort.rounds);
        }
        return ExitCode::SUCCESS;
    }
    let mut failures = Vec::new();
    if arguments.exact {
        exact::suite(arguments.effort.cases, &mut failures);
        return outcome(&failures);
    }
    if arguments.full {
        full::table(arguments.effort.generations, arguments.raw);
        return ExitCode::SUCCESS;
    }
    if arguments.depths {
        depths::table(arguments.effort.rounds, arguments.only.as_deref(), &mut failures);
        return outcome(&failures);
    }
    let ticks = clock::Ticks::calibrate();
    println!(
        "{} rounds; a latency sample contains {:.0} ns of clock reading",
        arguments.effort.rounds, ticks.overhead
    );
    let mut all = Vec::new();
    for size in arguments.sizes {
        let workload = Workload::generate(size);
        let results = rounds::measure(&workload, only, arguments.effort, ticks, &mut failures);
        report::table(&results);
        all.push(results);
    }
    report::notes();
    if only.is_none() {
        exact::suite(arguments.effort.cases, &mut failures);
        depths::table(arguments.effort.rounds, None, &mut failures);
        full::table(arguments.effort.generations, arguments.raw);
    }
    if arguments.raw {
        report::raw(&all);
    }
    report::bars(&all);
    let outcome = outcome(&failures);
    report::verdict(&all);
    outcome
}

/// Prints the wrong results, if any.
fn outcome(failures: &[String]) -> ExitCode {
    for failure in failures.iter().take(20) {
        println!("WRONG {failure}");
    }
    println!("\nwrong results: {}", failures.len());
    if failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
