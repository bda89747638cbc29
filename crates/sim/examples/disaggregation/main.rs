//! Prefill and decode on different pods against both on each pod: where splitting wins and loses, and
//! from how many uncached tokens on the built-in profile should split a request.
//!
//! Time is virtual, so figures do not depend on the machine and are the same on every run.
#![allow(clippy::print_stdout, reason = "its figures are its purpose")]

mod picture;
mod traffic;

use picture::{Cell, Panel};
use std::path::PathBuf;
use std::time::Duration;
use traffic::{Traffic, mixture};
use wornpath_routing::Role;
use wornpath_sim::replay::{
    Percentiles, ProfileText, ReplayFleet, RequestRecord, Trace, TraceTurn, replay,
};
use wornpath_sim::{EngineProfile, StepLoad};

const USAGE: &str = "\
bench/run disaggregation [--quick] [--save] [--part grid|rule|cases]... [--svg FILE] [--engine NAME]
Four pods that each do both (profile cache-aware) against two for prefill and two for decode (profile prefill-decode): every request
split, and by the rule of the profile. Part `grid`: prompt length x share of the prompt that others share x load; `rule`: thresholds of
the rule on mixed traffic; `cases`: long cold and short hot prompts. --svg draws the grid.
";

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

const PODS: usize = 4;
const OUTPUT_TOKENS: usize = 200;
const LENGTHS: [usize; 6] = [512, 1_024, 2_048, 4_096, 8_192, 32_768];
const SHARED: [f64; 3] = [0.0, 0.5, 0.9];
const LOADS: [f64; 3] = [0.2, 0.5, 0.8];
const THRESHOLDS: [usize; 8] = [1, 256, 512, 1_024, 2_048, 4_096, 8_192, 1 << 20];
/// The share of requests at the beginning that fill the caches and do not count.
const WARM_UP: f64 = 0.2;

const WHOLE: &str = include_str!("../../../../profiles/cache-aware.yaml");
const SPLIT: &str = include_str!("../../../../profiles/prefill-decode.yaml");

struct Options {
    requests: usize,
    engine: EngineProfile,
    parts: Vec<String>,
    svg: Option<PathBuf>,
}

/// The figures of one replay, after the warm-up.
struct Figures {
    ttft: Percentiles,
    tpot: Percentiles,
    /// The share of requests whose prompt another pod computed.
    split: f64,
    failures: usize,
    /// The share of requests with the first token within a second and three times the prefill of the
    /// whole prompt, and each token within five empty steps.
    in_time: f64,
}

/// A way to run the fleet.
struct Way {
    name: String,
    yaml: String,
    is_split: bool,
}

impl Way {
    fn whole() -> Self {
        Self { name: "each pod does both".to_owned(), yaml: WHOLE.to_owned(), is_split: false }
    }

    fn by_rule() -> Self {
        Self { name: "split by the rule".to_owned(), yaml: SPLIT.to_owned(), is_split: true }
    }

    /// Splits from so many uncached tokens on.
    fn from(threshold: usize) -> Self {
        let line = SPLIT.lines().find(|line| line.trim().starts_with("min_uncached_tokens:"));
        let line = line.expect("the profile has a threshold");
        let yaml = SPLIT.replace(line, &format!("    min_uncached_tokens: {threshold}"));
        Self { name: format!("split from {threshold}"), yaml, is_split: true }
    }

    fn always() -> Self {
        Self { name: "always split".to_owned(), ..Self::from(1) }
    }

    fn run(&self, trace: &Trace, engine: &EngineProfile) -> Outcome<Figures> {
        let fleet = ReplayFleet::new(engine.clone(), PODS, 1);
        let half = PODS / 2;
        let roles = [(Role::named(Role::PREFILL), half), (Role::named(Role::DECODE), half)];
        let fleet = if self.is_split { fleet.with_roles(&roles) } else { fleet };
        let profile = ProfileText { name: &self.name, yaml: &self.yaml };
        let records = replay(trace, profile, &fleet).map_err(|problems| problems.to_string())?;
        Ok(Figures::of(trace, &records, engine))
    }
}

/// The time to compute the whole prompt.
fn prefill(engine: &EngineProfile, turn: &TraceTurn) -> Duration {
    let mut load = StepLoad::default();
    load.add_chunk(0, turn.prompt_tokens);
    engine.step_cost().of(&load)
}

impl Figures {
    fn of(trace: &Trace, records: &[RequestRecord], engine: &EngineProfile) -> Self {
        let skipped = (WARM_UP * records.len() as f64) as usize;
        let mut ttft = Vec::new();
        let mut tpot = Vec::new();
        let mut split = 0;
        let mut in_time = 0;
        let counted = &records[skipped..];
        for (turn, record) in trace.turns[skipped..].iter().zip(counted) {
            let (Some(first), Some(end)) = (record.first_token, record.end) else { continue };
            let to_first = first - record.arrival;
            let each = (end - first).div_f64((turn.output_tokens - 1) as f64);
            split += usize::from(record.prefilled.is_some());
            in_time += usize::from(
                to_first <= Duration::from_secs(1) + 3 * prefill(engine, turn)
                    && each <= 5 * engine.step_cost().of(&StepLoad::default()),
            );
            ttft.push(to_first);
            tpot.push(each);
        }
        let share = |count: usize| count as f64 / counted.len() as f64;
        Self {
            failures: counted.len() - ttft.len(),
            ttft: Percentiles::of(ttft),
            tpot: Percentiles::of(tpot),
            split: share(split),
            in_time: share(in_time),
        }
    }

    fn line(&self, name: &str) -> String {
        let Self { ttft, tpot, split, failures, in_time } = self;
        format!(
            "  {name:<20} {:>8.0} {:>8.0}  {:>8.1} {:>8.1}  {:>6.2} {:>8.3} {failures:>7}",
            ttft.p50, ttft.p95, tpot.p50, tpot.p95, split, in_time
        )
    }
}

const HEADER: &str =
    "                          TTFT ms p50 p95      TPOT ms p50 p95   split  in time  failed";

fn options() -> Outcome<Options> {
    let mut options = Options {
        requests: 1_500,
        engine: EngineProfile::built_in("8b-h200")?,
        parts: Vec::new(),
        svg: None,
    };
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().ok_or(format!("{argument} needs a value"));
        match argument.as_str() {
            "--quick" => options.requests = 300,
            // Saved runs ask for every figure; this program always prints them.
            "--raw" => {}
            "--svg" => options.svg = Some(value()?.into()),
            "--engine" => options.engine = EngineProfile::built_in(&value()?)?,
            "--part" => {
                let part = value()?;
                if !["grid", "rule", "cases"].contains(&part.as_str()) {
                    return Err(
                        format!("--part `{part}`: unknown; available: grid, rule, cases").into()
                    );
                }
                options.parts.push(part);
            }
            _ => return Err(format!("unknown option `{argument}`\n{USAGE}").into()),
        }
    }
    if options.parts.is_empty() {
        options.parts = ["cases", "rule", "grid"].map(str::to_owned).to_vec();
    }
    Ok(options)
}

fn main() -> Outcome<()> {
    let options = options()?;
    println!(
        "engine {}, {PODS} pods or {} + {}, {} requests a replay, the first {:.0} % not counted, outputs of {OUTPUT_TOKENS} tokens",
        options.engine.name(),
        PODS / 2,
        PODS / 2,
        options.requests,
        100.0 * WARM_UP
    );
    for part in &options.parts {
        println!();
        match part.as_str() {
            "cases" => cases(&options)?,
            "rule" => rule(&options)?,
            _ => grid(&options)?,
        }
    }
    Ok(())
}

/// Long prompts that no cache has, and short ones that are mostly cached.
fn cases(options: &Options) -> Outcome<()> {
    let kinds = [
        ("long cold: 16,384 tokens, none shared", 16_384, 0.0, 0.6),
        ("short hot: 2,048 tokens, 90 % shared", 2_048, 0.9, 0.4),
    ];
    for (name, prompt_tokens, shared, load) in kinds {
        println!("== {name}, load {load}\n{HEADER}");
        let traffic = Traffic { prompt_tokens, output_tokens: OUTPUT_TOKENS, shared, load };
        let trace = traffic.requests(&options.engine, PODS, options.requests, 1);
        for way in [Way::whole(), Way::always(), Way::by_rule()] {
            println!("{}", way.run(&trace, &options.engine)?.line(&way.name));
        }
    }
    Ok(())
}

/// The threshold of the rule on traffic of all lengths.
fn rule(options: &Options) -> Outcome<()> {
    let kind = |prompt_tokens, shared| Traffic {
        prompt_tokens,
        output_tokens: OUTPUT_TOKENS,
        shared,
        load: 0.0,
    };
    let kinds: Vec<Traffic> =
        LENGTHS.into_iter().flat_map(|length| SHARED.map(|shared| kind(length, shared))).collect();
    for load in LOADS {
        println!("== all lengths and shares of the grid mixed, load {load}\n{HEADER}");
        let trace = mixture(&kinds, &options.engine, PODS, load, 2 * options.requests);
        let ways = std::iter::once(Way::whole()).chain(THRESHOLDS.map(Way::from));
        for way in ways {
            println!("{}", way.run(&trace, &options.engine)?.line(&way.name));
        }
    }
    Ok(())
}

/// Always split against each pod doing both, at every point of the grid.
fn grid(options: &Options) -> Outcome<()> {
    let mut to_first = Vec::new();
    let mut each = Vec::new();
    for load in LOADS {
        let mut cells = [Vec::new(), Vec::new()];
        for prompt_tokens in LENGTHS {
            for shared in SHARED {
                let traffic = Traffic { prompt_tokens, output_tokens: OUTPUT_TOKENS, shared, load };
                let trace = traffic.requests(&options.engine, PODS, options.requests, 1);
                println!("== {prompt_tokens} tokens, {shared} shared, load {load}\n{HEADER}");
                let run = |way: Way| {
                    let figures = way.run(&trace, &options.engine)?;
                    println!("{}", figures.line(&way.name));
                    Outcome::Ok(figures)
                };
                let whole = run(Way::whole())?;
                let always = run(Way::always())?;
                let by_rule = run(Way::by_rule())?;
                let is_split = by_rule.split > 0.5;
                let ratios = [always.ttft.p95 / whole.ttft.p95, always.tpot.p95 / whole.tpot.p95];
                for (cells, ratio) in cells.iter_mut().zip(ratios) {
                    cells.push(Cell { ratio, is_split });
                }
            }
        }
        let [ttft, tpot] = cells;
        to_first.push(Panel { title: format!("TTFT p95, load {load}"), cells: ttft });
        each.push(Panel { title: format!("TPOT p95, load {load}"), cells: tpot });
    }
    if let Some(path) = &options.svg {
        let panels: Vec<Panel> = to_first.into_iter().chain(each).collect();
        let svg = picture::draw(&panels, LOADS.len(), &LENGTHS, &SHARED);
        std::fs::write(path, svg).map_err(|error| format!("{}: {error}", path.display()))?;
        println!("\nwrote {}", path.display());
    }
    Ok(())
}
