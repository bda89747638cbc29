//! `listen.epp`: the listener of the endpoint picker.

use std::net::{AddrParseError, SocketAddr};

use wornpath_routing::queue::Priority;
use wornpath_yaml::{Node, Parameter, Problem, ProblemKind, SettingEntry, Takes, Yaml};

use super::tls;
use crate::diagnostics::Diagnostics;
use crate::section::{Section, refused};
use crate::settings::{Destinations, EppSettings};
use crate::tls::ListenerTls;

#[rustfmt::skip]
pub(crate) const EPP: &[Parameter] = &[
    Parameter::required("address", Takes::Text, "Address and port for the data plane's external processing filter; endpoint pickers usually have port 9002."),
    Parameter::optional("health", Takes::Text, "Address and port of one more listener for gRPC health checks, without TLS; endpoint pickers usually have port 9003. Health checks are answered at `address` too."),
    Parameter::with_default("destinations", Takes::OneOf(&["list", "one"]), "list", "`list`: answers name the chosen pod and its fallbacks, in the order of retries. `one`: only the chosen pod, for data planes that read a single address, such as Envoy's `ORIGINAL_DST` clusters."),
    Parameter::with_default("objectives", Takes::Texts, "[]", "Objectives that requests may name in `x-llm-d-inference-objective`, as `name=priority`, with priorities from 0 to 7; those without a tenant get that priority in the wait queue. Online requests have 4."),
    Parameter::with_default("scores", Takes::Flag, "false", "Whether answers carry the score of every candidate, in the metadata `x-gateway-destination-endpoint-scores`, in milliseconds or points as the profile scores them; more is better. Every decision is explained then, which costs some microseconds."),
    Parameter::with_default("hold_head", Takes::Flag, "false", "Answers the head of a response only with the first byte of its body, in the mode `FULL_DUPLEX_STREAMED`. If the pod dies in between, the data plane has sent nothing yet and answers 502, which a listener in front of it may retry."),
    Parameter::with_default("test_hooks", Takes::Flag, "false", "Obeys the headers of the Gateway API Inference Extension's conformance tests: `test-epp-endpoint-selection` of a request names the pods that may serve it, and responses say which pod was selected and which served. Any client can choose its pod then; only for tests."),
];

const ADDRESS: &str = "give an address and a port, such as `0.0.0.0:9002`";

/// `epp: 127.0.0.1:9002` or `epp: {address: …, health: …}`.
pub(crate) fn epp(
    node: Option<&Node>,
    diagnostics: &mut Diagnostics,
) -> Option<(EppSettings, Option<ListenerTls>)> {
    let node = node?;
    if let Some(text) = node.text() {
        return match text.parse() {
            Ok(address) => Some((EppSettings::at(address), None)),
            Err(error) => {
                let error: AddrParseError = error;
                let problem = refused("listen", "epp", text, node.span, &error);
                diagnostics.problems.push(problem.cure(ADDRESS));
                None
            }
        };
    }
    let Yaml::Map(settings) = &node.value else {
        let message = format!("`epp` must be an address or a map, not {}", node.kind());
        let problem = Problem::new(ProblemKind::Syntax, node.span, message);
        diagnostics.problems.push(problem.cure(ADDRESS));
        return None;
    };
    let entry = SettingEntry { name: "epp", span: node.span, settings };
    let section = Section::read(entry, EPP, &["tls"], &mut diagnostics.problems);
    let tls = tls::listener_or_self_signed(node.get("tls"), diagnostics);
    let health: Option<SocketAddr> = section.parsed("health", ADDRESS, &mut diagnostics.problems);
    let objectives = objectives(&section, diagnostics);
    let address = section.parsed("address", ADDRESS, &mut diagnostics.problems)?;
    let destinations = match section.or("destinations", "list") {
        "one" => Destinations::One,
        _ => Destinations::List,
    };
    let settings = EppSettings {
        address,
        health,
        destinations,
        objectives,
        sends_scores: section.or("scores", false),
        holds_head: section.or("hold_head", false),
        has_test_hooks: section.or("test_hooks", false),
    };
    Some((settings, tls))
}

fn objectives(section: &Section<'_>, diagnostics: &mut Diagnostics) -> Vec<(String, Priority)> {
    let mut all: Vec<(String, Priority)> = Vec::new();
    for (text, span) in section.texts("objectives") {
        let read = text.split_once('=').and_then(|(name, level)| {
            let level = level.trim().parse().ok().and_then(Priority::new)?;
            Some((name.trim().to_owned(), level)).filter(|(name, _)| !name.is_empty())
        });
        let message = match read {
            Some((name, _)) if all.iter().any(|(known, _)| *known == name) => {
                format!("the objective `{name}` is listed twice")
            }
            Some(objective) => {
                all.push(objective);
                continue;
            }
            None => format!("`{text}` of `objectives` is not a name and a priority"),
        };
        let problem = Problem::new(ProblemKind::BadParameter, span, message);
        let cure = "write `name=priority`, with a priority from 0 to 7, each name once";
        diagnostics.problems.push(problem.cure(cure));
    }
    all
}
