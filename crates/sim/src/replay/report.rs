//! A replay as one self-contained HTML page: a table and plots, drawn as SVG.

use super::run::RequestRecord;
use super::summary::Summary;
use super::trace::Trace;
use std::fmt::Write;
use std::time::Duration;

const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 220.0;
/// Time slices of the plots.
const SLICES: usize = 80;
/// Maximum of pods whose load is drawn; more would be thinner than a line.
const DRAWN_PODS: usize = 64;

const COLOURS: [&str; 8] =
    ["#1b6ca8", "#d1495b", "#2e933c", "#8e5ea2", "#e0a100", "#3cba9f", "#7f4f24", "#555555"];

const STYLE: &str = "body{font:15px/1.45 system-ui,sans-serif;max-width:820px;margin:2em auto;color:#222}\
    table{border-collapse:collapse}td,th{padding:.2em .7em;text-align:right;border-bottom:1px solid #ddd}\
    td:first-child,th:first-child{text-align:left}svg{background:#fafafa;display:block;margin:.4em 0 1.4em}\
    text{font-size:11px;fill:#555}";

/// One profile's run.
#[derive(Clone, Copy, Debug)]
pub struct ReplayRun<'a> {
    /// The profile's name.
    pub name: &'a str,
    /// The replayed trace.
    pub trace: &'a Trace,
    /// One record for each turn of the trace.
    pub records: &'a [RequestRecord],
}

/// Renders the page.
#[must_use]
pub fn html_report(title: &str, runs: &[ReplayRun<'_>]) -> String {
    let title = escaped(title);
    let mut page = format!(
        "<!doctype html><meta charset=utf-8><title>{title}</title><style>{STYLE}</style><h1>{title}</h1>\n"
    );
    table(runs, &mut page);
    page.push_str(
        "<h2>Time to first token</h2><p>Share of requests that had their first token by then.</p>",
    );
    let lines: Vec<_> = runs.iter().map(first_token_curve).collect();
    plot(&lines, ["1 ms", "100 s"], &mut page);
    page.push_str(
        "<h2>Hit rate</h2><p>Share of prompt tokens found cached, over the time of the trace.</p>",
    );
    let lines: Vec<_> = runs.iter().map(hit_rate_curve).collect();
    plot(&lines, ["start", "end"], &mut page);
    page.push_str("<h2>Load</h2><p>Requests in flight on each engine over time, one row per engine; darker means more.</p>");
    for run in runs {
        heat(run, &mut page);
    }
    page
}

fn table(runs: &[ReplayRun<'_>], page: &mut String) {
    page.push_str(
        "<table><tr><th>profile<th>TTFT p50 ms<th>p95<th>p99<th>longest<th>TPOT p50 ms<th>p99<th>hit rate<th>failed\n",
    );
    for (at, run) in runs.iter().enumerate() {
        let summary = Summary::of(run.trace, run.records, 0);
        if !summary.is_answered() {
            let colour = colour(at);
            let name = escaped(run.name);
            let all = summary.requests;
            let _ = writeln!(
                page,
                "<tr><td><span style=\"color:{colour}\">&#9632;</span> {name}<td colspan=\"7\">none of {all} was answered<td>{all}",
            );
            continue;
        }
        let Summary { ttft, tpot, hit_rate, failures, .. } = summary;
        // Writing to a string does not fail, here and below.
        let _ = writeln!(
            page,
            "<tr><td><span style=\"color:{}\">&#9632;</span> {}<td>{:.0}<td>{:.0}<td>{:.0}<td>{:.0}<td>{:.1}<td>{:.1}<td>{hit_rate:.3}<td>{failures}",
            colour(at),
            escaped(run.name),
            ttft.p50,
            ttft.p95,
            ttft.p99,
            ttft.longest,
            tpot.p50,
            tpot.p99,
        );
    }
    page.push_str("</table>\n");
}

/// Points in the unit square; x is the logarithm of the time from a millisecond to 100 seconds.
fn first_token_curve(run: &ReplayRun<'_>) -> Vec<(f64, f64)> {
    let time = |record: &RequestRecord| Some(record.first_token?.saturating_sub(record.arrival));
    let mut times: Vec<Duration> = run.records.iter().filter_map(time).collect();
    times.sort_unstable();
    let all = run.records.len() as f64;
    let point = |step: usize| {
        let at = (step * times.len() / 200).min(times.len().saturating_sub(1));
        let milliseconds = times.get(at)?.as_secs_f64() * 1e3;
        Some((milliseconds.max(1.0).log10() / 5.0, (at + 1) as f64 / all))
    };
    (0..=200).filter_map(point).collect()
}

fn hit_rate_curve(run: &ReplayRun<'_>) -> Vec<(f64, f64)> {
    let span = span(run);
    let mut hits = [0_usize; SLICES];
    let mut prompts = [0_usize; SLICES];
    for (turn, record) in run.trace.turns.iter().zip(run.records) {
        if record.end.is_some() {
            let slice = slice_of(record.arrival, span);
            hits[slice] += record.cached_tokens;
            prompts[slice] += turn.prompt_tokens;
        }
    }
    let point = |at: usize| {
        let rate = hits[at] as f64 / prompts[at] as f64;
        (prompts[at] > 0).then_some(((at as f64 + 0.5) / SLICES as f64, rate))
    };
    (0..SLICES).filter_map(point).collect()
}

fn heat(run: &ReplayRun<'_>, page: &mut String) {
    let span = span(run);
    let mut load: Vec<[u32; SLICES]> = Vec::new();
    for record in run.records {
        let (Some((sent, pod)), Some(end)) = (record.sent, record.end) else { continue };
        if pod < DRAWN_PODS {
            load.resize(load.len().max(pod + 1), [0; SLICES]);
            for slice in &mut load[pod][slice_of(sent, span)..=slice_of(end, span)] {
                *slice += 1;
            }
        }
    }
    let most = load.iter().flatten().max().copied().unwrap_or(1).max(1);
    let cell_width = WIDTH / SLICES as f64;
    let row_height = 10.0;
    let height = row_height * load.len() as f64;
    let _ = writeln!(
        page,
        "<p>{}, at most {most}</p><svg width={WIDTH} height={height}>",
        escaped(run.name)
    );
    for (pod, slices) in load.iter().enumerate() {
        for (at, count) in slices.iter().enumerate().filter(|(_, count)| **count > 0) {
            let x = at as f64 * cell_width;
            let y = pod as f64 * row_height;
            let shade = f64::from(*count) / f64::from(most);
            let _ = writeln!(
                page,
                "<rect x={x:.1} y={y} width={cell_width:.1} height={row_height} fill=\"#1b6ca8\" fill-opacity=\"{shade:.2}\"/>"
            );
        }
    }
    page.push_str("</svg>\n");
}

/// Draws lines through points of the unit square.
fn plot(lines: &[Vec<(f64, f64)>], ends: [&str; 2], page: &mut String) {
    let _ = writeln!(page, "<svg width={WIDTH} height={}>", HEIGHT + 20.0);
    for quarter in 0..=4 {
        let y = HEIGHT * (1.0 - f64::from(quarter) / 4.0);
        let _ = writeln!(
            page,
            "<line x1=0 x2={WIDTH} y1={y} y2={y} stroke=\"#ddd\"/><text x=2 y={:.0}>{}%</text>",
            (y - 2.0).max(10.0),
            quarter * 25
        );
    }
    for (at, line) in lines.iter().enumerate() {
        let points: Vec<String> = line
            .iter()
            .map(|(x, y)| format!("{:.1},{:.1}", x.min(1.0) * WIDTH, HEIGHT * (1.0 - y)))
            .collect();
        let points = points.join(" ");
        let colour = colour(at);
        let _ = writeln!(
            page,
            "<polyline points=\"{points}\" fill=none stroke=\"{colour}\" stroke-width=1.6 />"
        );
    }
    let y = HEIGHT + 14.0;
    let right = WIDTH - 4.0;
    let _ = writeln!(
        page,
        "<text x=2 y={y}>{}</text><text x={right} y={y} text-anchor=end>{}</text></svg>",
        ends[0], ends[1]
    );
}

/// The time from the start until the last request ended.
fn span(run: &ReplayRun<'_>) -> Duration {
    run.records.iter().filter_map(|record| record.end).max().unwrap_or(Duration::from_secs(1))
}

fn slice_of(time: Duration, span: Duration) -> usize {
    let slice = time.as_secs_f64() / span.as_secs_f64() * SLICES as f64;
    (slice as usize).min(SLICES - 1)
}

fn colour(at: usize) -> &'static str {
    COLOURS[at % COLOURS.len()]
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
