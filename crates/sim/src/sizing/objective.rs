//! Objectives such as `p95 ttft 500ms`: at least 95 of 100 requests have their first token within
//! 500 ms.

use crate::replay::{RequestRecord, Trace, TraceTurn};
use std::fmt;
use std::str::FromStr;
use std::time::Duration;
use wornpath_routing::nearest;

/// Percentiles are kept in thousandths of a percent, so that ranks are exact.
const WHOLE: u64 = 100_000;

/// A latency of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LatencyMetric {
    /// Time to first token, from arrival at the router.
    Ttft,
    /// Time per token after the first, of outputs with at least two.
    Tpot,
    /// Time from arrival to the last token.
    EndToEnd,
}

/// A limit on a percentile of a latency. A request that fails has no latency within any limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Objective {
    metric: LatencyMetric,
    /// In thousandths of a percent.
    percentile: u64,
    limit: Duration,
}

/// Why a text is no objective.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ObjectiveError {
    /// It has other parts than a percentile, a latency and a limit.
    #[error(
        "`{0}` is not an objective; write a percentile, a latency and a limit, like `p95 ttft 500ms`"
    )]
    Form(String),
    /// The percentile is invalid.
    #[error("`{0}` is not a percentile; write p50, p95 or p99.9, above p0 and up to p100")]
    Percentile(String),
    /// The latency is unknown.
    #[error("unknown latency `{name}`; {hint}available: ttft, tpot, e2e")]
    Metric {
        /// The unknown name.
        name: String,
        /// What it may mean.
        hint: String,
    },
    /// The limit is invalid.
    #[error("`{0}` is not a limit; write a time above zero, like 500ms or 1.5s")]
    Limit(String),
}

impl LatencyMetric {
    const ALL: [Self; 3] = [Self::Ttft, Self::Tpot, Self::EndToEnd];

    /// Its name in objectives.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ttft => "ttft",
            Self::Tpot => "tpot",
            Self::EndToEnd => "e2e",
        }
    }

    /// Whether it is measured of a request.
    fn applies_to(self, turn: &TraceTurn) -> bool {
        self != Self::Tpot || turn.output_tokens > 1
    }

    /// Its value for a request; none if the request failed.
    fn of(self, turn: &TraceTurn, record: &RequestRecord) -> Option<Duration> {
        let end = record.end?;
        let first = record.first_token.unwrap_or(end);
        Some(match self {
            Self::Ttft => first.saturating_sub(record.arrival),
            Self::Tpot => (end - first).div_f64((turn.output_tokens - 1) as f64),
            Self::EndToEnd => end.saturating_sub(record.arrival),
        })
    }
}

impl Objective {
    /// The latency that it limits.
    #[must_use]
    pub const fn metric(&self) -> LatencyMetric {
        self.metric
    }

    /// The limit.
    #[must_use]
    pub const fn limit(&self) -> Duration {
        self.limit
    }

    /// What it limits, such as `p95 ttft`.
    #[must_use]
    pub fn name(&self) -> String {
        let percent = self.percentile as f64 / (WHOLE / 100) as f64;
        format!("p{percent} {}", self.metric.name())
    }

    /// Of so many requests, how many must be within the limit: the nearest rank.
    fn rank(&self, requests: usize) -> usize {
        (requests as u64 * self.percentile).div_ceil(WHOLE) as usize
    }

    /// The percentile's value; none if it falls on a request that failed. Zero without requests.
    #[must_use]
    pub fn value(&self, trace: &Trace, records: &[RequestRecord]) -> Option<Duration> {
        let measured = trace.turns.iter().zip(records);
        let measured = measured.filter(|(turn, _)| self.metric.applies_to(turn));
        let mut values: Vec<Option<Duration>> =
            measured.map(|(turn, record)| self.metric.of(turn, record)).collect();
        // Requests that failed are last.
        values.sort_unstable_by_key(|value| (value.is_none(), *value));
        let rank = self.rank(values.len());
        values.get(rank.saturating_sub(1)).copied().unwrap_or(Some(Duration::ZERO))
    }
}

impl fmt::Display for Objective {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:?}", self.name(), self.limit)
    }
}

impl FromStr for Objective {
    type Err = ObjectiveError;

    /// Parses `p95 ttft 500ms`; `<`, `<=` and `under` may stand before the limit.
    fn from_str(text: &str) -> Result<Self, ObjectiveError> {
        let words = text.replace("<=", " ").replace('<', " ");
        let words: Vec<&str> = words.split_whitespace().filter(|word| *word != "under").collect();
        let [percentile, metric, limit] = words[..] else {
            return Err(ObjectiveError::Form(text.trim().to_owned()));
        };
        Ok(Self {
            percentile: self::percentile(percentile)?,
            metric: self::metric(metric)?,
            limit: self::limit(limit)?,
        })
    }
}

fn percentile(text: &str) -> Result<u64, ObjectiveError> {
    let number = text.strip_prefix(['p', 'P']).and_then(|number| number.parse::<f64>().ok());
    let scaled = number.map(|percent| percent * (WHOLE / 100) as f64);
    let exact = scaled.filter(|scaled| {
        (scaled - scaled.round()).abs() < 1e-6 && (1.0..=WHOLE as f64).contains(scaled)
    });
    let invalid = || ObjectiveError::Percentile(text.to_owned());
    exact.map(|scaled| scaled.round() as u64).ok_or_else(invalid)
}

fn metric(text: &str) -> Result<LatencyMetric, ObjectiveError> {
    let name = text.to_lowercase();
    let known = LatencyMetric::ALL.into_iter().find(|metric| metric.name() == name);
    known.ok_or_else(|| {
        let near = nearest(&name, LatencyMetric::ALL.into_iter().map(LatencyMetric::name));
        let hint = near.map_or_else(String::new, |near| format!("did you mean `{near}`? "));
        ObjectiveError::Metric { name: text.to_owned(), hint }
    })
}

fn limit(text: &str) -> Result<Duration, ObjectiveError> {
    let invalid = || ObjectiveError::Limit(text.to_owned());
    let (number, unit) = match (text.strip_suffix("ms"), text.strip_suffix('s')) {
        (Some(number), _) => (number, 1e-3),
        (None, Some(number)) => (number, 1.0),
        (None, None) => return Err(invalid()),
    };
    let seconds = number.parse::<f64>().map_err(|_| invalid())? * unit;
    let limit = Duration::try_from_secs_f64(seconds).map_err(|_| invalid())?;
    if limit.is_zero() { Err(invalid()) } else { Ok(limit) }
}

/// Counts the requests that miss each objective, while they end.
#[derive(Clone, Debug)]
pub struct MissCount {
    /// Each objective, its misses so far, and how many there may be.
    counts: Vec<Misses>,
}

#[derive(Clone, Copy, Debug)]
struct Misses {
    objective: Objective,
    so_far: usize,
    allowed: usize,
}

impl MissCount {
    /// Begins with the requests of a trace.
    #[must_use]
    pub fn of(objectives: &[Objective], trace: &Trace) -> Self {
        let misses = |objective: &Objective| {
            let turns = trace.turns.iter();
            let all = turns.filter(|turn| objective.metric.applies_to(turn)).count();
            let allowed = all - objective.rank(all);
            Misses { objective: *objective, so_far: 0, allowed }
        };
        Self { counts: objectives.iter().map(misses).collect() }
    }

    /// Adds a request that has ended.
    pub fn add(&mut self, turn: &TraceTurn, record: &RequestRecord) {
        for Misses { objective: Objective { metric, limit, .. }, so_far, .. } in &mut self.counts {
            let is_within = || metric.of(turn, record).is_some_and(|value| value <= *limit);
            *so_far += usize::from(metric.applies_to(turn) && !is_within());
        }
    }

    /// Whether all objectives are met, unless later requests miss them.
    #[must_use]
    pub fn is_met(&self) -> bool {
        self.counts.iter().all(|misses| misses.so_far <= misses.allowed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Result<Objective, String> {
        text.parse().map_err(|error: ObjectiveError| error.to_string())
    }

    #[test]
    fn objectives_are_read_as_people_write_them() {
        let plain = parsed("p95 ttft 500ms").unwrap();
        assert_eq!(plain.limit(), Duration::from_millis(500));
        assert_eq!(plain.to_string(), "p95 ttft 500ms");
        for same in [" P95  TTFT  <= 500ms ", "p95 ttft<0.5s", "p95 ttft under 500ms"] {
            assert_eq!(parsed(same).unwrap(), plain, "{same}");
        }
        assert_eq!(parsed("p99.9 tpot 40ms").unwrap().to_string(), "p99.9 tpot 40ms");
        assert_eq!(parsed("p100 e2e 2s").unwrap().name(), "p100 e2e");
    }

    #[test]
    fn each_part_that_is_wrong_is_named_with_the_cure() {
        for (text, told) in [
            ("", "`` is not an objective; write a percentile"),
            ("p95 ttft", "`p95 ttft` is not an objective"),
            ("p95 ttft 500 ms", "is not an objective"),
            ("95 ttft 500ms", "`95` is not a percentile; write p50"),
            ("p0 ttft 500ms", "`p0` is not a percentile"),
            ("p101 ttft 500ms", "`p101` is not a percentile"),
            ("pNaN ttft 500ms", "`pNaN` is not a percentile"),
            (
                "p95 ttf 500ms",
                "unknown latency `ttf`; did you mean `ttft`? available: ttft, tpot, e2e",
            ),
            ("p95 latency 500ms", "unknown latency `latency`; available: ttft"),
            ("p95 ttft 500", "`500` is not a limit; write a time above zero"),
            ("p95 ttft 0ms", "`0ms` is not a limit"),
            ("p95 ttft -1s", "`-1s` is not a limit"),
            ("p95 ttft infs", "`infs` is not a limit"),
        ] {
            let error = parsed(text).unwrap_err();
            assert!(error.contains(told), "{text}: {error}");
        }
    }

    #[test]
    fn a_percentile_is_the_nearest_rank() {
        let p95 = parsed("p95 ttft 1s").unwrap();
        assert_eq!([1, 19, 20, 21, 100, 101].map(|all| p95.rank(all)), [1, 19, 19, 20, 95, 96]);
        let all = parsed("p100 ttft 1s").unwrap();
        assert_eq!([0, 1, 77].map(|count| all.rank(count)), [0, 1, 77]);
        let fine = parsed("p99.9 ttft 1s").unwrap();
        assert_eq!([999, 1_000, 1_001].map(|count| fine.rank(count)), [999, 999, 1_000]);
    }
}
