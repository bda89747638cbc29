//! `tls` of a listener, and `pod_tls`: files with certificates and keys.

use std::fmt::Display;
use std::path::Path;

use wornpath_execution::PodTls;
use wornpath_routing::document::Node;
use wornpath_routing::{Parameter, Problem, ProblemKind, Span, Takes};

use crate::diagnostics::Diagnostics;
use crate::section::Section;
use crate::tls::{ListenerTls, Oldest, ServerIdentity, TlsError, pod_tls, roots};

#[rustfmt::skip]
pub(crate) const LISTENER_TLS: &[Parameter] = &[
    Parameter::required("certificate", Takes::Text, "PEM file with the listener's certificate chain, its own certificate first."),
    Parameter::required("key", Takes::Text, "PEM file with its private key."),
    Parameter::optional("client_ca", Takes::Text, "PEM file with the CA certificates for client authentication; callers without a certificate signed by one are rejected."),
    Parameter::with_default("oldest", Takes::OneOf(&["1.2", "1.3"]), "1.2", "Minimum TLS version."),
];

#[rustfmt::skip]
pub(crate) const POD_TLS: &[Parameter] = &[
    Parameter::required("ca", Takes::Text, "PEM file with the CA certificates that sign the pods' certificates; a connection to any other server is refused."),
    Parameter::optional("certificate", Takes::Text, "PEM file with the client certificate for pods that require one."),
    Parameter::optional("key", Takes::Text, "PEM file with its private key."),
    Parameter::optional("server_name", Takes::Text, "Server name in the pods' certificates, if it is not the host of their address."),
];

/// The `tls` of a listener, if it has one.
pub(crate) fn listener(node: Option<&Node>, notes: &mut Diagnostics) -> Option<ListenerTls> {
    let node = node?;
    let name = ("tls", node.span);
    let section = Section::of(Some(node), name, LISTENER_TLS, &mut notes.problems);
    let identity = identity(&section, notes)?;
    let clients = match section.maybe::<String>("client_ca") {
        None => None,
        Some(_) => Some(file(&section, "client_ca", notes, roots)?),
    };
    let oldest = if section.or("oldest", "1.2") == "1.3" { Oldest::Tls13 } else { Oldest::Tls12 };
    let tls = ListenerTls::new(identity, clients, oldest);
    tls.map_err(|error| unusable("certificate", section.at("certificate"), &error, notes)).ok()
}

/// How pods at `https://` are recognised, if that is said.
pub(crate) fn pods(root: &Node, notes: &mut Diagnostics) -> Option<PodTls> {
    let node = root.get("pod_tls")?;
    let name = ("pod_tls", node.span);
    let section = Section::of(Some(node), name, POD_TLS, &mut notes.problems);
    let ca = file(&section, "ca", notes, roots)?;
    let own = match (section.node("certificate"), section.node("key")) {
        (None, None) => None,
        (Some(_), Some(_)) => Some(identity(&section, notes)?),
        (Some(half), None) | (None, Some(half)) => {
            let message = "`pod_tls` sets only one of `certificate` and `key`";
            notes.problems.push(
                Problem::new(ProblemKind::MissingParameter, half.span, message)
                    .cure("set both, or neither if pods require no client certificate"),
            );
            return None;
        }
    };
    let tls = pod_tls(ca, own, section.maybe("server_name"));
    let at = if matches!(tls, Err(TlsError::Name)) { "server_name" } else { "certificate" };
    tls.map_err(|error| unusable(at, section.at(at), &error, notes)).ok()
}

fn identity(section: &Section<'_>, notes: &mut Diagnostics) -> Option<ServerIdentity> {
    let chain = file(section, "certificate", notes, ServerIdentity::chain);
    let key = file(section, "key", notes, ServerIdentity::key);
    Some(ServerIdentity::new(chain?, key?))
}

/// What `parse` makes of the file that a key names. Never shows what is in it.
fn file<T>(
    section: &Section<'_>,
    key: &'static str,
    notes: &mut Diagnostics,
    read: impl Fn(&str) -> Result<T, TlsError>,
) -> Option<T> {
    let name: String = section.maybe(key)?;
    notes.files.push(name.clone().into());
    let text = match notes.outside.text(Path::new(&name)) {
        Ok(text) => text,
        Err(error) => {
            let message = format!("`{key}`: cannot read file `{name}`: {error}");
            let problem = Problem::new(ProblemKind::NotFound, section.at(key), message);
            notes.problems.push(problem.cure("give the path of a PEM file"));
            return None;
        }
    };
    read(&text).map_err(|error| unusable(key, section.at(key), &error, notes)).ok()
}

fn unusable(key: &str, span: Span, error: &dyn Display, notes: &mut Diagnostics) {
    let message = format!("invalid `{key}`: {error}");
    let problem = Problem::new(ProblemKind::BadParameter, span, message);
    notes.problems.push(problem.cure("give a file that `openssl x509` or `openssl pkey` can read"));
}
