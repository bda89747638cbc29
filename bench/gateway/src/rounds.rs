//! The rounds: every contestant in every scenario, several times.

use std::rc::Rc;
use std::time::{Duration, Instant};

use crate::contestant::{Contestant, Engines, Kind};
use crate::load::{Sample, measure};
use crate::process_tree;
use crate::prompts::{Prompts, Shared};
use crate::scenario::Scenario;
use crate::stats::median;
use crate::steal::{self, RetryBudget, Ticks};
use crate::tokenizing::{Model, NewText};

/// All measurements.
pub(crate) struct Results {
    pub(crate) scenarios: Vec<Scenario>,
    pub(crate) kinds: Vec<Kind>,
    /// By scenario, contestant and round.
    samples: Vec<Vec<Vec<Sample>>>,
    /// The cost of tokenizing the new half of a prompt, by scenario and round, if there is a model.
    pub(crate) new_texts: Vec<Vec<NewText>>,
    /// Bytes in memory after all rounds, by contestant; none where there is no process.
    pub(crate) memory: Vec<Option<u64>>,
    /// Measurements that were repeated, because their steal share was too high.
    pub(crate) repeated: usize,
}

/// Rounds, length and retries of the measurements.
pub(crate) struct Effort {
    pub(crate) rounds: usize,
    pub(crate) measured: Duration,
    pub(crate) retries: RetryBudget,
}

/// Measures. Within a round all contestants take a scenario before any takes the next, and their
/// order rotates from round to round. The cost of tokenizing alone is measured in the same round,
/// because the machine's speed changes.
pub(crate) async fn run(
    contestants: &[Contestant],
    engines: &mut Engines,
    scenarios: Vec<Scenario>,
    model: Option<&Model>,
    Effort { rounds, measured, retries }: &mut Effort,
) -> anyhow::Result<Results> {
    let mut samples = vec![vec![Vec::new(); contestants.len()]; scenarios.len()];
    let mut new_texts = vec![Vec::new(); scenarios.len()];
    let prompts: Vec<_> = scenarios
        .iter()
        .map(|scenario| Rc::new(Prompts::new(scenario.bytes, Shared::FirstHalf, scenario.delivery)))
        .collect();
    let mut number = 0;
    for round in 0..*rounds {
        for (at, scenario) in scenarios.iter().enumerate() {
            engines.pace(scenario.pace).await?;
            for turn in 0..contestants.len() {
                let contestant = (turn + round) % contestants.len();
                if !scenario.is_for(contestants[contestant].kind) {
                    continue;
                }
                let window = scenario.window(*measured);
                let mut attempts = Vec::new();
                loop {
                    let start = Instant::now();
                    let before = Ticks::now();
                    let (mut sample, next) = measure(
                        &contestants[contestant],
                        &prompts[at],
                        scenario.connections,
                        window,
                        number,
                    )
                    .await?;
                    number = next;
                    sample.stolen = before.share_since();
                    // A measurement with failures always counts.
                    let is_kept = sample.stolen <= steal::MAX_SHARE || sample.failures > 0;
                    attempts.push(sample);
                    if is_kept || !retries.allows(start) {
                        break;
                    }
                    tokio::time::sleep(steal::RETRY_PAUSE).await;
                }
                samples[at][contestant].extend(least_stolen(attempts));
            }
            if let Some(model) = model
                && scenario.is_whole()
            {
                new_texts[at].push(model.cost_of_new(&prompts[at])?);
            }
        }
        eprintln!("round {} of {rounds}", round + 1);
    }
    let memory = |contestant: &Contestant| {
        contestant.process.as_ref().map(|process| process_tree::memory(process.id()))
    };
    Ok(Results {
        scenarios,
        kinds: contestants.iter().map(|contestant| contestant.kind).collect(),
        samples,
        new_texts,
        memory: contestants.iter().map(memory).collect(),
        repeated: retries.used,
    })
}

/// The sample with failures, or else the one with the lowest steal share.
fn least_stolen(samples: Vec<Sample>) -> Option<Sample> {
    let order = |sample: &Sample| (sample.failures == 0, sample.stolen);
    samples.into_iter().min_by(|one, other| {
        order(one).partial_cmp(&order(other)).unwrap_or(std::cmp::Ordering::Equal)
    })
}

impl Results {
    /// All rounds of a contestant in a scenario.
    pub(crate) fn of(&self, scenario: usize, kind: Kind) -> &[Sample] {
        let contestant = self.kinds.iter().position(|other| *other == kind);
        contestant.map_or(&[][..], |contestant| &self.samples[scenario][contestant])
    }

    /// The median over the rounds.
    pub(crate) fn median(&self, scenario: usize, kind: Kind, figure: fn(&Sample) -> f64) -> f64 {
        median(&self.of(scenario, kind).iter().map(figure).collect::<Vec<_>>())
    }

    /// The median over the rounds of a figure that combines two contestants.
    pub(crate) fn compare(
        &self,
        scenario: usize,
        one: Kind,
        other: Kind,
        combine: impl Fn(&Sample, &Sample) -> f64,
    ) -> f64 {
        let rounds = self.of(scenario, one).iter().zip(self.of(scenario, other));
        median(&rounds.map(|(one, other)| combine(one, other)).collect::<Vec<_>>())
    }

    /// CPU per request divided by nginx's.
    pub(crate) fn cpu_ratio(&self, scenario: usize, kind: Kind) -> f64 {
        self.compare(scenario, kind, Kind::Nginx, |one, other| one.cpu / other.cpu)
    }

    /// The median of the microseconds that a router adds to a request.
    pub(crate) fn added(&self, scenario: usize, kind: Kind, figure: fn(&Sample) -> f64) -> f64 {
        self.compare(scenario, kind, Kind::Direct, |one, other| figure(one) - figure(other))
    }

    /// All failures, one line per sample.
    pub(crate) fn failures(&self) -> Vec<String> {
        let mut failures = Vec::new();
        for (at, scenario) in self.scenarios.iter().enumerate() {
            for kind in &self.kinds {
                for sample in self.of(at, *kind).iter().filter(|sample| sample.failures > 0) {
                    let why = sample.failure.as_deref().unwrap_or_default();
                    let name = kind.name();
                    let count = sample.failures;
                    failures.push(format!("{name}; {}; {count} failed: {why}", scenario.name()));
                }
            }
        }
        failures
    }
}
