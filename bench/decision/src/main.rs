//! The CPU time of a whole decision, from token ids to a plan; see `bench/README.md`.

mod clock;
mod dynamo;
mod memory;
mod ours;
mod workload;

use std::process::ExitCode;

use workload::Workload;

#[global_allocator]
static ALLOCATOR: memory::Counting = memory::Counting;

const USAGE: &str = "usage: [--quick] [--rounds N] [--raw] [--only NAME] [--pods N]";

/// The text above the table.
const LEGEND: &str = "\
CPU µs of one decision on a tokenized prompt of 32 blocks: hashing, lookup, filters, scores, pick, plan.
decide: median [quartiles], which the bar is for. speculate: telling the index afterwards what the chosen pod
will hold, so that the next request follows this one. Then both together, and allocations of both.";

/// Numbers of pods, and the bar of a decision in microseconds for each.
const SIZES: [(usize, f64); 3] = [(64, 5.0), (256, 15.0), (1024, 60.0)];

/// An implementation that is measured.
pub(crate) trait Contestant {
    /// Its label in the table.
    fn name(&self) -> String;

    /// Decides the request with this number.
    fn decide(&mut self, request: usize);

    /// Whether the bars apply to it.
    fn is_judged(&self) -> bool;

    /// Inserts speculatively what the chosen pod will hold.
    fn settle(&mut self) {}

    /// Called between rounds, untimed.
    fn rest(&mut self) {}
}

/// The measurements of a contestant, in CPU microseconds, sorted.
struct Measured {
    name: String,
    decide: Vec<f64>,
    settle: Vec<f64>,
    both: Vec<f64>,
    allocations: f64,
    judged: bool,
}

fn quantile(sorted: &[f64], share: f64) -> f64 {
    sorted[((sorted.len() - 1) as f64 * share).round() as usize]
}

fn main() -> ExitCode {
    let mut rounds = 200;
    let mut raw = false;
    let mut only = None;
    let mut pods_only = None::<usize>;
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        match word.as_str() {
            "--quick" => rounds = 5,
            "--rounds" => rounds = words.next().and_then(|n| n.parse().ok()).unwrap_or(rounds),
            "--raw" => raw = true,
            "--only" => only = words.next(),
            "--pods" => pods_only = words.next().and_then(|pods| pods.parse().ok()),
            _ => {
                eprintln!("{word}: unknown; {USAGE}");
                return ExitCode::from(2);
            }
        }
    }
    clock::pin();
    let overhead = clock::overhead();
    println!("{LEGEND}");
    println!(
        "{rounds} rounds of {} prompts; {:.0} ns of clock reading are taken off.\n",
        workload::REQUESTS,
        overhead * 1e3
    );
    let mut all = Vec::new();
    let mut missed = 0;
    for (pods, bar) in SIZES {
        if pods_only.is_some_and(|only| only != pods) {
            continue;
        }
        let workload = Workload::generate(pods);
        println!("{pods} pods (bar: {bar} µs)");
        let mut contestants = ours::contestants(&workload);
        contestants.extend(dynamo::contestants(&workload));
        contestants.retain(|it| only.as_ref().is_none_or(|only| it.name().contains(only.as_str())));
        let measured = measure(&mut contestants, rounds, overhead);
        for it in &measured {
            missed += usize::from(show(it, bar) == Verdict::Miss);
        }
        println!();
        all.push((pods, measured));
    }
    missed += growth(&all);
    if raw {
        for (pods, it) in all.iter().flat_map(|(pods, all)| all.iter().map(move |it| (pods, it))) {
            let deciles = |times: &[f64]| {
                let tenth = |tenth: i32| format!("{:.3}", quantile(times, f64::from(tenth) / 10.0));
                (0..=10).map(tenth).collect::<Vec<_>>().join(" ")
            };
            println!("raw {pods} {}: decide {}", it.name, deciles(&it.decide));
            println!("raw {pods} {}: settle {}", it.name, deciles(&it.settle));
            println!("raw {pods} {}: both {}", it.name, deciles(&it.both));
        }
    }
    if missed == 0 {
        return ExitCode::SUCCESS;
    }
    println!("{missed} missed");
    ExitCode::FAILURE
}

/// The result of a contestant against a bar.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Verdict {
    NotJudged,
    Pass,
    Miss,
}

impl Verdict {
    /// Compares a measured value with the bar `most`.
    fn of(it: &Measured, value: f64, most: f64) -> Self {
        if !it.judged {
            Self::NotJudged
        } else if value <= most {
            Self::Pass
        } else {
            Self::Miss
        }
    }

    const fn word(self) -> &'static str {
        match self {
            Self::NotJudged => "",
            Self::Pass => "pass",
            Self::Miss => "MISS",
        }
    }
}

fn show(it: &Measured, bar: f64) -> Verdict {
    let at = |share| quantile(&it.decide, share);
    let lower = at(0.25);
    let median = at(0.5);
    let upper = at(0.75);
    let verdict = Verdict::of(it, median, bar);
    let spread = format!("[{lower:.2} {upper:.2}]");
    println!(
        "  {:<40} decide {median:>6.2} {spread:<15} speculate {:>5.2}  both {:>6.2}  {:>4.1}  {}",
        it.name,
        quantile(&it.settle, 0.5),
        quantile(&it.both, 0.5),
        it.allocations,
        verdict.word()
    );
    verdict
}

/// Prints how the cost grows with the pods; four times the pods must cost at most four times as
/// much. Returns the number of misses.
fn growth(all: &[(usize, Vec<Measured>)]) -> usize {
    let mut missed = 0;
    for pair in all.windows(2) {
        let [(few, small), (many, large)] = pair else { continue };
        println!("from {few} to {many} pods, {} times as many", many / few);
        for (less, more) in small.iter().zip(large).filter(|(less, _)| less.judged) {
            let before = quantile(&less.both, 0.5);
            let after = quantile(&more.both, 0.5);
            let times = after / before;
            let verdict = Verdict::of(less, times, (many / few) as f64);
            missed += usize::from(verdict == Verdict::Miss);
            let name = &less.name;
            let each = (after - before) * 1e3 / (many - few) as f64;
            println!(
                "  {name:<40} {times:>5.2} times the cost, {each:>5.1} ns a pod  {}",
                verdict.word()
            );
        }
        println!();
    }
    missed
}

/// Every contestant decides all prompts before the next one, so that the CPU caches are its own.
fn measure(contestants: &mut [Box<dyn Contestant>], rounds: usize, overhead: f64) -> Vec<Measured> {
    let mut all: Vec<Measured> = contestants
        .iter()
        .map(|it| Measured {
            name: it.name(),
            decide: Vec::new(),
            settle: Vec::new(),
            both: Vec::new(),
            allocations: 0.0,
            judged: it.is_judged(),
        })
        .collect();
    for round in 0..=rounds {
        for (contestant, measured) in contestants.iter_mut().zip(&mut all) {
            contestant.rest();
            for request in 0..workload::REQUESTS {
                let started = clock::cpu();
                contestant.decide(request);
                let decided = clock::cpu();
                contestant.settle();
                let settled = clock::cpu();
                // The first round only warms up.
                if round > 0 {
                    let micros = |time: std::time::Duration| time.as_secs_f64() * 1e6 - overhead;
                    measured.decide.push(micros(decided - started));
                    measured.settle.push(micros(settled - decided));
                    measured.both.push(micros(settled - started) - overhead);
                }
            }
        }
    }
    for (contestant, measured) in contestants.iter_mut().zip(&mut all) {
        contestant.rest();
        let mut allocations = 0;
        for request in 0..workload::REQUESTS {
            memory::start();
            contestant.decide(request);
            contestant.settle();
            allocations += memory::stop();
        }
        measured.allocations = allocations as f64 / workload::REQUESTS as f64;
        measured.decide.sort_by(f64::total_cmp);
        measured.settle.sort_by(f64::total_cmp);
        measured.both.sort_by(f64::total_cmp);
    }
    all
}
