//! `tls` of a listener, `pod_tls`, and `tls` of a broker or a database: files with certificates and
//! keys.

use std::fmt::Display;
use std::path::Path;

use rustls::RootCertStore;
use wornpath_execution::PodTls;
use wornpath_yaml::{Node, Parameter, Problem, ProblemKind, Span, Takes};

use crate::diagnostics::Diagnostics;
use crate::exchange::ExchangeTls;
use crate::section::Section;
use crate::tls::{ClientTls, ListenerTls, Oldest, ServerIdentity, TlsError, pod_tls, roots};

#[rustfmt::skip]
pub(crate) const LISTENER_TLS: &[Parameter] = &[
    Parameter::required("certificate", Takes::Text, "PEM file with the listener's certificate chain, its own certificate first."),
    Parameter::required("key", Takes::Text, "PEM file with its private key."),
    Parameter::optional("client_ca", Takes::Text, "PEM file with the CA certificates for client authentication; callers without a certificate signed by one are rejected."),
    Parameter::with_default("oldest", Takes::OneOf(&["1.2", "1.3"]), "1.2", "Minimum TLS version."),
];

#[rustfmt::skip]
pub(crate) const POD_TLS: &[Parameter] = &[
    Parameter::required("ca", Takes::Text, "PEM file with the CA certificates that sign the pods' certificates, or `system` for those that the operating system trusts; a connection to any other server is refused."),
    Parameter::optional("certificate", Takes::Text, "PEM file with the client certificate for pods that require one."),
    Parameter::optional("key", Takes::Text, "PEM file with its private key."),
    Parameter::optional("server_name", Takes::Text, "Server name in the pods' certificates, if it is not the host of their address."),
];

#[rustfmt::skip]
pub(crate) const SERVER_TLS: &[Parameter] = &[
    Parameter::required("ca", Takes::Text, "PEM file with the CA certificates that sign the server's certificate, or `system` for those that the operating system trusts; a connection to any other server is refused."),
    Parameter::optional("certificate", Takes::Text, "PEM file with the client certificate, if the server requires one."),
    Parameter::optional("key", Takes::Text, "PEM file with its private key."),
    Parameter::optional("server_name", Takes::Text, "Name in the server's certificate, if it is not the host of its address."),
];

#[rustfmt::skip]
pub(crate) const MUTUAL_TLS: &[Parameter] = &[
    Parameter::required("ca", Takes::Text, "PEM file with the CA certificates that sign the routers' certificates; a connection to or from any other program is refused."),
    Parameter::required("certificate", Takes::Text, "PEM file with this router's certificate chain, its own certificate first."),
    Parameter::required("key", Takes::Text, "PEM file with its private key."),
    Parameter::optional("server_name", Takes::Text, "Server name in the routers' certificates, if it is not the host in `peers`."),
];

/// The `tls` of programs that both call and are called, and show each other a certificate.
pub(crate) fn mutual(node: Option<&Node>, diagnostics: &mut Diagnostics) -> Option<ExchangeTls> {
    let node = node?;
    let section = Section::of(Some(node), "tls", node.span, MUTUAL_TLS, &mut diagnostics.problems);
    let ca = file(&section, "ca", diagnostics, roots)?;
    let called = identity(&section, diagnostics)?;
    let caller = ServerIdentity::new(called.chain.clone(), called.key.clone_key());
    let listener = ListenerTls::new(called, Some(ca.clone()), Oldest::Tls13);
    let client = ClientTls::new(ca, Some(caller), section.maybe("server_name"));
    let tls = listener.and_then(|listener| Ok(ExchangeTls { listener, client: client? }));
    let at = if matches!(tls, Err(TlsError::Name)) { "server_name" } else { "certificate" };
    tls.map_err(|error| unusable(at, section.at(at), &error, diagnostics)).ok()
}

/// The `tls` of a listener, if it has one.
pub(crate) fn listener(node: Option<&Node>, diagnostics: &mut Diagnostics) -> Option<ListenerTls> {
    let node = node?;
    let section =
        Section::of(Some(node), "tls", node.span, LISTENER_TLS, &mut diagnostics.problems);
    let identity = identity(&section, diagnostics)?;
    let clients = match section.maybe::<String>("client_ca") {
        None => None,
        Some(_) => Some(file(&section, "client_ca", diagnostics, roots)?),
    };
    let oldest = if section.or("oldest", "1.2") == "1.3" { Oldest::Tls13 } else { Oldest::Tls12 };
    let tls = ListenerTls::new(identity, clients, oldest);
    tls.map_err(|error| unusable("certificate", section.at("certificate"), &error, diagnostics))
        .ok()
}

/// The `tls` of a listener whose callers may not check its certificate: also `self_signed`.
pub(crate) fn listener_or_self_signed(
    node: Option<&Node>,
    diagnostics: &mut Diagnostics,
) -> Option<ListenerTls> {
    let node = node?;
    let Some(text) = node.text() else { return listener(Some(node), diagnostics) };
    let problem = if text == "self_signed" {
        match ListenerTls::self_signed() {
            Ok(tls) => return Some(tls),
            Err(error) => Problem::new(ProblemKind::BadParameter, node.span, error.to_string()),
        }
    } else {
        let message = format!("`tls` is `{text}`");
        Problem::new(ProblemKind::BadParameter, node.span, message)
    };
    let cure = "write `self_signed`, or `{certificate: …, key: …}`";
    diagnostics.problems.push(problem.cure(cure));
    None
}

/// The TLS settings of pods at `https://`, if there are any.
pub(crate) fn pods(root: &Node, diagnostics: &mut Diagnostics) -> Option<PodTls> {
    client(root.get("pod_tls"), "pod_tls", diagnostics, POD_TLS, pod_tls)
}

/// The `tls` of a broker or a database, if it has one.
pub(crate) fn server(node: Option<&Node>, diagnostics: &mut Diagnostics) -> Option<ClientTls> {
    client(node, "tls", diagnostics, SERVER_TLS, ClientTls::new)
}

/// Reads the keys of a client, which are the same for all servers.
fn client<T>(
    node: Option<&Node>,
    name: &'static str,
    diagnostics: &mut Diagnostics,
    parameters: &[Parameter],
    make: fn(RootCertStore, Option<ServerIdentity>, Option<String>) -> Result<T, TlsError>,
) -> Option<T> {
    let node = node?;
    let section = Section::of(Some(node), name, node.span, parameters, &mut diagnostics.problems);
    let ca = trusted(&section, diagnostics)?;
    let own = match (section.node("certificate"), section.node("key")) {
        (None, None) => None,
        (Some(_), Some(_)) => Some(identity(&section, diagnostics)?),
        (Some(half), None) | (None, Some(half)) => {
            let message = format!("`{name}` sets only one of `certificate` and `key`");
            diagnostics.problems.push(
                Problem::new(ProblemKind::MissingParameter, half.span, message)
                    .cure("set both, or neither if no client certificate is required"),
            );
            return None;
        }
    };
    let tls = make(ca, own, section.maybe("server_name"));
    let at = if matches!(tls, Err(TlsError::Name)) { "server_name" } else { "certificate" };
    tls.map_err(|error| unusable(at, section.at(at), &error, diagnostics)).ok()
}

/// The CAs that `ca` names.
fn trusted(section: &Section<'_>, diagnostics: &mut Diagnostics) -> Option<RootCertStore> {
    if section.maybe::<String>("ca").as_deref() != Some("system") {
        return file(section, "ca", diagnostics, roots);
    }
    let found = diagnostics.environment.system_roots();
    let refuse = |error: TlsError| {
        let problem = Problem::new(ProblemKind::NotFound, section.at("ca"), error.to_string());
        diagnostics.problems.push(problem.cure("install them, or name a PEM file"));
    };
    found.map_err(refuse).ok()
}

fn identity(section: &Section<'_>, diagnostics: &mut Diagnostics) -> Option<ServerIdentity> {
    let chain = file(section, "certificate", diagnostics, ServerIdentity::chain);
    let key = file(section, "key", diagnostics, ServerIdentity::key);
    if let Some(name) = section.maybe::<String>("key") {
        diagnostics.note_secret("key", &name);
    }
    Some(ServerIdentity::new(chain?, key?))
}

/// Reads and parses the file that a key names. Problems never show its content.
fn file<T>(
    section: &Section<'_>,
    key: &'static str,
    diagnostics: &mut Diagnostics,
    parse: impl Fn(&str) -> Result<T, TlsError>,
) -> Option<T> {
    let name: String = section.maybe(key)?;
    diagnostics.files.push(name.clone().into());
    let text = match diagnostics.environment.text(Path::new(&name)) {
        Ok(text) => text,
        Err(error) => {
            let message = format!("`{key}`: cannot read file `{name}`: {error}");
            let problem = Problem::new(ProblemKind::NotFound, section.at(key), message);
            diagnostics.problems.push(problem.cure("give the path of a PEM file"));
            return None;
        }
    };
    parse(&text).map_err(|error| unusable(key, section.at(key), &error, diagnostics)).ok()
}

fn unusable(key: &str, span: Span, error: &dyn Display, diagnostics: &mut Diagnostics) {
    let message = format!("invalid `{key}`: {error}");
    let problem = Problem::new(ProblemKind::BadParameter, span, message);
    diagnostics
        .problems
        .push(problem.cure("give a file that `openssl x509` or `openssl pkey` can read"));
}
