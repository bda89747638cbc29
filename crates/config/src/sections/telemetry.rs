//! `telemetry`: the collector that traces and metrics are exported to.
//!
//! What is not in the section comes from the variables of OpenTelemetry, those of one signal first.

use std::path::Path;
use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue, Uri};
use percent_encoding::percent_decode_str;
use wornpath_yaml::{Node, Parameter, Problem, ProblemKind, Span, Takes};

use super::tls;
use crate::diagnostics::Diagnostics;
use crate::pod::authority;
use crate::section::{Section, refused};
use crate::settings::{OtlpCompression, OtlpProtocol, OtlpTarget, TelemetrySettings};
use crate::tls::{ClientTls, roots};

#[rustfmt::skip]
pub(crate) const TELEMETRY: &[Parameter] = &[
    Parameter::optional("otlp", Takes::Text, "A collector that accepts OTLP, such as `http://127.0.0.1:4318`, or `http://127.0.0.1:4317` for gRPC. Over HTTP, `/v1/traces` and `/v1/metrics` are appended. Without it, `OTEL_EXPORTER_OTLP_ENDPOINT`. At `https://` it needs `tls`."),
    Parameter::optional("protocol", Takes::OneOf(PROTOCOLS), "`http/protobuf` (default) or `grpc`. Without it, `OTEL_EXPORTER_OTLP_PROTOCOL`."),
    Parameter::optional("headers_file", Takes::Text, "File with headers for the collector, such as an API key: one `name=value` per line, percent-encoded. Without it, `OTEL_EXPORTER_OTLP_HEADERS`."),
    Parameter::optional("compression", Takes::OneOf(COMPRESSIONS), "`none` (default) or `gzip`. Without it, `OTEL_EXPORTER_OTLP_COMPRESSION`."),
    Parameter::optional("timeout", Takes::Time, "Timeout of an export with all its attempts (default `10s`). Without it, `OTEL_EXPORTER_OTLP_TIMEOUT`, in milliseconds."),
    Parameter::with_default("share", Takes::Number(0.0, 1.0), "0.01", "Share of requests without a `traceparent` that are traced; a request with one follows its sampling flag. With 0, only those with a `traceparent` are."),
    Parameter::optional("metrics", Takes::Time, "Interval between exports of all metrics; without it, they are exported only if `OTEL_METRICS_EXPORTER` is `otlp`, every `OTEL_METRIC_EXPORT_INTERVAL` milliseconds (default 60,000)."),
    Parameter::optional("service", Takes::Text, "The attribute `service.name` (default `wornpath`). Without it, `OTEL_SERVICE_NAME`, or `service.name` in `OTEL_RESOURCE_ATTRIBUTES`, whose other attributes are added."),
];

const PROTOCOLS: &[&str] = &["http/protobuf", "grpc"];
const COMPRESSIONS: &[&str] = &["none", "gzip"];
const TIMEOUT: Duration = Duration::from_secs(10);
const METRICS_INTERVAL: Duration = Duration::from_secs(60);

/// What is exported, each with variables of its own.
#[derive(Clone, Copy)]
enum Signal {
    Traces,
    Metrics,
}

impl Signal {
    const fn word(self) -> &'static str {
        match self {
            Self::Traces => "TRACES",
            Self::Metrics => "METRICS",
        }
    }

    const fn path(self) -> &'static str {
        match self {
            Self::Traces => "/v1/traces",
            Self::Metrics => "/v1/metrics",
        }
    }
}

/// A variable that is set and not empty.
struct Variable {
    name: String,
    value: String,
}

pub(crate) fn telemetry(root: &Node, diagnostics: &mut Diagnostics) -> Option<TelemetrySettings> {
    let node = root.get("telemetry")?;
    let section = Section::map(node, "telemetry", TELEMETRY, &["tls"], &mut diagnostics.problems);
    if !cfg!(feature = "otlp") {
        let message = "this build has no support for `telemetry`";
        let problem = Problem::new(ProblemKind::MissingDependency, node.span, message);
        diagnostics.problems.push(problem.cure("build it with `--features otlp`"));
    }
    let reader = Reader { section: &section, tls: tls::server(section.node("tls"), diagnostics) };
    reader.refuse_password(diagnostics);
    let is = |name: &str, wanted: &str, diagnostics: &Diagnostics| {
        named(name, diagnostics).is_some_and(|it| it.value.eq_ignore_ascii_case(wanted))
    };
    let is_disabled = is("OTEL_SDK_DISABLED", "true", diagnostics);
    let has_traces = !is_disabled && !is("OTEL_TRACES_EXPORTER", "none", diagnostics);
    let given: Option<Duration> = section.maybe("metrics");
    diagnostics.check_nonzero(&section, "metrics");
    let has_metrics =
        !is_disabled && (given.is_some() || is("OTEL_METRICS_EXPORTER", "otlp", diagnostics));
    let interval = given.or_else(|| {
        let variable = named("OTEL_METRIC_EXPORT_INTERVAL", diagnostics)?;
        millis(&variable, section.span(), diagnostics)
    });
    let traces = has_traces.then(|| reader.target(Signal::Traces, diagnostics)).flatten();
    let metrics = has_metrics.then(|| reader.target(Signal::Metrics, diagnostics)).flatten();
    Some(TelemetrySettings {
        traces,
        share: section.or("share", 0.0),
        metrics: metrics.map(|target| (target, interval.unwrap_or(METRICS_INTERVAL))),
        resource: resource(&section, diagnostics),
    })
}

/// Reads the target of a signal.
struct Reader<'a> {
    section: &'a Section<'a>,
    tls: Option<ClientTls>,
}

impl Reader<'_> {
    /// A URL with a user or a password is refused here, so that neither is shown again.
    fn refuse_password(&self, diagnostics: &mut Diagnostics) {
        let Some(otlp) = self.section.maybe::<String>("otlp") else { return };
        if let Err(problem) = authority(&otlp) {
            let span = self.section.at("otlp");
            let shown = diagnostics.shown_address(&otlp, span);
            let problem = refused("telemetry", "otlp", shown, span, &problem);
            diagnostics.problems.push(problem.cure("write `http://host:4318`"));
        }
    }

    fn target(&self, signal: Signal, diagnostics: &mut Diagnostics) -> Option<OtlpTarget> {
        let protocol = self.choice(signal, "protocol", PROTOCOLS, diagnostics)?;
        let protocol = if protocol == "grpc" { OtlpProtocol::Grpc } else { OtlpProtocol::Http };
        let compression = self.choice(signal, "compression", COMPRESSIONS, diagnostics)?;
        let compression =
            if compression == "gzip" { OtlpCompression::Gzip } else { OtlpCompression::None };
        let headers = self.headers(signal, diagnostics)?;
        let timeout = match self.section.maybe("timeout") {
            Some(timeout) => timeout,
            None => match exporter(signal, "TIMEOUT", diagnostics) {
                Some(variable) => millis(&variable, self.section.span(), diagnostics)?,
                None => TIMEOUT,
            },
        };
        let url = self.url(signal, protocol, diagnostics)?;
        let tls = self.tls(signal, &url, diagnostics)?;
        Some(OtlpTarget { url, protocol, headers, compression, timeout, tls })
    }

    /// The value of a key, of its variable, or the first choice.
    fn choice(
        &self,
        signal: Signal,
        key: &str,
        choices: &[&'static str],
        diagnostics: &mut Diagnostics,
    ) -> Option<&'static str> {
        if let Some(given) = self.section.maybe::<&'static str>(key) {
            return Some(given);
        }
        let Some(variable) = exporter(signal, &key.to_ascii_uppercase(), diagnostics) else {
            return choices.first().copied();
        };
        let is_value = |choice: &&&'static str| choice.eq_ignore_ascii_case(&variable.value);
        let found = choices.iter().find(is_value).copied();
        if found.is_none() {
            let message = format!("`{}` is not known", variable.value);
            let cure = format!("write one of: {}", choices.join(", "));
            self.refuse(&variable.name, &message, cure, diagnostics);
        }
        found
    }

    fn url(
        &self,
        signal: Signal,
        protocol: OtlpProtocol,
        diagnostics: &mut Diagnostics,
    ) -> Option<Uri> {
        let full = |base: &str| match protocol {
            OtlpProtocol::Http => format!("{}{}", base.trim_end_matches('/'), signal.path()),
            OtlpProtocol::Grpc => base.to_owned(),
        };
        if let Some(otlp) = self.section.maybe::<String>("otlp") {
            // If it is wrong, that was reported.
            authority(&otlp).ok()?;
            return full(&otlp).parse().ok();
        }
        let own = named(&format!("OTEL_EXPORTER_OTLP_{}_ENDPOINT", signal.word()), diagnostics);
        let general = named("OTEL_EXPORTER_OTLP_ENDPOINT", diagnostics);
        let (variable, url) = match (own, general) {
            // The endpoint of one signal is used as it is.
            (Some(own), _) => (own.name, own.value),
            (None, Some(general)) => (general.name, full(&general.value)),
            (None, None) => {
                let message = "`telemetry` has no `otlp`, and `OTEL_EXPORTER_OTLP_ENDPOINT` is \
                               not set";
                let span = self.section.span();
                let problem = Problem::new(ProblemKind::MissingParameter, span, message);
                diagnostics.problems.push(problem.cure("add `otlp: \"http://host:4318\"`"));
                return None;
            }
        };
        match authority(&url) {
            Ok(_) => url.parse().ok(),
            Err(problem) => {
                self.refuse(&variable, problem, "write `http://host:4318`".into(), diagnostics);
                None
            }
        }
    }

    fn headers(&self, signal: Signal, diagnostics: &mut Diagnostics) -> Option<HeaderMap> {
        if let Some(file) = self.section.maybe::<String>("headers_file") {
            diagnostics.note_secret("headers_file", &file);
            diagnostics.files.push(file.clone().into());
            let text = diagnostics.environment.text(Path::new(&file));
            let text = text.map_err(|error| format!("cannot read file `{file}`: {error}"));
            let headers = text.and_then(|text| headers(&text).map_err(str::to_owned));
            return headers
                .map_err(|error| {
                    let message = format!("`headers_file`: {error}");
                    let span = self.section.at("headers_file");
                    let problem = Problem::new(ProblemKind::BadParameter, span, message);
                    diagnostics.problems.push(problem.cure("write `name=value`, one per line"));
                })
                .ok();
        }
        let Some(variable) = exporter(signal, "HEADERS", diagnostics) else {
            return Some(HeaderMap::new());
        };
        headers(&variable.value)
            .map_err(|error| {
                let cure = "write `name=value,name=value`".to_owned();
                self.refuse(&variable.name, error, cure, diagnostics);
            })
            .ok()
    }

    /// The TLS settings that the URL needs. None is a problem.
    fn tls(
        &self,
        signal: Signal,
        url: &Uri,
        diagnostics: &mut Diagnostics,
    ) -> Option<Option<ClientTls>> {
        let is_tls = url.scheme_str() == Some("https");
        let given = match (&self.tls, exporter(signal, "CERTIFICATE", diagnostics)) {
            _ if !is_tls && self.section.node("tls").is_none() => return Some(None),
            (Some(tls), _) => Some(tls.clone()),
            (None, Some(variable)) => Some(self.trusted(&variable, diagnostics)?),
            (None, None) => None,
        };
        let (message, cure) = match (is_tls, &given) {
            (true, Some(_)) => return Some(given),
            (true, None) if self.section.node("tls").is_some() => return None,
            (true, None) => (
                "the collector of `telemetry` is at `https://…`, which needs `tls`",
                "add `tls: {ca: FILE}` with the CA of its certificate",
            ),
            (false, _) => (
                "`telemetry` has `tls`, but its collector is at `http://…`, which is not encrypted",
                "write `https://`, or remove `tls`",
            ),
        };
        let span = self.section.at(if is_tls { "otlp" } else { "tls" });
        let problem = Problem::new(ProblemKind::Conflict, span, message);
        diagnostics.problems.push(problem.cure(cure));
        None
    }

    fn trusted(&self, variable: &Variable, diagnostics: &mut Diagnostics) -> Option<ClientTls> {
        let file = Path::new(&variable.value);
        diagnostics.files.push(file.to_owned());
        let text = diagnostics.environment.text(file);
        let tls = text
            .map_err(|error| format!("cannot read file `{}`: {error}", variable.value))
            .and_then(|text| roots(&text).map_err(|error| error.to_string()))
            .and_then(|ca| ClientTls::new(ca, None, None).map_err(|error| error.to_string()));
        tls.map_err(|error| {
            let cure = "give a PEM file with the CA of the collector's certificate".to_owned();
            self.refuse(&variable.name, &error, cure, diagnostics);
        })
        .ok()
    }

    /// Reports a variable. Its value may be secret.
    fn refuse(&self, name: &str, problem: &str, cure: String, diagnostics: &mut Diagnostics) {
        let message = format!("environment variable `{name}`: {problem}");
        let problem = Problem::new(ProblemKind::BadParameter, self.section.span(), message);
        diagnostics.problems.push(problem.cure(cure));
    }
}

fn named(name: &str, diagnostics: &Diagnostics) -> Option<Variable> {
    let value = diagnostics.environment.variable(name)?.trim().to_owned();
    (!value.is_empty()).then(|| Variable { name: name.to_owned(), value })
}

/// A variable of the exporter of a signal, or of all exporters.
fn exporter(signal: Signal, name: &str, diagnostics: &Diagnostics) -> Option<Variable> {
    let own = format!("OTEL_EXPORTER_OTLP_{}_{name}", signal.word());
    named(&own, diagnostics).or_else(|| named(&format!("OTEL_EXPORTER_OTLP_{name}"), diagnostics))
}

fn millis(variable: &Variable, span: Span, diagnostics: &mut Diagnostics) -> Option<Duration> {
    let number = variable.value.parse::<u64>().ok().filter(|millis| *millis > 0);
    if number.is_none() {
        let Variable { name, value } = variable;
        let message = format!("environment variable `{name}` is `{value}`, not a number");
        let problem = Problem::new(ProblemKind::BadParameter, span, message);
        diagnostics.problems.push(problem.cure("write milliseconds, such as `10000`"));
    }
    number.map(Duration::from_millis)
}

/// Pairs `name=value`, separated by commas or line ends, with percent-encoded values.
fn pairs(text: &str) -> impl Iterator<Item = Option<(&str, String)>> {
    let pairs = text.split([',', '\n']).map(str::trim).filter(|pair| !pair.is_empty());
    pairs.map(|pair| {
        let (name, value) = pair.split_once('=')?;
        let value = percent_decode_str(value.trim()).decode_utf8().ok()?;
        Some((name.trim(), value.into_owned()))
    })
}

fn headers(text: &str) -> Result<HeaderMap, &'static str> {
    let mut headers = HeaderMap::new();
    for pair in pairs(text) {
        let (name, value) = pair.ok_or("a header is not `name=value`")?;
        let name = name.parse::<HeaderName>().map_err(|_| "a header's name is not valid")?;
        let value = HeaderValue::from_str(&value);
        let mut value = value.map_err(|_| "a header's value is not printable ASCII")?;
        value.set_sensitive(true);
        headers.append(name, value);
    }
    Ok(headers)
}

/// The attributes of what is exported.
fn resource(section: &Section<'_>, diagnostics: &mut Diagnostics) -> Vec<(String, String)> {
    const NAME: &str = "service.name";
    let variable = named("OTEL_RESOURCE_ATTRIBUTES", diagnostics);
    let mut resource = Vec::new();
    for pair in pairs(variable.as_ref().map_or("", |it| &it.value)) {
        match pair {
            Some((name, value)) => resource.push((name.to_owned(), value)),
            None => {
                let message = "environment variable `OTEL_RESOURCE_ATTRIBUTES`: an attribute is not \
                     `name=value`";
                let problem = Problem::new(ProblemKind::BadParameter, section.span(), message);
                diagnostics.problems.push(problem.cure("write `name=value,name=value`"));
            }
        }
    }
    let given = section.maybe("service");
    let given = given.or_else(|| Some(named("OTEL_SERVICE_NAME", diagnostics)?.value));
    if let Some(service) = given {
        resource.retain(|(name, _)| name != NAME);
        resource.push((NAME.to_owned(), service));
    } else if !resource.iter().any(|(name, _)| name == NAME) {
        resource.push((NAME.to_owned(), "wornpath".to_owned()));
    }
    resource
}
