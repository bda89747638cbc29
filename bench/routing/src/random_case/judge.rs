//! Figures of a policy on many cases, each as its ratio to the best peer of that case.

use super::JudgedCase;
use super::measure::Measured;

/// One figure: more than 1 is worse than the best peer, except for goodput.
struct Figure {
    name: &'static str,
    of: fn(&Measured) -> f64,
    /// Below this difference two values are the same: nothing is better than zero by a ratio.
    least: f64,
    against: Against,
    /// The bars of the geometric mean and of the worst case in a hundred.
    bars: [Option<f64>; 2],
}

/// The value of the peers that ours is divided by.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Against {
    /// The lowest of any peer.
    Lowest,
    /// That of the peer with the lowest p95 TTFT.
    Best,
    /// The highest of any peer; lower is worse.
    Highest,
}

#[rustfmt::skip]
const FIGURES: [Figure; 8] = [
    Figure { name: "TTFT p95", of: |of| of.ttft.p95, least: 5.0, against: Against::Lowest, bars: [Some(0.88), Some(1.10)] },
    Figure { name: "TTFT p50", of: |of| of.ttft.p50, least: 5.0, against: Against::Best, bars: [None, None] },
    Figure { name: "TTFT p99", of: |of| of.ttft.p99, least: 5.0, against: Against::Lowest, bars: [None, Some(1.25)] },
    Figure { name: "TPOT p50", of: |of| of.tpot.p50, least: 0.5, against: Against::Best, bars: [None, Some(1.10)] },
    Figure { name: "TPOT p99", of: |of| of.tpot.p99, least: 0.5, against: Against::Best, bars: [None, Some(1.25)] },
    Figure { name: "longest", of: |of| of.ttft.longest, least: 5.0, against: Against::Best, bars: [None, Some(1.5)] },
    Figure { name: "tenant", of: |of| of.worst_tenant, least: 5.0, against: Against::Best, bars: [None, None] },
    Figure { name: "goodput", of: |of| of.goodput, least: 0.01, against: Against::Highest, bars: [Some(1.0), None] },
];

impl Figure {
    fn ratio(&self, ours: &Measured, peers: &[Measured]) -> f64 {
        let values = || peers.iter().map(self.of);
        let peer = match self.against {
            Against::Lowest => values().fold(f64::INFINITY, f64::min),
            Against::Highest => values().fold(0.0, f64::max),
            Against::Best => {
                let best = peers.iter().min_by(|a, b| a.ttft.p95.total_cmp(&b.ttft.p95));
                best.map_or(f64::NAN, self.of)
            }
        };
        ((self.of)(ours) + self.least) / (peer + self.least)
    }

    /// The geometric mean of the ratios, and the worst but for one in a hundred.
    fn summary(&self, ratios: &mut [f64]) -> [f64; 2] {
        ratios.sort_by(f64::total_cmp);
        if self.against == Against::Highest {
            ratios.reverse();
        }
        let mean = ratios.iter().map(|ratio| ratio.ln()).sum::<f64>() / ratios.len() as f64;
        let rank = (0.99 * ratios.len() as f64).ceil() as usize;
        [mean.exp(), ratios.get(rank.saturating_sub(1)).copied().unwrap_or(f64::NAN)]
    }
}

fn summaries(cases: &[JudgedCase], policy: usize, peers: &[usize]) -> Vec<[f64; 2]> {
    let of_figure = |figure: &Figure| {
        let ratio = |case: &JudgedCase| {
            let others: Vec<Measured> = peers.iter().map(|peer| case.figures[*peer]).collect();
            figure.ratio(&case.figures[policy], &others)
        };
        let mut ratios: Vec<f64> = cases.iter().map(ratio).collect();
        figure.summary(&mut ratios)
    };
    FIGURES.iter().map(of_figure).collect()
}

/// A line for each policy. The first `ours` policies are not peers.
pub(crate) fn table(cases: &[JudgedCase], names: &[&str], ours: usize) -> String {
    let peers: Vec<usize> = (ours..names.len()).collect();
    let mut text = format!("  {:<22}", "mean, worst 1 %");
    for figure in &FIGURES {
        text += &format!(" {:>13}", figure.name);
    }
    text += " failed\n";
    for (policy, name) in names.iter().enumerate() {
        text += &format!("  {name:<22}");
        for [mean, worst] in summaries(cases, policy, &peers) {
            text += &format!(" {mean:>6.3} {worst:>6.2}");
        }
        let failures = cases.iter().map(|case| case.figures[policy].failures).sum::<usize>();
        text += &format!(" {failures:>6}\n");
    }
    text
}

/// Each bar with the figure that the first policy reached.
pub(crate) fn bars(cases: &[JudgedCase], half: &str, policies: usize, ours: usize) -> String {
    let peers: Vec<usize> = (ours..policies).collect();
    let mut text = String::new();
    for (figure, summary) in FIGURES.iter().zip(summaries(cases, 0, &peers)) {
        let parts = ["geomean", "worst 1 %"];
        for ((part, value), bar) in parts.into_iter().zip(summary).zip(figure.bars) {
            let Some(bar) = bar else { continue };
            let is_met =
                if figure.against == Against::Highest { value >= bar } else { value <= bar };
            let verdict = if is_met { "pass" } else { "MISS" };
            text += &format!("{verdict} {half} {} {part} {value:.3}, bar {bar}\n", figure.name);
        }
    }
    text
}

/// The cases with their ratio of p95, worst first. Of the development half only.
pub(crate) fn rows(cases: &[JudgedCase], names: &[&str], ours: usize) -> String {
    let mut rows: Vec<(f64, String)> = Vec::new();
    for case in cases {
        let peers = &case.figures[ours..];
        let best = (0..peers.len())
            .min_by(|a, b| peers[*a].ttft.p95.total_cmp(&peers[*b].ttft.p95))
            .unwrap_or(0);
        let mut row = String::new();
        for policy in 0..ours {
            for figure in &FIGURES {
                row += &format!(" {:.2}", figure.ratio(&case.figures[policy], peers));
            }
            row += " |";
        }
        let p95 = FIGURES[0].ratio(&case.figures[0], peers);
        let of_best = peers[best].ttft;
        row += &format!(
            " {} {:.0}/{:.0}/{:.0}  {}",
            names[ours + best],
            of_best.p50,
            of_best.p95,
            of_best.p99,
            case.name
        );
        rows.push((p95, row));
    }
    rows.sort_by(|a, b| b.0.total_cmp(&a.0));
    rows.into_iter().map(|(_, row)| row + "\n").collect()
}
