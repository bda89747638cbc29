//! Samples of every metric and index at one size, and the comparison of ours with the better peer.

use crate::metric::{Bar, Better, Metric};
use crate::stats::Spread;

/// The name of our column.
pub(crate) const OURS: &str = "wornpath";

/// All samples of one size.
pub(crate) struct Results {
    pub(crate) size: &'static str,
    pub(crate) names: Vec<&'static str>,
    /// By metric, then by index, then by round.
    samples: Vec<Vec<Vec<f64>>>,
}

/// Ours against the better peer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ratio {
    pub(crate) peer: usize,
    pub(crate) spread: Spread,
}

impl Results {
    pub(crate) fn new(size: &'static str, names: Vec<&'static str>) -> Self {
        let samples = vec![vec![Vec::new(); names.len()]; Metric::ALL.len()];
        Self { size, names, samples }
    }

    pub(crate) fn add(&mut self, metric: Metric, index: usize, sample: f64) {
        self.samples[metric as usize][index].push(sample);
    }

    pub(crate) fn samples(&self, metric: Metric, index: usize) -> &[f64] {
        &self.samples[metric as usize][index]
    }

    pub(crate) fn spread(&self, metric: Metric, index: usize) -> Option<Spread> {
        Spread::of(self.samples(metric, index))
    }

    /// Our own spread, if ours took part.
    pub(crate) fn ours(&self, metric: Metric) -> Option<Spread> {
        let ours = self.names.iter().position(|name| *name == OURS)?;
        self.spread(metric, ours)
    }

    /// Ours divided by the peer with the better median, round by round.
    pub(crate) fn ratio(&self, metric: Metric) -> Option<Ratio> {
        let ours = self.names.iter().position(|name| *name == OURS)?;
        let peers = (0..self.names.len()).filter(|index| *index != ours);
        let median = |index: usize| self.spread(metric, index).map(|spread| spread.median);
        let ranked = peers.filter_map(|index| Some((index, median(index)?)));
        let (peer, _) = match metric.better() {
            Better::Lower => ranked.min_by(|a, b| a.1.total_cmp(&b.1)),
            Better::Higher => ranked.max_by(|a, b| a.1.total_cmp(&b.1)),
        }?;
        let rounds = self.samples(metric, ours).iter().zip(self.samples(metric, peer));
        let ratios: Vec<f64> = rounds.map(|(ours, theirs)| ours / theirs).collect();
        Spread::of(&ratios).map(|spread| Ratio { peer, spread })
    }

    /// Whether the bar of a metric is met, with the figure and what it is compared with. `None`
    /// when there is no bar or ours did not take part.
    pub(crate) fn verdict(&self, metric: Metric) -> Option<(bool, String)> {
        let ratio = || self.ratio(metric).map(|ratio| ratio.spread);
        let (spread, limit, sign, met) = match metric.bar(self.size) {
            Bar::None => return None,
            Bar::RatioAtMost(limit) => {
                let spread = ratio()?;
                (spread, limit, "x <=", spread.median <= limit)
            }
            Bar::RatioAtLeast(limit) => {
                let spread = ratio()?;
                (spread, limit, "x >=", spread.median >= limit)
            }
            Bar::AtMost(limit) => {
                let spread = self.ours(metric)?;
                (spread, limit, " <=", spread.median <= limit)
            }
        };
        let straddles = spread.lower.min(limit) < limit && limit < spread.upper;
        let doubt = if straddles { " (the quartiles straddle the bar)" } else { "" };
        let Spread { lower, median, upper, .. } = spread;
        Some((met, format!("{median:.3} [{lower:.3} {upper:.3}]{sign} {limit}{doubt}")))
    }
}
