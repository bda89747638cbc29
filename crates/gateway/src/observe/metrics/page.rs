//! The values of all metrics at one moment, for declared metrics only.

use std::fmt;

use crate::observe::buckets::BOUNDS;
use crate::observe::metrics::exemplar::BucketExemplars;
use crate::observe::metrics::family::{Family, MetricKind};
use crate::observe::metrics::histogram::Histogram;

/// All metrics with their values.
#[derive(Debug, Default)]
pub(crate) struct MetricsPage(Vec<FamilySamples>);

/// One metric with its values.
#[derive(Debug)]
pub(crate) struct FamilySamples {
    pub(crate) family: Family,
    pub(crate) samples: Vec<Sample>,
}

/// One value, with one string per label.
#[derive(Debug)]
pub(crate) struct Sample {
    pub(crate) labels: Vec<String>,
    pub(crate) value: SampleValue,
}

#[derive(Debug)]
pub(crate) enum SampleValue {
    Number(Number),
    Histogram {
        /// Cumulative counts by bound, and last of all.
        counts: [u64; BOUNDS.len() + 1],
        sum: f64,
        /// By bucket, if a traced request was counted.
        exemplars: Option<Box<BucketExemplars>>,
    },
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Number {
    Whole(u64),
    Fraction(f64),
}

impl MetricsPage {
    /// Adds a metric.
    pub(crate) fn family(&mut self, family: Family) -> &mut FamilySamples {
        self.0.push_mut(FamilySamples { family, samples: Vec::new() })
    }

    pub(crate) fn families(&self) -> &[FamilySamples] {
        &self.0
    }

    #[cfg(feature = "otlp")]
    pub(crate) fn into_families(self) -> Vec<FamilySamples> {
        self.0
    }
}

impl FamilySamples {
    /// Adds one value.
    ///
    /// # Panics
    /// If there are more or fewer labels than the metric has.
    pub(crate) fn value(&mut self, labels: &[&str], value: impl Into<Number>) {
        self.add(labels, SampleValue::Number(value.into()));
    }

    /// Adds 1 for the current state and 0 for all others.
    pub(crate) fn state(&mut self, label: &str, states: &[&str], is: &str) {
        for state in states {
            self.value(&[label, state], u8::from(*state == is));
        }
    }

    /// Adds a histogram.
    pub(crate) fn histogram(&mut self, labels: &[&str], histogram: &Histogram) {
        assert_eq!(self.family.kind, MetricKind::Histogram, "{} is no histogram", self.family.name);
        let counts = histogram.cumulative();
        let sum = histogram.sum();
        let exemplars = histogram.exemplars();
        self.add(labels, SampleValue::Histogram { counts, sum, exemplars });
    }

    fn add(&mut self, labels: &[&str], value: SampleValue) {
        assert_eq!(self.family.labels.len(), labels.len(), "labels of {}", self.family.name);
        let labels = labels.iter().map(|&label| label.to_owned()).collect();
        self.samples.push(Sample { labels, value });
    }
}

impl fmt::Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Whole(number) => number.fmt(f),
            Self::Fraction(number) => number.fmt(f),
        }
    }
}

impl From<u8> for Number {
    fn from(number: u8) -> Self {
        Self::Whole(number.into())
    }
}

impl From<u64> for Number {
    fn from(number: u64) -> Self {
        Self::Whole(number)
    }
}

impl From<usize> for Number {
    fn from(number: usize) -> Self {
        Self::Whole(number as u64)
    }
}

impl From<f64> for Number {
    fn from(number: f64) -> Self {
        Self::Fraction(number)
    }
}
