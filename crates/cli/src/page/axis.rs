//! Axes that begin at zero, with ticks at round values.

use super::{escaped, time};
use std::fmt::Write;
use std::time::Duration;

/// Ticks of an axis, about.
const TICKS: f64 = 5.0;
/// The least distance of two ticks, as a share of the axis: their labels need room.
const CLOSEST: f64 = 0.09;

/// An axis from zero to `most`.
pub(crate) struct Axis {
    /// What it measures, and in which unit.
    pub(crate) label: String,
    most: f64,
    scale: Scale,
    unit: Unit,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Scale {
    Linear,
    /// Positions grow with the square root, so that small values stay apart beside large ones.
    SquareRoot,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Unit {
    Seconds,
    Percent,
    Count,
}

/// A labelled position on an axis.
pub(super) struct Tick {
    /// From 0 to 1.
    pub(super) at: f64,
    pub(super) label: String,
}

impl Axis {
    /// Seconds from zero, in proportion.
    pub(crate) fn seconds(label: &str, most: f64) -> Self {
        Self::new(label, most, Scale::Linear, Unit::Seconds)
    }

    /// Seconds from zero, on a square root scale.
    pub(crate) fn square_root_seconds(label: &str, most: f64) -> Self {
        Self::new(label, most, Scale::SquareRoot, Unit::Seconds)
    }

    /// Shares from 0 to 100%.
    pub(crate) fn percent(label: &str) -> Self {
        Self::new(label, 1.0, Scale::Linear, Unit::Percent)
    }

    /// Numbers from zero.
    pub(crate) fn count(label: &str, most: f64) -> Self {
        Self::new(label, most, Scale::Linear, Unit::Count)
    }

    fn new(label: &str, most: f64, scale: Scale, unit: Unit) -> Self {
        let most = if most.is_finite() && most > 0.0 { most } else { 1.0 };
        Self { label: label.to_owned(), most, scale, unit }
    }

    /// The position of a value, from 0 to 1; what is beyond the end is at the end.
    pub(super) fn position(&self, value: f64) -> f64 {
        let share = (value / self.most).clamp(0.0, 1.0);
        match self.scale {
            Scale::Linear => share,
            Scale::SquareRoot => share.sqrt(),
        }
    }

    /// Adds the ticks of a horizontal axis; every second one may be hidden where it is narrow.
    pub(super) fn draw_ticks(&self, out: &mut String) {
        let ticks = self.ticks();
        for (number, tick) in ticks.iter().enumerate() {
            let class = if number % 2 == 1 && ticks.len() > 4 { " minor" } else { "" };
            let _ = write!(
                out,
                "<span class=\"x-tick{class}\" style=\"--at:{:.4}\">{}</span>",
                tick.at,
                escaped(&tick.label)
            );
        }
    }

    pub(super) fn ticks(&self) -> Vec<Tick> {
        let values: Vec<f64> = match self.scale {
            Scale::Linear => {
                let step = round_step(self.most / TICKS);
                (0..)
                    .map(|at| f64::from(at) * step)
                    .take_while(|value| *value <= self.most * 1.001)
                    .collect()
            }
            Scale::SquareRoot => {
                let at = |share: f64| round_down(self.most * share * share);
                let inner = [0.0, 0.2, 0.4, 0.6, 0.8, 1.0].map(at);
                let mut values = inner.to_vec();
                values.dedup();
                values
            }
        };
        let mut ticks: Vec<Tick> = Vec::new();
        for value in values {
            let at = self.position(value);
            if ticks.last().is_none_or(|last| at - last.at >= CLOSEST) {
                ticks.push(Tick { at, label: self.named(value) });
            }
        }
        ticks
    }

    fn named(&self, value: f64) -> String {
        match self.unit {
            Unit::Percent => format!("{:.0}%", 100.0 * value),
            Unit::Count if value >= 1e6 => format!("{}M", value / 1e6),
            Unit::Count if value >= 1e3 => format!("{}k", value / 1e3),
            Unit::Count => format!("{}", (value * 1e3).round() / 1e3),
            Unit::Seconds => short(time(Duration::from_secs_f64(value))),
        }
    }
}

/// A time without needless zeros: `1.5 s`, `2 min`.
fn short(time: String) -> String {
    match time.split_once(' ') {
        Some((number, unit)) if number.contains('.') => {
            format!("{} {unit}", number.trim_end_matches('0').trim_end_matches('.'))
        }
        _ => time,
    }
}

/// The smallest of 1, 2, 5, 10, 20, … that is at least `wanted`; parts of a minute or an hour where
/// seconds are that many.
fn round_step(wanted: f64) -> f64 {
    let power = 10_f64.powf(wanted.log10().floor());
    let found = [1.0, 2.0, 5.0, 10.0].into_iter().find(|factor| factor * power >= wanted * 0.999);
    found.unwrap_or(10.0) * power
}

/// The largest of 1, 2, 5, 10, 20, … that is at most `value`; zero for zero.
fn round_down(value: f64) -> f64 {
    if value <= 0.0 {
        return 0.0;
    }
    let power = 10_f64.powf(value.log10().floor());
    let found = [10.0, 5.0, 2.0, 1.0].into_iter().find(|factor| factor * power <= value * 1.001);
    found.unwrap_or(1.0) * power
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(axis: &Axis) -> Vec<String> {
        axis.ticks().into_iter().map(|tick| tick.label).collect()
    }

    #[test]
    fn every_axis_begins_at_zero_and_has_round_ticks() {
        assert_eq!(labels(&Axis::seconds("t", 47.0)), ["0", "10 s", "20 s", "30 s", "40 s"]);
        assert_eq!(labels(&Axis::seconds("t", 0.9)), ["0", "200 ms", "400 ms", "600 ms", "800 ms"]);
        let shares = ["0%", "20%", "40%", "60%", "80%", "100%"];
        assert_eq!(labels(&Axis::percent("p")), shares);
        assert_eq!(labels(&Axis::count("n", 3.0)), ["0", "1", "2", "3"]);
        let spread = labels(&Axis::square_root_seconds("t", 10.0));
        assert_eq!(spread, ["0", "200 ms", "1 s", "2 s", "5 s", "10 s"]);
        assert_eq!(labels(&Axis::seconds("t", f64::NAN))[0], "0");
    }

    #[test]
    fn what_is_beyond_the_end_is_at_the_end() {
        let axis = Axis::seconds("t", 2.0);
        assert_eq!([-1.0, 0.0, 1.0, 9.0].map(|value| axis.position(value)), [0.0, 0.0, 0.5, 1.0]);
    }
}
