//! The OpenMetrics format: like Prometheus' text format, with exemplars that name a trace.

use std::fmt::Write;

use crate::observe::buckets::BOUNDS;
use crate::observe::metrics::exemplar::{BucketExemplars, Exemplar};
use crate::observe::metrics::family::{Family, MetricKind};
use crate::observe::metrics::page::{FamilySamples, MetricsPage, SampleValue};
use crate::observe::metrics::text::labels;

/// The page as text.
pub(crate) fn openmetrics(page: &MetricsPage) -> String {
    let mut text = String::new();
    let bounds: Vec<String> = BOUNDS.iter().map(canonical).chain(["+Inf".into()]).collect();
    for FamilySamples { family, samples } in page.families() {
        write_head(family, &mut text);
        let name = family.name;
        for sample in samples {
            let labels = labels(family, &sample.labels);
            let all = if labels.is_empty() { String::new() } else { format!("{{{labels}}}") };
            // Writing to a string cannot fail.
            match &sample.value {
                SampleValue::Number(value) => {
                    let _ = writeln!(text, "{name}{all} {value}");
                }
                SampleValue::Histogram { counts, sum, exemplars } => {
                    let comma = if labels.is_empty() { "" } else { "," };
                    for (at, (bound, count)) in bounds.iter().zip(counts).enumerate() {
                        let le = format_args!("{{{labels}{comma}le=\"{bound}\"}}");
                        let _ = write!(text, "{name}_bucket{le} {count}");
                        write_exemplar(exemplars.as_deref(), at, &mut text);
                    }
                    let _ = writeln!(text, "{name}_sum{all} {sum}");
                    let _ = writeln!(text, "{name}_count{all} {}", counts[BOUNDS.len()]);
                }
            }
        }
    }
    text.push_str("# EOF\n");
    text
}

/// The name of a counter is written without its `_total` here.
fn write_head(family: &Family, text: &mut String) {
    let Family { name, kind, help, .. } = family;
    let name = match kind {
        MetricKind::Counter => name.strip_suffix("_total").unwrap_or(name),
        MetricKind::Gauge | MetricKind::Histogram => name,
    };
    let help = help.replace('\\', "\\\\").replace('\n', "\\n").replace('"', "\\\"");
    let _ = write!(text, "# TYPE {name} {kind}\n# HELP {name} {help}\n");
}

fn write_exemplar(exemplars: Option<&BucketExemplars>, at: usize, text: &mut String) {
    if let Some(Exemplar { trace, seconds, at }) = exemplars.and_then(|all| all[at]) {
        let millis = at.0;
        let at = format_args!("{}.{:03}", millis / 1000, millis % 1000);
        let _ = write!(text, " # {{trace_id=\"{trace:032x}\"}} {seconds} {at}");
    }
    text.push('\n');
}

/// A bound as the format spells it: whole numbers have a fraction.
fn canonical(bound: &f64) -> String {
    format!("{bound:?}")
}
