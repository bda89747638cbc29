//! Writer of Prometheus' text format, for declared metrics only.

use std::fmt::{Display, Write};

use crate::observe::metrics::family::{Family, MetricKind};
use crate::observe::metrics::histogram::{BOUNDS, Histogram};

/// A metrics page under construction.
#[derive(Debug, Default)]
pub(crate) struct MetricsPage(String);

/// The lines of one metric on the page.
pub(crate) struct MetricLines<'a> {
    page: &'a mut String,
    family: Family,
}

impl MetricsPage {
    /// Writes the head of a metric.
    pub(crate) fn family(&mut self, family: Family) -> MetricLines<'_> {
        let Family { name, kind, help, .. } = family;
        let help = help.replace('\\', "\\\\").replace('\n', "\\n");
        let _ = write!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
        MetricLines { page: &mut self.0, family }
    }

    /// The text of the page.
    #[must_use]
    pub(crate) fn finish(self) -> String {
        self.0
    }
}

impl MetricLines<'_> {
    /// Writes one value, with one string per label.
    ///
    /// # Panics
    /// If there are more or fewer values than the metric has labels.
    pub(crate) fn value(&mut self, labels: &[&str], value: impl Display) {
        let _ = writeln!(self.page, "{}{} {value}", self.family.name, self.labels(labels, None));
    }

    /// Writes 1 for the current state and 0 for all others.
    pub(crate) fn state(&mut self, label: &str, states: &[&str], is: &str) {
        for state in states {
            self.value(&[label, state], u8::from(*state == is));
        }
    }

    /// Writes all lines of a histogram.
    pub(crate) fn histogram(&mut self, labels: &[&str], histogram: &Histogram) {
        assert_eq!(self.family.kind, MetricKind::Histogram, "{} is no histogram", self.family.name);
        let name = self.family.name;
        let counts = histogram.cumulative();
        let bounds = BOUNDS.iter().map(f64::to_string).chain(["+Inf".to_owned()]);
        for (bound, count) in bounds.zip(counts) {
            let labels = self.labels(labels, Some(&bound));
            let _ = writeln!(self.page, "{name}_bucket{labels} {count}");
        }
        let labels = self.labels(labels, None);
        let _ = writeln!(self.page, "{name}_sum{labels} {}", histogram.sum());
        let _ = writeln!(self.page, "{name}_count{labels} {}", counts[BOUNDS.len()]);
    }

    fn labels(&self, values: &[&str], bound: Option<&str>) -> String {
        let names = self.family.labels;
        assert_eq!(names.len(), values.len(), "labels of {}", self.family.name);
        let mut pairs: Vec<_> = names
            .iter()
            .zip(values)
            .map(|(name, value)| format!("{name}=\"{}\"", escaped(value)))
            .collect();
        pairs.extend(bound.map(|bound| format!("le=\"{bound}\"")));
        if pairs.is_empty() { String::new() } else { format!("{{{}}}", pairs.join(",")) }
    }
}

fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::metrics::family::{POD_REQUESTS, WAITING};

    #[test]
    fn a_label_cannot_break_out_of_its_quotes() {
        let mut page = MetricsPage::default();
        page.family(POD_REQUESTS).value(&["a\"} 1\nb\\"], 3);
        page.family(WAITING).value(&[], 0);
        let text = page.finish();
        assert!(text.contains("\nwornpath_pod_requests{pod=\"a\\\"} 1\\nb\\\\\"} 3\n"), "{text}");
        assert!(text.ends_with("# TYPE wornpath_queue_waiting gauge\nwornpath_queue_waiting 0\n"));
    }
}
