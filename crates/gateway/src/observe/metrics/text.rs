//! Prometheus' text format.

use std::borrow::Cow;
use std::fmt::Write;

use crate::observe::buckets::BOUNDS;
use crate::observe::metrics::family::Family;
use crate::observe::metrics::page::{FamilySamples, MetricsPage, SampleValue};

/// The page as text.
pub(crate) fn text(page: &MetricsPage) -> String {
    let mut text = String::new();
    let bounds: Vec<String> = BOUNDS.iter().map(f64::to_string).chain(["+Inf".into()]).collect();
    for FamilySamples { family, samples } in page.families() {
        let Family { name, kind, help, .. } = family;
        let help = help.replace('\\', "\\\\").replace('\n', "\\n");
        let _ = write!(text, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
        for sample in samples {
            let labels = labels(family, &sample.labels);
            let all = if labels.is_empty() { String::new() } else { format!("{{{labels}}}") };
            match &sample.value {
                SampleValue::Number(value) => {
                    let _ = writeln!(text, "{name}{all} {value}");
                }
                SampleValue::Histogram { counts, sum, .. } => {
                    let comma = if labels.is_empty() { "" } else { "," };
                    for (bound, count) in bounds.iter().zip(counts) {
                        let le = format_args!("{{{labels}{comma}le=\"{bound}\"}}");
                        let _ = writeln!(text, "{name}_bucket{le} {count}");
                    }
                    let _ = writeln!(text, "{name}_sum{all} {sum}");
                    let _ = writeln!(text, "{name}_count{all} {}", counts[BOUNDS.len()]);
                }
            }
        }
    }
    text
}

/// The labels of one sample, without braces.
pub(crate) fn labels(family: &Family, values: &[String]) -> String {
    let pairs = family.labels.iter().zip(values);
    let pairs = pairs.map(|(name, value)| format!("{name}=\"{}\"", escaped(value)));
    pairs.collect::<Vec<_>>().join(",")
}

fn escaped(value: &str) -> Cow<'_, str> {
    if !value.contains(['\\', '"', '\n']) {
        return Cow::Borrowed(value);
    }
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n").into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::metrics::family::{POD_REQUESTS, WAITING};

    #[test]
    fn a_label_cannot_break_out_of_its_quotes() {
        let mut page = MetricsPage::default();
        page.family(POD_REQUESTS).value(&["a\"} 1\nb\\"], 3_u64);
        page.family(WAITING).value(&[], 0_u64);
        let text = text(&page);
        assert!(text.contains("\nwornpath_pod_requests{pod=\"a\\\"} 1\\nb\\\\\"} 3\n"), "{text}");
        assert!(text.ends_with("# TYPE wornpath_queue_waiting gauge\nwornpath_queue_waiting 0\n"));
    }
}
