//! Random choice of positions: weighted by a softmax, and of two distinct ones.

use crate::rng::Rng;

/// Draws a position with a probability in proportion to `exp(total / temperature)`.
///
/// One pass finds the best total, which keeps the exponentials from overflowing; a second keeps
/// each position with the probability of its weight in the sum so far (reservoir sampling), so
/// nothing is stored. A temperature of zero draws among the best alone.
pub(crate) fn draw(totals: &[f64], temperature: f64, rng: &mut Rng) -> usize {
    let best = totals.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let mut drawn = 0;
    let mut sum = 0.0;
    for (at, total) in totals.iter().enumerate() {
        let weight = if *total == best {
            1.0
        } else if temperature > 0.0 {
            ((total - best) / temperature).exp()
        } else {
            continue;
        };
        sum += weight;
        if rng.unit() * sum < weight {
            drawn = at;
        }
    }
    drawn
}

/// Two different positions below `count`, or the same one twice if there is only one.
pub(crate) fn two_distinct(count: usize, rng: &mut Rng) -> (usize, usize) {
    let first = rng.below(count);
    let second = rng.below(count.saturating_sub(1));
    (first, if count > 1 && second >= first { second + 1 } else { second })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frequencies(totals: &[f64], temperature: f64) -> Vec<f64> {
        let mut rng = Rng::new(5);
        let mut drawn = vec![0.0; totals.len()];
        for _ in 0..20_000 {
            drawn[draw(totals, temperature, &mut rng)] += 1.0 / 20_000.0;
        }
        drawn
    }

    #[test]
    fn frequencies_are_those_of_a_softmax() {
        let totals = [0.2, 0.9, 0.5, -3.0];
        for temperature in [0.1, 0.5, 2.0] {
            let weights: Vec<_> = totals.iter().map(|t| f64::exp(t / temperature)).collect();
            let sum: f64 = weights.iter().sum();
            for (found, weight) in frequencies(&totals, temperature).iter().zip(&weights) {
                assert!((found - weight / sum).abs() < 0.015, "{temperature}: {found} {weight}");
            }
        }
    }

    #[test]
    fn at_zero_temperature_only_the_best_totals_are_drawn_evenly() {
        let found = frequencies(&[1.0, 3.0, 3.0, 2.9], 0.0);
        assert_eq!((found[0], found[3]), (0.0, 0.0));
        assert!((found[1] - 0.5).abs() < 0.02);
    }

    #[test]
    fn huge_and_infinite_costs_keep_the_right_frequencies() {
        let found = frequencies(&[-1e300, -1e12, f64::NEG_INFINITY], 1.0);
        assert!((found[1] - 1.0).abs() < 1e-9);
        let found = frequencies(&[f64::NEG_INFINITY; 2], 1.0);
        assert!((found[0] - 0.5).abs() < 0.02);
    }

    #[test]
    fn two_positions_are_distinct_and_every_pair_is_equally_likely() {
        let mut rng = Rng::new(2);
        let mut seen = [[0_u32; 4]; 4];
        for _ in 0..12_000 {
            let (one, other) = two_distinct(4, &mut rng);
            seen[one][other] += 1;
        }
        for (one, row) in seen.iter().enumerate() {
            for (other, count) in row.iter().enumerate() {
                assert!(if one == other { *count == 0 } else { (850..1150).contains(count) });
            }
        }
        assert_eq!(two_distinct(1, &mut rng), (0, 0));
    }
}
