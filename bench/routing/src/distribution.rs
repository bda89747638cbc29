//! Random numbers of the distributions that traffic has.

use wornpath_routing::Rng;

/// An exponentially distributed time, as between independent arrivals.
pub(crate) fn exponential(rng: &mut Rng, mean: f64) -> f64 {
    -mean * (1.0 - rng.unit()).ln()
}

/// A log-normally distributed number; `spread` is the standard deviation of its logarithm.
pub(crate) fn log_normal(rng: &mut Rng, median: f64, spread: f64) -> f64 {
    // The sum of twelve uniform numbers is normal, near enough.
    let normal = (0..12).map(|_| rng.unit()).sum::<f64>() - 6.0;
    median * (spread * normal).exp()
}

/// A number between two others, whose logarithm is uniform.
pub(crate) fn log_uniform(rng: &mut Rng, least: f64, most: f64) -> f64 {
    least * (most / least).powf(rng.unit())
}

/// Numbers below a count, the first most often: Zipf's law, or with exponent zero all equally.
#[derive(Clone, Debug)]
pub(crate) struct Zipf {
    /// For each number, the share of it and those before.
    shares: Vec<f64>,
}

impl Zipf {
    pub(crate) fn new(count: usize, exponent: f64) -> Self {
        let mut sum = 0.0;
        let mut shares: Vec<f64> = (1..=count.max(1))
            .map(|rank| {
                sum += (rank as f64).powf(-exponent);
                sum
            })
            .collect();
        shares.iter_mut().for_each(|share| *share /= sum);
        Self { shares }
    }

    pub(crate) fn draw(&self, rng: &mut Rng) -> usize {
        let unit = rng.unit();
        self.shares.partition_point(|share| *share <= unit).min(self.shares.len() - 1)
    }
}
