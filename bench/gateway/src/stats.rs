//! Order statistics.

/// The sample below which `share` of the samples lie (nearest rank); not a number when there is
/// none.
pub(crate) fn quantile(samples: &mut [f64], share: f64) -> f64 {
    if samples.is_empty() {
        return f64::NAN;
    }
    let rank = ((samples.len() as f64 * share).ceil() as usize).clamp(1, samples.len()) - 1;
    *samples.select_nth_unstable_by(rank, f64::total_cmp).1
}

/// The median of the finite samples; the mean of the two middle ones if their number is even.
pub(crate) fn median(samples: &[f64]) -> f64 {
    let mut sorted: Vec<f64> = samples.iter().copied().filter(|value| value.is_finite()).collect();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => f64::NAN,
        count => f64::midpoint(sorted[(count - 1) / 2], sorted[count / 2]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_median_is_in_the_middle_and_a_quantile_is_a_sample() {
        assert_eq!(median(&[4.0, 1.0, f64::NAN, 3.0, 2.0]), 2.5);
        assert!(median(&[]).is_nan());
        assert_eq!(quantile(&mut (1..=100).map(f64::from).collect::<Vec<_>>(), 0.99), 99.0);
    }
}
