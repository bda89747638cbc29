//! The figures of one replay of a random case.

use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::time::Duration;
use wornpath_sim::StepLoad;
use wornpath_sim::replay::{Percentiles, ReplayFleet, RequestRecord, Trace, TraceTurn};

/// The wait that a failed request counts as.
const FAILED: Duration = Duration::from_secs(3600);
/// Requests of a tenant below which its mean is an accident.
const LEAST_REQUESTS: u32 = 10;

/// Times in milliseconds.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Measured {
    pub(crate) ttft: Percentiles,
    pub(crate) tpot: Percentiles,
    /// The mean TTFT of the tenant for which it is longest.
    pub(crate) worst_tenant: f64,
    /// The share of the requests within the objective.
    pub(crate) goodput: f64,
    pub(crate) failures: usize,
}

/// A service level objective, in terms of the engine: TTFT within a second and three times the
/// prefill of the whole prompt, and TPOT within ten empty steps.
struct Objective<'a> {
    fleet: &'a ReplayFleet,
}

impl Objective<'_> {
    fn ttft(&self, turn: &TraceTurn) -> Duration {
        let mut load = StepLoad::default();
        load.add_chunk(0, turn.prompt_tokens);
        Duration::from_secs(1) + 3 * self.fleet.engine.step_cost().of(&load)
    }

    fn tpot(&self) -> Duration {
        Duration::from_secs_f64(self.fleet.engine.step_cost().base / 1e2)
    }
}

impl Measured {
    pub(crate) fn of(trace: &Trace, records: &[RequestRecord], fleet: &ReplayFleet) -> Self {
        let objective = Objective { fleet };
        let mut ttft = Vec::with_capacity(records.len());
        let mut tpot = Vec::with_capacity(records.len());
        let mut tenants: HashMap<u32, (Duration, u32)> = HashMap::new();
        let mut within = 0;
        let mut failures = 0;
        for (turn, record) in trace.turns.iter().zip(records) {
            let first = match (record.end, record.first_token) {
                (Some(_), Some(first)) => first.saturating_sub(record.arrival),
                _ => {
                    failures += 1;
                    FAILED
                }
            };
            let mut is_within = first <= objective.ttft(turn);
            if let (Some(end), Some(start)) = (record.end, record.first_token)
                && turn.output_tokens > 1
            {
                let token = (end - start).div_f64((turn.output_tokens - 1) as f64);
                is_within &= token <= objective.tpot();
                tpot.push(token);
            }
            within += usize::from(is_within);
            let tenant = tenants.entry(turn.tenant.unwrap_or(0)).or_default();
            tenant.0 += first;
            tenant.1 += 1;
            ttft.push(first);
        }
        let known = tenants.values().filter(|(_, requests)| *requests >= LEAST_REQUESTS);
        let means = known.map(|(sum, requests)| sum.as_secs_f64() * 1e3 / f64::from(*requests));
        Self {
            ttft: Percentiles::of(ttft),
            tpot: Percentiles::of(tpot),
            worst_tenant: means.fold(0.0, f64::max),
            goodput: within as f64 / records.len().max(1) as f64,
            failures,
        }
    }
}
