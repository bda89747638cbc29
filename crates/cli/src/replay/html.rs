//! The page of `replay --html`: profiles compared, distributions, the course of time, and the load
//! of each pod. It shows the first run of each profile.

mod over_time;

use crate::page::{Axis, Chart, Page, Series, TableCell, count, percent, time};
use over_time::{Slices, load};
use std::time::Duration;
use wornpath_sim::replay::{RequestRecord, Summary, Trace};

/// One profile's run.
#[derive(Clone, Copy)]
pub(super) struct ReplayRun<'a> {
    pub(super) name: &'a str,
    pub(super) trace: &'a Trace,
    /// One record for each turn of the trace.
    pub(super) records: &'a [RequestRecord],
    pub(super) pods: usize,
}

impl ReplayRun<'_> {
    fn summary(&self) -> Summary {
        Summary::of(self.trace, self.records, self.pods)
    }

    /// The time until the last request ended.
    fn span(&self) -> Duration {
        let end = self.records.iter().filter_map(|record| record.end).max();
        end.unwrap_or_default().max(Duration::from_millis(1))
    }
}

pub(super) fn page(file: &str, facts: &str, runs: &[ReplayRun<'_>]) -> String {
    let mut page = Page::new("replay", file, facts);
    page.verdict(&verdict(runs));
    compared(runs, &mut page);
    page.section(
        "Distributions",
        "How many requests had their latency by then. The axes begin at 0 and are stretched for short times (square \
         root), so that the slowest percent does not hide the rest; the slowest 1% may lie beyond the right edge.",
    );
    page.push("<div class=\"plots\">\n");
    page.push(distribution("Time to first token", runs, time_to_first_token));
    page.push(distribution("Time per token after the first", runs, time_per_token));
    page.push("</div>\n");
    page.section(
        "Over time",
        "Virtual time from the start of the trace. A line ends when the profile's last request has ended: the later, the \
         further it fell behind.",
    );
    over_time(runs, &mut page);
    page.section(
        "Load of each pod",
        "Requests on each pod over time, running or waiting in it; a stronger colour means more, and none an idle \
         pod. At the right of each row: requests, and prompt tokens computed.",
    );
    let most = runs.iter().map(ReplayRun::span).max().unwrap_or_default();
    for (number, run) in runs.iter().enumerate() {
        page.push(load(number, run, most));
    }
    page.finish()
}

/// Which profile was best, in a sentence or two.
fn verdict(runs: &[ReplayRun<'_>]) -> Vec<String> {
    let answered: Vec<_> = runs.iter().map(|run| (run.name, run.summary())).collect();
    let answered: Vec<_> = answered.into_iter().filter(|(_, all)| all.is_answered()).collect();
    let mut by_p95: Vec<_> = answered.iter().collect();
    by_p95.sort_by(|(_, one), (_, other)| one.ttft.p95.total_cmp(&other.ttft.p95));
    let mut all = match by_p95[..] {
        [] => vec!["No request was answered under any profile.".to_owned()],
        [(name, only)] => vec![format!(
            "Under {name}, 95 of 100 requests have their first token within {}, and {} of the prompt tokens come from caches.",
            milliseconds(only.ttft.p95),
            percent(only.hit_rate)
        )],
        [(name, best), .., (last, worst)] => vec![format!(
            "{name} has the lowest p95 time to first token: {}; {last} has {}, {:.1} times as long.",
            milliseconds(best.ttft.p95),
            milliseconds(worst.ttft.p95),
            worst.ttft.p95 / best.ttft.p95.max(1e-3)
        )],
    };
    let hits = |(_, one): &&(&str, Summary), (_, other): &&(&str, Summary)| {
        one.hit_rate.total_cmp(&other.hit_rate)
    };
    if let (Some((name, best)), true) = (answered.iter().max_by(hits), answered.len() > 1) {
        all.push(format!(
            "{name} finds the most in caches: {} of the prompt tokens.",
            percent(best.hit_rate)
        ));
    }
    all
}

fn milliseconds(value: f64) -> String {
    time(Duration::from_secs_f64(value / 1e3))
}

/// A figure of a summary, as it is compared: lower is better, and `shown` is its text.
struct Compared {
    value: f64,
    shown: String,
}

fn compared(runs: &[ReplayRun<'_>], page: &mut Page) {
    page.section("Profiles compared", "The best of each column is green.");
    let heads = [
        "profile",
        "TTFT p50",
        "TTFT p95",
        "TTFT p99",
        "TTFT longest",
        "TPOT p50",
        "TPOT p99",
        "hit rate",
        "computed tokens",
        "busiest pod",
        "failed",
    ];
    let latency = |value: f64| Compared { value, shown: milliseconds(value) };
    let rows: Vec<Option<Vec<Compared>>> = runs
        .iter()
        .map(|run| {
            let all = run.summary();
            let Summary { ttft, tpot, hit_rate, imbalance, failures, .. } = all;
            let computed = computed_tokens(run) as f64;
            all.is_answered().then(|| {
                vec![
                    latency(ttft.p50),
                    latency(ttft.p95),
                    latency(ttft.p99),
                    latency(ttft.longest),
                    latency(tpot.p50),
                    latency(tpot.p99),
                    Compared { value: -hit_rate, shown: percent(hit_rate) },
                    Compared { value: computed, shown: count(computed) },
                    Compared { value: imbalance, shown: format!("{imbalance:.2}x") },
                    Compared { value: failures as f64, shown: failures.to_string() },
                ]
            })
        })
        .collect();
    let known: Vec<&Vec<Compared>> = rows.iter().flatten().collect();
    let best = |at: usize| known.iter().map(|row| row[at].value).fold(f64::INFINITY, f64::min);
    let is_best = |at: usize, value: f64| known.len() > 1 && value <= best(at);
    let row = |(number, row): (usize, &Option<Vec<Compared>>)| {
        let name = TableCell::series(number, runs[number].name);
        let Some(row) = row else {
            return vec![name, TableCell::text("no request was answered")];
        };
        let cells = row.iter().enumerate();
        let cells = cells
            .map(|(at, figure)| TableCell::text(&figure.shown).best_if(is_best(at, figure.value)));
        [name].into_iter().chain(cells).collect()
    };
    let rows: Vec<_> = rows.iter().enumerate().map(row).collect();
    page.table(&heads, &rows);
}

/// Prompt tokens that were computed instead of found in a cache.
fn computed_tokens(run: &ReplayRun<'_>) -> usize {
    let ended = run.trace.turns.iter().zip(run.records).filter(|(_, record)| record.end.is_some());
    ended.map(|(turn, record)| turn.prompt_tokens - record.cached_tokens).sum()
}

fn time_to_first_token(run: &ReplayRun<'_>) -> Vec<Duration> {
    let of = |record: &RequestRecord| Some(record.first_token?.saturating_sub(record.arrival));
    run.records.iter().filter_map(of).collect()
}

fn time_per_token(run: &ReplayRun<'_>) -> Vec<Duration> {
    let turns = run.trace.turns.iter().zip(run.records);
    let several = turns.filter(|(turn, _)| turn.output_tokens > 1);
    let each = several.filter_map(|(turn, record)| {
        let decoding = record.end?.saturating_sub(record.first_token?);
        Some(decoding.div_f64((turn.output_tokens - 1) as f64))
    });
    each.collect()
}

fn distribution(
    title: &str,
    runs: &[ReplayRun<'_>],
    latencies: fn(&ReplayRun<'_>) -> Vec<Duration>,
) -> String {
    let sorted = |run| {
        let mut times = latencies(run);
        times.sort_unstable();
        times
    };
    let all: Vec<Vec<Duration>> = runs.iter().map(sorted).collect();
    let p99 = |times: &Vec<Duration>| times.get(times.len() * 99 / 100).copied();
    let most = all.iter().filter_map(p99).max().unwrap_or_default();
    let series = runs.iter().zip(&all).enumerate().map(|(number, (run, times))| {
        let requests = times.len().max(1);
        let point = |step: usize| {
            let at = (step * times.len() / 200).min(times.len().saturating_sub(1));
            let time = times.get(at)?.as_secs_f64();
            Some((time, (at + 1) as f64 / requests as f64))
        };
        let points = [(0.0, 0.0)].into_iter().chain((0..=200).filter_map(point)).collect();
        Series { number, name: run.name, points }
    });
    Chart {
        title,
        x: Axis::square_root_seconds("within this time", most.as_secs_f64()),
        y: Axis::percent("requests"),
        series: series.collect(),
        limit: None,
    }
    .markup()
}

/// What one chart over time shows of a slice.
type SliceFigure = fn(&Slices, usize) -> f64;

fn over_time(runs: &[ReplayRun<'_>], page: &mut Page) {
    let span = runs.iter().map(ReplayRun::span).max().unwrap_or_default();
    let all: Vec<Slices> = runs.iter().map(|run| Slices::of(run, span)).collect();
    let highest = |figure: SliceFigure| {
        let values =
            all.iter().flat_map(|slices| (0..slices.count()).map(move |at| figure(slices, at)));
        values.filter(|value| value.is_finite()).fold(0.0, f64::max)
    };
    let chart = |title, y: Axis, figure: SliceFigure| {
        let series = runs.iter().zip(&all).enumerate().map(|(number, (run, slices))| {
            let count = slices.count();
            let middle = |at: usize| (at as f64 + 0.5) / count as f64 * span.as_secs_f64();
            let points = (0..count).map(|at| (middle(at), figure(slices, at))).collect();
            Series { number, name: run.name, points }
        });
        let x = Axis::seconds("time since the start of the trace", span.as_secs_f64());
        Chart { title, x, y, series: series.collect(), limit: None }.markup()
    };
    page.push("<div class=\"plots\">\n");
    let most = highest(Slices::ttft_p95);
    page.push(chart("p95 time to first token", Axis::seconds("p95", most), Slices::ttft_p95));
    page.push(chart("Hit rate", Axis::percent("of prompt tokens"), Slices::hit_rate));
    let most = highest(Slices::in_flight);
    page.push(chart("Requests in flight", Axis::count("requests", most), Slices::in_flight));
    let most = highest(Slices::arrivals);
    page.push(chart("Arrivals", Axis::count("requests/s", most), Slices::arrivals));
    page.push("</div>\n");
}

#[cfg(test)]
mod tests;
