//! `metrics`: how many names get series of their own.

use wornpath_yaml::{Node, Parameter, Takes};

use crate::diagnostics::Diagnostics;
use crate::section::Section;
use crate::settings::MetricLimits;

#[rustfmt::skip]
pub(crate) const METRICS: &[Parameter] = &[
    Parameter::with_default("models", Takes::Whole(0, 1000), "20", "Models with series of their own in the metrics `wornpath_traffic_…`: the first so many that get requests. The others share the label `other`."),
    Parameter::with_default("tenants", Takes::Whole(0, 1000), "50", "The same for tenants."),
];

pub(crate) fn metrics(root: &Node, diagnostics: &mut Diagnostics) -> MetricLimits {
    let default = MetricLimits::default();
    let Some(node) = root.get("metrics") else { return default };
    let section = Section::of(Some(node), "metrics", node.span, METRICS, &mut diagnostics.problems);
    MetricLimits {
        models: section.or("models", default.models),
        tenants: section.or("tenants", default.tenants),
    }
}
