//! What is promised of routers that know caches, measured: a table with a claim, a figure and a bar
//! in each row.
//!
//! Time is virtual, so figures do not depend on the machine and are the same on every run. The
//! bytes of events are counted by another example, `wire_bytes` of `wornpath-events`, in the same
//! table.
#![allow(clippy::print_stdout, reason = "the table is its purpose")]

mod cached;
mod estimation;
mod queues;
mod sharing;
mod split;
#[path = "../disaggregation/traffic.rs"]
#[allow(dead_code, reason = "shared with the example that measures all of its kinds")]
mod traffic;

use std::process::ExitCode;

const USAGE: &str = "\
bench/run promises [--row NAME]... [--save]
Rows of simulated engines: same-prompt, mostly-cached, prefixes, contexts, estimation, long-cold, short-hot, documents, examples,
deadlines. Rows of encoders: zeromq, json, grpc, broker. Without --row all of them.
";

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

/// A claim and what came out.
struct Row {
    /// What is claimed in the field.
    claim: &'static str,
    measured: String,
    bar: String,
    passes: bool,
    /// What the figures leave open.
    note: Option<String>,
}

/// Measures one row.
type Measure = fn() -> Outcome<Row>;

const ROWS: [(&str, Measure); 10] = [
    ("same-prompt", cached::same_prompt),
    ("mostly-cached", cached::mostly_cached),
    ("prefixes", sharing::prefixes),
    ("contexts", sharing::contexts),
    ("estimation", estimation::estimation),
    ("long-cold", split::long_cold),
    ("short-hot", split::short_hot),
    ("documents", queues::documents),
    ("examples", queues::examples),
    ("deadlines", queues::deadlines),
];

fn wanted() -> Outcome<Vec<String>> {
    let mut wanted = Vec::new();
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--row" => wanted.push(arguments.next().ok_or("--row needs a name")?),
            _ => return Err(format!("unknown option `{argument}`\n{USAGE}").into()),
        }
    }
    Ok(wanted)
}

fn main() -> Outcome<ExitCode> {
    let wanted = wanted()?;
    let mut notes = Vec::new();
    let mut missed = 0;
    println!(
        "| row | claimed in the field | measured | bar | | again by |\n|---|---|---|---|---|---|"
    );
    for (name, measure) in ROWS {
        if !wanted.is_empty() && !wanted.iter().any(|wanted| wanted == name) {
            continue;
        }
        let Row { claim, measured, bar, passes, note } = measure()?;
        let result = if passes { "pass" } else { "MISS" };
        missed += usize::from(!passes);
        println!(
            "| {name} | {claim} | {measured} | {bar} | {result} | `bench/run promises --row {name}` |"
        );
        notes.extend(note.map(|note| format!("{name}: {note}")));
    }
    // Below the table, to which the rows of the other example belong.
    for note in notes {
        eprintln!("{note}");
    }
    Ok(if missed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
