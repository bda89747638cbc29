//! The figures of a replay: latency percentiles, hit rate, failures, imbalance.

use super::run::RequestRecord;
use super::trace::Trace;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Percentiles of a time, in milliseconds.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Percentiles {
    /// Half take at most this.
    pub p50: f64,
    /// 95 of 100 take at most this.
    pub p95: f64,
    /// 99 of 100 take at most this.
    pub p99: f64,
    /// The longest.
    pub longest: f64,
}

/// The figures of all requests of a replay.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Summary {
    /// Requests in all.
    pub requests: usize,
    /// Requests that failed. They count in no other figure.
    pub failures: usize,
    /// Time to first token, from arrival at the router.
    pub ttft: Percentiles,
    /// Time per token after the first, of outputs with at least two.
    pub tpot: Percentiles,
    /// Share of prompt tokens that were cached.
    pub hit_rate: f64,
    /// Requests of the busiest pod divided by the mean of all pods.
    pub imbalance: f64,
}

impl Summary {
    /// Summarizes a trace's records on `pods` pods, or on as many as got requests if those are
    /// more.
    #[must_use]
    pub fn of(trace: &Trace, records: &[RequestRecord], pods: usize) -> Self {
        let mut ttft = Vec::new();
        let mut tpot = Vec::new();
        let mut hit_tokens = 0;
        let mut prompt_tokens = 0;
        let mut failures = 0;
        let mut sent = vec![0; pods];
        for (turn, record) in trace.turns.iter().zip(records) {
            let Some(end) = record.end else {
                failures += 1;
                continue;
            };
            hit_tokens += record.cached_tokens;
            prompt_tokens += turn.prompt_tokens;
            if let Some((_, pod)) = record.sent {
                sent.resize(sent.len().max(pod + 1), 0);
                sent[pod] += 1;
            }
            let first = record.first_token.unwrap_or(end);
            ttft.push(first.saturating_sub(record.arrival));
            if turn.output_tokens > 1 {
                tpot.push((end - first).div_f64((turn.output_tokens - 1) as f64));
            }
        }
        let most = sent.iter().copied().max().unwrap_or(0);
        let mean = sent.iter().sum::<usize>() as f64 / sent.len().max(1) as f64;
        Self {
            requests: records.len(),
            failures,
            ttft: Percentiles::of(ttft),
            tpot: Percentiles::of(tpot),
            hit_rate: hit_tokens as f64 / prompt_tokens.max(1) as f64,
            imbalance: if mean > 0.0 { most as f64 / mean } else { 0.0 },
        }
    }

    /// Whether any request was answered. Without one the percentiles are zero and mean nothing.
    #[must_use]
    pub const fn is_answered(&self) -> bool {
        self.failures < self.requests
    }
}

impl Percentiles {
    /// The percentiles of `times`; all zero if there are none.
    #[must_use]
    pub fn of(mut times: Vec<Duration>) -> Self {
        times.sort_unstable();
        // The nearest rank: a time that was measured, not an interpolation.
        let at = |share: f64| {
            let rank = (share * times.len() as f64).ceil() as usize;
            times.get(rank.saturating_sub(1)).map_or(0.0, |time| time.as_secs_f64() * 1e3)
        };
        Self { p50: at(0.5), p95: at(0.95), p99: at(0.99), longest: at(1.0) }
    }
}
