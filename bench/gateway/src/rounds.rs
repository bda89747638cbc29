//! Everybody in every situation, in turn, several times over.

use std::rc::Rc;
use std::time::{Duration, Instant};

use crate::cell::Cell;
use crate::contestant::{Contestant, Engines, Kind};
use crate::load::{Sample, measure};
use crate::prompts::{Prompts, Shared};
use crate::stats::median;
use crate::stolen::{self, Patience, Ticks};
use crate::tokenizing::{Model, NewText};
use crate::tree;

/// What was measured.
pub(crate) struct Results {
    pub(crate) cells: Vec<Cell>,
    pub(crate) kinds: Vec<Kind>,
    /// By cell, then by contestant, then by round.
    samples: Vec<Vec<Vec<Sample>>>,
    /// What it takes to tokenize what is new in a prompt, by cell and by round, if there is a model.
    pub(crate) new_texts: Vec<Vec<NewText>>,
    /// Bytes in memory after all rounds, by contestant; none where there is no process.
    pub(crate) memory: Vec<Option<u64>>,
    /// How many measurements were made again, because others had too much of the machine.
    pub(crate) again: usize,
}

/// How much is measured.
pub(crate) struct Effort {
    pub(crate) rounds: usize,
    pub(crate) measured: Duration,
    pub(crate) patience: Patience,
}

/// Measures. Within a round a situation is everybody's before the next one is anybody's, and who comes
/// first changes from round to round. What tokenizing takes by itself is measured there too: the machine changes its speed.
pub(crate) async fn hold(
    contestants: &[Contestant],
    engines: &mut Engines,
    cells: Vec<Cell>,
    model: Option<&Model>,
    Effort { rounds, measured, patience }: &mut Effort,
) -> anyhow::Result<Results> {
    let mut samples = vec![vec![Vec::new(); contestants.len()]; cells.len()];
    let mut new_texts = vec![Vec::new(); cells.len()];
    let prompts: Vec<_> = cells
        .iter()
        .map(|cell| Rc::new(Prompts::new(cell.bytes, Shared::FirstHalf, cell.delivery)))
        .collect();
    let mut number = 0;
    for round in 0..*rounds {
        for (at, cell) in cells.iter().enumerate() {
            engines.pace(cell.pace).await?;
            for turn in 0..contestants.len() {
                let who = (turn + round) % contestants.len();
                if !cell.is_for(contestants[who].kind) {
                    continue;
                }
                let window = cell.window(*measured);
                let mut samples_of = Vec::new();
                loop {
                    let (start, before) = (Instant::now(), Ticks::now());
                    let (contestant, prompts) = (&contestants[who], &prompts[at]);
                    let (mut sample, next) =
                        measure(contestant, prompts, cell.connections, window, number).await?;
                    number = next;
                    sample.stolen = before.share_since();
                    // What has failed is not measured away.
                    let is_kept = sample.stolen <= stolen::MOST || sample.failures > 0;
                    samples_of.push(sample);
                    if is_kept || !patience.allows(start) {
                        break;
                    }
                    tokio::time::sleep(stolen::PAUSE).await;
                }
                samples[at][who].extend(least_stolen(samples_of));
            }
            if let Some(model) = model
                && cell.is_whole()
            {
                new_texts[at].push(model.cost_of_new(&prompts[at])?);
            }
        }
        eprintln!("round {} of {rounds}", round + 1);
    }
    let memory = |contestant: &Contestant| {
        contestant.process.as_ref().map(|process| tree::memory(process.id()))
    };
    Ok(Results {
        cells,
        kinds: contestants.iter().map(|contestant| contestant.kind).collect(),
        samples,
        new_texts,
        memory: contestants.iter().map(memory).collect(),
        again: patience.used,
    })
}

/// The one that failed, or else the one that lost least to others.
fn least_stolen(samples: Vec<Sample>) -> Option<Sample> {
    let order = |sample: &Sample| (sample.failures == 0, sample.stolen);
    samples.into_iter().min_by(|one, other| {
        order(one).partial_cmp(&order(other)).unwrap_or(std::cmp::Ordering::Equal)
    })
}

impl Results {
    /// All rounds of a contestant in a situation.
    pub(crate) fn of(&self, cell: usize, kind: Kind) -> &[Sample] {
        let who = self.kinds.iter().position(|other| *other == kind);
        who.map_or(&[][..], |who| &self.samples[cell][who])
    }

    /// The median over the rounds.
    pub(crate) fn middle(&self, cell: usize, kind: Kind, figure: fn(&Sample) -> f64) -> f64 {
        median(&self.of(cell, kind).iter().map(figure).collect::<Vec<_>>())
    }

    /// The median of what two contestants make of each other, round by round.
    pub(crate) fn compare(
        &self,
        cell: usize,
        (one, other): (Kind, Kind),
        figure: fn(&Sample) -> f64,
        by: fn(f64, f64) -> f64,
    ) -> f64 {
        let rounds = self.of(cell, one).iter().zip(self.of(cell, other));
        median(&rounds.map(|(one, other)| by(figure(one), figure(other))).collect::<Vec<_>>())
    }

    /// CPU per request in units of nginx'.
    pub(crate) fn cpu_ratio(&self, cell: usize, kind: Kind) -> f64 {
        self.compare(cell, (kind, Kind::Nginx), |sample| sample.cpu, |one, other| one / other)
    }

    /// Microseconds that a request takes longer than without a router, in the middle.
    pub(crate) fn added(&self, cell: usize, kind: Kind, figure: fn(&Sample) -> f64) -> f64 {
        self.compare(cell, (kind, Kind::Direct), figure, |one, other| one - other)
    }

    /// Every answer that was none.
    pub(crate) fn failures(&self) -> Vec<String> {
        let mut failures = Vec::new();
        for (at, cell) in self.cells.iter().enumerate() {
            for kind in &self.kinds {
                for sample in self.of(at, *kind).iter().filter(|sample| sample.failures > 0) {
                    let why = sample.failure.as_deref().unwrap_or_default();
                    let (name, count) = (kind.name(), sample.failures);
                    failures.push(format!("{name}; {}; {count} failed: {why}", cell.name()));
                }
            }
        }
        failures
    }
}
