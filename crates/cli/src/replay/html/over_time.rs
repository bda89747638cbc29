//! A run in slices of time: what arrived, what was found in caches, and the load of each pod.

use super::ReplayRun;
use crate::page::{Axis, Heat, HeatCell, HeatRow, count, escaped};
use std::time::Duration;

/// Slices of the time axis of a pod's load, and the most of a line.
const SLICES: usize = 80;
/// The fewest slices of a line, and the requests that a slice should have: a percentile of less says
/// little.
const FEWEST: usize = 10;
const REQUESTS: usize = 20;
/// The colours of series, as classes.
const COLOURS: [&str; 5] = ["c0", "c1", "c2", "c3", "c4"];

/// The figures of a run in equal slices of time.
pub(super) struct Slices {
    each: Duration,
    ttft: Vec<Vec<Duration>>,
    hit_tokens: Vec<usize>,
    prompt_tokens: Vec<usize>,
    arrived: Vec<usize>,
    in_flight: Vec<f64>,
}

impl Slices {
    pub(super) fn of(run: &ReplayRun<'_>, span: Duration) -> Self {
        let count = (run.records.len() / REQUESTS).clamp(FEWEST, SLICES);
        let mut slices = Self {
            each: span / count as u32,
            ttft: vec![Vec::new(); count],
            hit_tokens: vec![0; count],
            prompt_tokens: vec![0; count],
            arrived: vec![0; count],
            in_flight: vec![0.0; count],
        };
        for (turn, record) in run.trace.turns.iter().zip(run.records) {
            let arrived = slice_of(record.arrival, span, count);
            slices.arrived[arrived] += 1;
            let Some(end) = record.end else { continue };
            slices.hit_tokens[arrived] += record.cached_tokens;
            slices.prompt_tokens[arrived] += turn.prompt_tokens;
            slices.ttft[arrived].extend(record.first_token.map(|it| it - record.arrival));
            for (at, share) in shares(record.arrival, end, span, count) {
                slices.in_flight[at] += share;
            }
        }
        slices.ttft.iter_mut().for_each(|times| times.sort_unstable());
        slices
    }

    /// The number of slices.
    pub(super) fn count(&self) -> usize {
        self.arrived.len()
    }

    /// The 95th percentile of the requests that arrived in a slice, in seconds.
    pub(super) fn ttft_p95(&self, at: usize) -> f64 {
        let times = &self.ttft[at];
        let rank = (times.len() * 95).div_ceil(100);
        times.get(rank.saturating_sub(1)).map_or(f64::NAN, Duration::as_secs_f64)
    }

    /// The share of cached prompt tokens of the requests that arrived in a slice.
    pub(super) fn hit_rate(&self, at: usize) -> f64 {
        // Without requests it is no number, and the line has a gap.
        self.hit_tokens[at] as f64 / self.prompt_tokens[at] as f64
    }

    /// The mean number of requests between arrival and end.
    pub(super) fn in_flight(&self, at: usize) -> f64 {
        self.in_flight[at]
    }

    /// Requests that arrived, per second.
    pub(super) fn arrivals(&self, at: usize) -> f64 {
        self.arrived[at] as f64 / self.each.as_secs_f64()
    }
}

/// The load of each pod over time.
pub(super) fn load(number: usize, run: &ReplayRun<'_>, span: Duration) -> String {
    let mut in_flight = vec![[0.0_f64; SLICES]; run.pods];
    let mut requests = vec![0_usize; run.pods];
    let mut computed = vec![0_usize; run.pods];
    for (turn, record) in run.trace.turns.iter().zip(run.records) {
        let (Some((sent, pod)), Some(end)) = (record.sent, record.end) else { continue };
        requests[pod] += 1;
        computed[pod] += turn.prompt_tokens - record.cached_tokens;
        for (at, share) in shares(sent, end, span, SLICES) {
            in_flight[pod][at] += share;
        }
    }
    let most = in_flight.iter().flatten().fold(0.0, |most: f64, load| most.max(*load)).max(1.0);
    let colour = COLOURS[number % COLOURS.len()];
    let row = |pod: usize| {
        let cell = |at: usize| {
            let load = in_flight[pod][at];
            let title = || format!("pod {pod}: {load:.1} requests");
            (load > 0.0).then(|| HeatCell { colour, strength: load / most, title: title() })
        };
        HeatRow {
            name: format!("pod {pod}"),
            cells: (0..SLICES).map(cell).collect(),
            more: format!("{} · {}", requests[pod], count(computed[pod] as f64)),
        }
    };
    let rows = (0..run.pods).map(row).collect();
    let x = Axis::seconds("time since the start of the trace", span.as_secs_f64());
    let label = format!("{}: requests on each pod over time", run.name);
    let name = escaped(run.name);
    let heading = format!(
        "<h3 class=\"{colour}\"><span class=\"name\"><span class=\"square\"></span>{name}</span> \
         <span class=\"quiet\">at most {most:.0} requests on a pod</span></h3>\n"
    );
    heading + &Heat { label: &label, x, rows }.markup()
}

fn slice_of(time: Duration, span: Duration, slices: usize) -> usize {
    let slice = time.as_secs_f64() / span.as_secs_f64() * slices as f64;
    (slice as usize).min(slices - 1)
}

/// The slices between two times, and which share of each is between them.
fn shares(
    from: Duration,
    to: Duration,
    span: Duration,
    slices: usize,
) -> impl Iterator<Item = (usize, f64)> {
    let scale = slices as f64 / span.as_secs_f64();
    let start = from.as_secs_f64() * scale;
    let end = (to.as_secs_f64() * scale).min(slices as f64);
    (slice_of(from, span, slices)..=slice_of(to, span, slices)).map(move |at| {
        let share = end.min((at + 1) as f64) - start.max(at as f64);
        (at, share.max(0.0))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_counts_in_each_slice_for_as_long_as_it_is_there() {
        let span = Duration::from_secs(SLICES as u64);
        let seconds = Duration::from_secs_f64;
        let all: Vec<_> = shares(seconds(1.5), seconds(3.25), span, SLICES).collect();
        assert_eq!(all, [(1, 0.5), (2, 1.0), (3, 0.25)]);
        let short: Vec<_> = shares(seconds(2.25), seconds(2.5), span, SLICES).collect();
        assert_eq!(short, [(2, 0.25)]);
        let last: Vec<_> = shares(seconds(79.5), seconds(80.0), span, SLICES).collect();
        assert_eq!(last, [(79, 0.5)]);
    }
}
