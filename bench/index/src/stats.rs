//! Order statistics of a few samples.

use crate::clock::Ticks;

/// The middle of a set of samples and how far they spread.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spread {
    /// Least sample.
    pub(crate) least: f64,
    /// First quartile.
    pub(crate) lower: f64,
    /// Median.
    pub(crate) median: f64,
    /// Third quartile.
    pub(crate) upper: f64,
}

impl Spread {
    /// Of at least one sample; `None` when there is none.
    pub(crate) fn of(samples: &[f64]) -> Option<Self> {
        let mut sorted: Vec<f64> =
            samples.iter().copied().filter(|value| value.is_finite()).collect();
        sorted.sort_by(f64::total_cmp);
        let at = |share: f64| {
            let place = share * (sorted.len() - 1) as f64;
            let low = sorted[place.floor() as usize];
            let high = sorted[place.ceil() as usize];
            low + (high - low) * place.fract()
        };
        (!sorted.is_empty()).then(|| Self {
            least: sorted[0],
            lower: at(0.25),
            median: at(0.5),
            upper: at(0.75),
        })
    }
}

/// Latency of single queries, in microseconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Latency {
    pub(crate) p50: f64,
    pub(crate) p99: f64,
}

impl Latency {
    pub(crate) fn of(samples: &mut [u32], ticks: Ticks) -> Self {
        let micros = |share, samples: &mut [u32]| quantile(samples, share) * ticks.nanos / 1000.0;
        Self { p50: micros(0.5, samples), p99: micros(0.99, samples) }
    }
}

/// The sample below which `share` of the samples lie (nearest rank); not a number when there is no
/// sample. Reorders the samples.
fn quantile(samples: &mut [u32], share: f64) -> f64 {
    if samples.is_empty() {
        return f64::NAN;
    }
    let rank = ((samples.len() as f64 * share).ceil() as usize).clamp(1, samples.len()) - 1;
    f64::from(*samples.select_nth_unstable(rank).1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quartiles_interpolate_and_quantiles_take_the_nearest_rank() {
        let spread = Spread::of(&[4.0, 1.0, 3.0, 2.0]).expect("four samples");
        assert_eq!((spread.least, spread.median), (1.0, 2.5));
        assert_eq!((spread.lower, spread.upper), (1.75, 3.25));
        assert_eq!(quantile(&mut (1..=100).collect::<Vec<_>>(), 0.99), 99.0);
    }
}
