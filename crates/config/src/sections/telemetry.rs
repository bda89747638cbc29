//! `telemetry`: the collector that traces are exported to.

use wornpath_yaml::{Node, Parameter, Takes};

use crate::diagnostics::Diagnostics;
use crate::pod::authority;
use crate::section::{Section, refused};
use crate::settings::TelemetrySettings;

#[rustfmt::skip]
pub(crate) const TELEMETRY: &[Parameter] = &[
    Parameter::required("otlp", Takes::Text, "A collector that accepts OTLP over HTTP in JSON, such as `http://127.0.0.1:4318`; `/v1/traces` is appended."),
    Parameter::with_default("share", Takes::Number(0.0, 1.0), "0.01", "Share of requests without a `traceparent` that are traced; a request with one follows its sampling flag."),
    Parameter::with_default("service", Takes::Text, "wornpath", "Service name in traces."),
];

pub(crate) fn telemetry(root: &Node, diagnostics: &mut Diagnostics) -> Option<TelemetrySettings> {
    let node = root.get("telemetry")?;
    let section =
        Section::of(Some(node), "telemetry", node.span, TELEMETRY, &mut diagnostics.problems);
    let otlp: String = section.maybe("otlp")?;
    if let Err(problem) = authority(&otlp) {
        let span = section.at("otlp");
        let shown = diagnostics.shown_address(&otlp, span);
        let problem = refused("telemetry", "otlp", shown, span, &problem);
        diagnostics.problems.push(problem.cure("write `http://host:4318`"));
    }
    Some(TelemetrySettings {
        otlp: otlp.trim_end_matches('/').to_owned(),
        share: section.or("share", 0.0),
        service: section.or("service", String::new()),
    })
}
