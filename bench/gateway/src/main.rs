//! The gateway against nginx and its peers: CPU per request, added time, memory; see `bench/README.md`.

mod cell;
mod clock;
mod contest;
mod contestant;
mod engine;
mod exchange;
mod floor;
mod growth;
mod instruments;
mod load;
mod prompts;
mod report;
mod stalls;
mod stats;
mod stolen;
mod tokenizing;
mod tree;

use anyhow::{Context, bail};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use cell::Cell;
use contest::Effort;
use contestant::{Contestant, Engines, Kind, Places, is_installed};
use stolen::Patience;

const USAGE: &str = "usage: [--tokenizer FOLDER] [--rounds N] [--seconds S] [--patience MINUTES] [--prompts N] [--delays ROUNDS] \
                     [--quick] [--raw] [--only NAME]... [--cell PART]...; `bench/run` says where the binaries are";

/// The command line.
struct Arguments {
    places: Places,
    rounds: usize,
    measured: Duration,
    /// How long measurements that others disturb may be made again, all together.
    patience: Duration,
    /// Unique prompts while memory is watched.
    prompts: u64,
    /// Rounds in which delays by tokenizing are watched.
    delays: usize,
    raw: bool,
    /// Parts of names of contestants; all if empty.
    only: Vec<String>,
    /// Parts of names of situations; all if empty.
    cells: Vec<String>,
}

impl Arguments {
    fn parse(mut words: impl Iterator<Item = String>) -> anyhow::Result<Self> {
        let place =
            |name| std::env::var_os(name).with_context(|| format!("{name} is not set; {USAGE}"));
        let places = Places {
            wornpath: place("WORNPATH_BENCH_BINARY")?.into(),
            peers: place("WORNPATH_BENCH_PEERS")?.into(),
            tokenizer: None,
        };
        let (measured, prompts, delays) = (Duration::from_millis(700), 100_000, 7);
        let (only, cells) = (Vec::new(), Vec::new());
        let (rounds, patience, raw) = (5, Duration::ZERO, false);
        let mut parsed =
            Self { places, rounds, measured, patience, prompts, delays, raw, only, cells };
        while let Some(word) = words.next() {
            let mut value =
                || words.next().with_context(|| format!("{word} needs a value; {USAGE}"));
            match word.as_str() {
                "--tokenizer" => parsed.places.tokenizer = Some(PathBuf::from(value()?)),
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
                "--quick" => (parsed.rounds, parsed.prompts, parsed.delays) = (2, 20_000, 2),
                "--raw" => parsed.raw = true,
                "--only" => parsed.only.push(value()?),
                "--cell" => parsed.cells.push(value()?),
                _ => bail!("{word}: unknown; {USAGE}"),
            }
        }
        Ok(parsed)
    }

    fn kinds(&self) -> anyhow::Result<Vec<Kind>> {
        for part in &self.only {
            if !Kind::ALL.iter().any(|kind| kind.name().contains(part)) {
                bail!("--only {part}: nobody is called so; {}", names(Kind::ALL.map(Kind::name)));
            }
        }
        let mut kinds = Vec::new();
        for kind in Kind::ALL {
            let wanted = self.only.iter().any(|part| kind.name().contains(part));
            let needed = matches!(kind, Kind::Direct | Kind::Nginx);
            if !(self.only.is_empty() || wanted || needed)
                || kind == Kind::Tokenizer && self.places.tokenizer.is_none()
            {
                continue;
            }
            if !is_installed(&self.places.peers, kind) {
                bail!("{} is not installed; `bench/gateway/peers` does it", kind.name());
            }
            kinds.push(kind);
        }
        Ok(kinds)
    }

    fn cells(&self) -> anyhow::Result<Vec<Cell>> {
        let mut cells = Cell::all();
        for part in &self.cells {
            if !cells.iter().any(|cell| cell.name().contains(part)) {
                bail!(
                    "--cell {part}: no situation is called so; {}",
                    names(cells.iter().map(Cell::name))
                );
            }
        }
        let is_wanted = |cell: &Cell| self.cells.iter().any(|part| cell.name().contains(part));
        cells.retain(|cell| self.cells.is_empty() || is_wanted(cell));
        Ok(cells)
    }
}

/// What there is to choose from.
fn names(known: impl IntoIterator<Item = impl std::fmt::Debug>) -> String {
    let known: Vec<_> = known.into_iter().map(|name| format!("{name:?}")).collect();
    format!("there are {}", known.join("; "))
}

fn main() -> anyhow::Result<ExitCode> {
    let mut words = std::env::args().skip(1).peekable();
    match words.peek().map(String::as_str) {
        Some("engines") => {
            let pods = words.nth(1).context("how many engines?")?.parse()?;
            engine::run(pods)?;
            Ok(ExitCode::SUCCESS)
        }
        Some("floor") => {
            let pods: Result<Vec<_>, _> = words.skip(1).map(|pod| pod.parse()).collect();
            floor::run(&pods?)?;
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
    let (kinds, cells) = (arguments.kinds()?, arguments.cells()?);
    let mut engines = Engines::start(if kinds.contains(&Kind::ManyPods) { 256 } else { 8 })?;
    let mut contestants = Vec::new();
    for kind in kinds {
        contestants.push(Contestant::start(kind, &arguments.places, &engines.pods).await?);
    }
    let Arguments { rounds, measured, patience, .. } = *arguments;
    let mut effort = Effort { rounds, measured, patience: Patience::of(patience) };
    println!("{} rounds of {:?} a situation; 8 pods", arguments.rounds, arguments.measured);
    let folder = arguments.places.tokenizer.as_deref();
    let model = folder.map(tokenizing::Model::load).transpose()?;
    let held = contest::hold(&contestants, &mut engines, cells, model.as_ref(), &mut effort);
    let results = held.await?;
    report::stolen(&results);
    report::tables(&results);
    let mut bars = report::contest_bars(&results);
    // The others are done, and what they do in the background would disturb.
    contestants.retain(|it| it.kind == Kind::CacheAware);
    if let Some(contestant) = contestants.first()
        && arguments.prompts > 0
    {
        engines.pace(engine::Pace::NONE).await?;
        let growth = growth::watch(contestant, arguments.prompts).await?;
        bars.push(report::growth_bar(&growth));
    }
    contestants.clear();
    if let Some(model) = model.filter(|_| results.kinds.contains(&Kind::Tokenizer)) {
        bars.extend(report::tokenizer_bars(&results));
        if arguments.delays > 0 {
            engines.pace(engine::Pace::ENGINE).await?;
            let Arguments { places, delays, .. } = arguments;
            let stalls = stalls::stalls(&engines, places, &model.tokenizer, *delays).await?;
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
