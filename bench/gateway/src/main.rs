//! The gateway against nginx and its peers: CPU per request, added time, memory; see
//! `bench/README.md`.

mod bare_hyper;
mod clock;
mod contestant;
mod cpu_pinning;
mod engine;
mod http_client;
mod load;
mod memory_growth;
mod process_tree;
mod prompts;
mod report;
mod rounds;
mod scenario;
mod stalls;
mod stats;
mod steal;
mod tokenizing;

use anyhow::{Context, bail};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use contestant::{Contestant, Engines, Kind, Paths, is_installed};
use rounds::Effort;
use scenario::Scenario;
use steal::RetryBudget;

const USAGE: &str = "usage: [--tokenizer FOLDER] [--rounds N] [--seconds S] [--patience MINUTES] [--prompts N] [--delays ROUNDS] \
                     [--quick] [--raw] [--only NAME]... [--cell PART]...; start it with `bench/run`";

/// The command line.
struct Arguments {
    paths: Paths,
    rounds: usize,
    measured: Duration,
    /// Total time for measurements that are repeated because of steal.
    patience: Duration,
    /// Unique prompts while memory is measured.
    prompts: u64,
    /// Rounds in which delays by tokenizing are measured.
    delays: usize,
    raw: bool,
    /// Substrings of names of contestants; all if empty.
    only: Vec<String>,
    /// Substrings of names of scenarios; all if empty.
    scenarios: Vec<String>,
}

impl Arguments {
    fn parse(mut words: impl Iterator<Item = String>) -> anyhow::Result<Self> {
        let variable =
            |name| std::env::var_os(name).with_context(|| format!("{name} is not set; {USAGE}"));
        let paths = Paths {
            wornpath: variable("WORNPATH_BENCH_BINARY")?.into(),
            peers: variable("WORNPATH_BENCH_PEERS")?.into(),
            tokenizer: None,
        };
        let mut parsed = Self {
            paths,
            rounds: 5,
            measured: Duration::from_millis(700),
            patience: Duration::ZERO,
            prompts: 100_000,
            delays: 7,
            raw: false,
            only: Vec::new(),
            scenarios: Vec::new(),
        };
        while let Some(word) = words.next() {
            let mut value =
                || words.next().with_context(|| format!("{word} needs a value; {USAGE}"));
            match word.as_str() {
                "--tokenizer" => parsed.paths.tokenizer = Some(PathBuf::from(value()?)),
                "--rounds" => parsed.rounds = value()?.parse().context("--rounds")?,
                "--seconds" => {
                    let seconds = value()?.parse().context("--seconds")?;
                    parsed.measured = Duration::try_from_secs_f64(seconds).context("--seconds")?;
                }
                "--patience" => {
                    let minutes: u32 = value()?.parse().context("--patience")?;
                    parsed.patience = Duration::from_secs(60) * minutes;
                }
                "--prompts" => parsed.prompts = value()?.parse().context("--prompts")?,
                "--delays" => parsed.delays = value()?.parse().context("--delays")?,
                "--quick" => {
                    parsed.rounds = 2;
                    parsed.prompts = 20_000;
                    parsed.delays = 2;
                }
                "--raw" => parsed.raw = true,
                "--only" => parsed.only.push(value()?),
                "--cell" => parsed.scenarios.push(value()?),
                _ => bail!("unknown option {word}; {USAGE}"),
            }
        }
        Ok(parsed)
    }

    fn kinds(&self) -> anyhow::Result<Vec<Kind>> {
        for part in &self.only {
            if !Kind::ALL.iter().any(|kind| kind.name().contains(part)) {
                bail!("--only {part}: unknown contestant; {}", names(Kind::ALL.map(Kind::name)));
            }
        }
        let mut kinds = Vec::new();
        for kind in Kind::ALL {
            let wanted = self.only.iter().any(|part| kind.name().contains(part));
            let needed = matches!(kind, Kind::Direct | Kind::Nginx);
            if !(self.only.is_empty() || wanted || needed)
                || kind == Kind::Tokenizer && self.paths.tokenizer.is_none()
            {
                continue;
            }
            if !is_installed(&self.paths.peers, kind) {
                bail!("{} is not installed; run `bench/gateway/peers FOLDER`", kind.name());
            }
            kinds.push(kind);
        }
        Ok(kinds)
    }

    fn scenarios(&self) -> anyhow::Result<Vec<Scenario>> {
        let mut scenarios = Scenario::all();
        for part in &self.scenarios {
            if !scenarios.iter().any(|scenario| scenario.name().contains(part)) {
                bail!(
                    "--cell {part}: unknown scenario; {}",
                    names(scenarios.iter().map(Scenario::name))
                );
            }
        }
        let is_wanted =
            |scenario: &Scenario| self.scenarios.iter().any(|part| scenario.name().contains(part));
        scenarios.retain(|scenario| self.scenarios.is_empty() || is_wanted(scenario));
        Ok(scenarios)
    }
}

/// The available names.
fn names(known: impl IntoIterator<Item = impl std::fmt::Debug>) -> String {
    let known: Vec<_> = known.into_iter().map(|name| format!("{name:?}")).collect();
    format!("available: {}", known.join("; "))
}

fn main() -> anyhow::Result<ExitCode> {
    let mut words = std::env::args().skip(1).peekable();
    match words.peek().map(String::as_str) {
        Some("engines") => {
            let pods = words.nth(1).context("`engines` needs the number of engines")?.parse()?;
            engine::run(pods)?;
            Ok(ExitCode::SUCCESS)
        }
        Some("bare-hyper") => {
            let pods: Result<Vec<_>, _> = words.skip(1).map(|pod| pod.parse()).collect();
            bare_hyper::run(&pods?)?;
            Ok(ExitCode::SUCCESS)
        }
        _ => {
            let arguments = Arguments::parse(words)?;
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(compare(&arguments))
        }
    }
}

async fn compare(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let kinds = arguments.kinds()?;
    let scenarios = arguments.scenarios()?;
    let mut engines = Engines::start(if kinds.contains(&Kind::ManyPods) { 256 } else { 8 })?;
    let mut contestants = Vec::new();
    for kind in kinds {
        contestants.push(Contestant::start(kind, &arguments.paths, &engines.pods).await?);
    }
    let Arguments { rounds, measured, patience, .. } = *arguments;
    let mut effort = Effort { rounds, measured, retries: RetryBudget::of(patience) };
    println!("{} rounds of {:?} a situation; 8 pods", arguments.rounds, arguments.measured);
    let folder = arguments.paths.tokenizer.as_deref();
    let model = folder.map(tokenizing::Model::load).transpose()?;
    let results =
        rounds::run(&contestants, &mut engines, scenarios, model.as_ref(), &mut effort).await?;
    report::steal_share(&results);
    report::tables(&results);
    let mut bars = report::scenario_bars(&results);
    // The background work of the other contestants would disturb the rest.
    contestants.retain(|it| it.kind == Kind::CacheAware);
    if let Some(contestant) = contestants.first()
        && arguments.prompts > 0
    {
        engines.pace(engine::Pace::NONE).await?;
        let growth = memory_growth::measure_growth(contestant, arguments.prompts).await?;
        bars.push(report::growth_bar(&growth));
    }
    contestants.clear();
    if let Some(model) = model.filter(|_| results.kinds.contains(&Kind::Tokenizer)) {
        bars.extend(report::tokenizer_bars(&results));
        if arguments.delays > 0 {
            engines.pace(engine::Pace::ENGINE).await?;
            let Arguments { paths, delays, .. } = arguments;
            let stalls = stalls::measure_stalls(&engines, paths, &model.tokenizer, *delays).await?;
            bars.push(report::stall_bar(&stalls));
        }
    }
    if arguments.raw {
        report::raw(&results);
    }
    let failures = results.failures();
    failures.iter().for_each(|failure| println!("FAILED {failure}"));
    let ours_failed = failures.iter().any(|failure| failure.starts_with("wornpath"));
    let is_met = report::verdict(&bars) && !ours_failed;
    report::last_line(&results);
    Ok(if is_met { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
