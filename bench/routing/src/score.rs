//! Figures of policies, and how ours compares with the best peer of each case.

use crate::case::Case;
use crate::policy::Policy;
use std::fmt;
use wornpath_sim::replay::{Percentiles, Summary};

/// The mean of a policy's runs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Figures {
    pub(crate) ttft: Percentiles,
    pub(crate) tpot: Percentiles,
    pub(crate) hit_rate: f64,
    pub(crate) failures: usize,
}

pub(crate) const HEADER: &str = "  policy                 TTFT ms    p50      p95      p99  longest   \
                                 TPOT ms  p50    p99   hits  failed";

pub(crate) fn line(name: &str, of: &Figures) -> String {
    let Figures { ttft, tpot, hit_rate, failures } = of;
    format!(
        "  {name:<24} {:>11.0} {:>8.0} {:>8.0} {:>8.0}   {:>12.1} {:>6.1}  {hit_rate:.3}  {failures}",
        ttft.p50, ttft.p95, ttft.p99, ttft.longest, tpot.p50, tpot.p99
    )
}

impl Figures {
    pub(crate) fn mean(runs: &[Summary]) -> Self {
        let of = |figure: fn(&Summary) -> f64| {
            runs.iter().map(figure).sum::<f64>() / runs.len().max(1) as f64
        };
        let percentiles = |part: fn(&Summary) -> &Percentiles| {
            let of = |figure: fn(&Percentiles) -> f64| {
                runs.iter().map(|run| figure(part(run))).sum::<f64>() / runs.len().max(1) as f64
            };
            Percentiles {
                p50: of(|p| p.p50),
                p95: of(|p| p.p95),
                p99: of(|p| p.p99),
                longest: of(|p| p.longest),
            }
        };
        Self {
            ttft: percentiles(|run| &run.ttft),
            tpot: percentiles(|run| &run.tpot),
            hit_rate: of(|run| run.hit_rate),
            failures: runs.iter().map(|run| run.failures).sum(),
        }
    }
}

/// One case: ours divided by the best peer.
pub(crate) struct Row {
    case: String,
    best: String,
    p95: f64,
    /// Against the lowest p99 of any peer, not only of the best one.
    p99: f64,
    tpot_p50: f64,
    tpot_p99: f64,
    longest: f64,
    failures: usize,
}

impl Row {
    /// `figures` has ours first. A peer with failed requests is never the best.
    pub(crate) fn of(case: &Case, policies: &[Policy], figures: &[Figures]) -> Self {
        let (ours, peers) = figures.split_first().expect("ours is always there");
        let sound = || peers.iter().zip(&policies[1..]).filter(|(peer, _)| peer.failures == 0);
        let best = sound().min_by(|(a, _), (b, _)| a.ttft.p95.total_cmp(&b.ttft.p95));
        let (best, name) = best.map_or((ours, "none"), |(best, policy)| (best, &policy.name));
        let p99 = sound().map(|(peer, _)| peer.ttft.p99).fold(f64::INFINITY, f64::min);
        Self {
            case: format!("{} {}", case.file.trim_end_matches(".jsonl"), case.pods),
            best: name.to_owned(),
            p95: ours.ttft.p95 / best.ttft.p95,
            p99: if p99.is_finite() { ours.ttft.p99 / p99 } else { 1.0 },
            tpot_p50: ours.tpot.p50 / best.tpot.p50,
            tpot_p99: ours.tpot.p99 / best.tpot.p99,
            longest: ours.ttft.longest / best.ttft.longest,
            failures: ours.failures,
        }
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { case, best, p95, p99, tpot_p50, tpot_p99, longest, failures } = self;
        write!(
            f,
            "  {case}: to {best}: p95 {p95:.3}, p99 {p99:.3}, TPOT p50 {tpot_p50:.3} p99 {tpot_p99:.3}, \
             longest wait {longest:.3}, failed {failures}"
        )
    }
}

fn geomean(rows: &[Row]) -> f64 {
    (rows.iter().map(|row| row.p95.ln()).sum::<f64>() / rows.len() as f64).exp()
}

/// All cases under a disturbance: in the mean no worse than the best peer.
pub(crate) fn robustness(name: &str, rows: &[Row]) -> String {
    let mean = geomean(rows);
    let failures = rows.iter().map(|row| row.failures).sum::<usize>();
    let worst = rows.iter().map(|row| row.p95).fold(0.0, f64::max);
    let verdict = if mean <= 1.0 && failures == 0 { "pass" } else { "MISS" };
    format!(
        "{verdict} {name}: p95 geomean {mean:.3}, bar 1; worst {worst:.3}; {failures} failed requests\n"
    )
}

/// All cases together, each bar with the figure that was reached.
pub(crate) fn verdict(rows: &[Row]) -> String {
    let worst = |of: fn(&Row) -> f64| rows.iter().map(of).fold(0.0, f64::max);
    let geomean = geomean(rows);
    let bars = [
        ("p95 worst", worst(|row| row.p95), 1.05),
        ("p95 geomean", geomean, 0.92),
        ("p99 worst", worst(|row| row.p99), 1.10),
        ("TPOT p50 worst", worst(|row| row.tpot_p50), 1.15),
        ("TPOT p99 worst", worst(|row| row.tpot_p99), 1.3),
        ("longest wait worst", worst(|row| row.longest), 2.0),
    ];
    let mut text = String::new();
    for row in rows {
        text += &format!("{row}\n");
    }
    for (name, value, bar) in bars {
        let verdict = if value <= bar { "pass" } else { "MISS" };
        text += &format!("{verdict} {name} {value:.3}, bar {bar}\n");
    }
    text += &format!("routing: worst p95 ratio to best peer = {:.3}\n", bars[0].1);
    text += &format!("routing: geomean p95 ratio to best peer = {geomean:.3}\n");
    text
}
