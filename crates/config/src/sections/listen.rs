//! `listen`: the listeners for clients, operators and events.

use std::net::{AddrParseError, SocketAddr};

use wornpath_yaml::{Node, Parameter, Problem, ProblemKind, SettingEntry, Span, Takes, Yaml};

use super::{epp, tls};
use crate::diagnostics::{DIGEST_CURE, Diagnostics};
use crate::secret::KeyDigest;
use crate::section::{Section, refused};
use crate::settings::EppSettings;
use crate::tls::ListenerTls;

/// The listeners.
#[derive(Clone, Debug)]
pub struct Listen {
    /// For clients.
    pub client: SocketAddr,
    /// The TLS settings for clients, if enabled.
    pub client_tls: Option<ListenerTls>,
    /// For operators, if enabled.
    pub admin: Option<ListenerGuard>,
    /// For events that sidecars push, if enabled.
    pub events: Option<ListenerGuard>,
    /// For data planes that ask for endpoints, if enabled.
    pub epp: Option<EppSettings>,
    /// Its TLS settings, if enabled.
    pub epp_tls: Option<ListenerTls>,
}

/// A listener that requires a token or client certificates, unless its address is a loopback
/// address.
#[derive(Clone, Debug)]
pub struct ListenerGuard {
    /// Address and port.
    pub address: SocketAddr,
    /// The digest of the token, if one is required.
    pub token: Option<KeyDigest>,
    /// The TLS settings, if enabled.
    pub tls: Option<ListenerTls>,
}

const CLIENT: &str = "127.0.0.1:8080";

#[rustfmt::skip]
pub(crate) const LISTEN: &[Parameter] = &[
    Parameter::with_default("address", Takes::Text, CLIENT, "Address and port for clients."),
];

#[rustfmt::skip]
pub(crate) const GUARDED: &[Parameter] = &[
    Parameter::required("address", Takes::Text, "Address and port."),
    Parameter::optional("token_digest", Takes::Text, "`sha256:` and the digest of the token that callers must send; required unless the address is a loopback address or `tls` has a `client_ca`."),
];

const ADDRESS: &str = "give an address and a port, such as `127.0.0.1:8080` or `[::]:8080`";

pub(crate) fn listen(root: &Node, diagnostics: &mut Diagnostics) -> Listen {
    let Some(node) = root.get("listen") else { return Listen::default() };
    let Yaml::Map(settings) = &node.value else {
        let message = format!("`listen` must be a map, not {}", node.kind());
        let cure = "write `listen: {client: \"127.0.0.1:8080\"}`";
        diagnostics.problems.push(Problem::new(ProblemKind::Syntax, node.span, message).cure(cure));
        return Listen::default();
    };
    let entry = SettingEntry { name: "listen", span: node.span, settings };
    Section::read(entry, &[], &["client", "admin", "events", "epp"], &mut diagnostics.problems);
    let (client, client_tls) = client(node.get("client"), diagnostics);
    let (epp, epp_tls) = epp::epp(node.get("epp"), diagnostics).unzip();
    let listen = Listen {
        epp,
        epp_tls: epp_tls.flatten(),
        client,
        client_tls,
        admin: guarded(node.get("admin"), "admin", diagnostics),
        events: guarded(node.get("events"), "events", diagnostics),
    };
    check_distinct_addresses(node, &listen, diagnostics);
    listen
}

impl Default for Listen {
    fn default() -> Self {
        let client = CLIENT.parse().expect("the default address is tested to be one");
        Self { client, client_tls: None, admin: None, events: None, epp: None, epp_tls: None }
    }
}

/// `client: 127.0.0.1:8080` or `client: {address: …, tls: …}`.
fn client(node: Option<&Node>, diagnostics: &mut Diagnostics) -> (SocketAddr, Option<ListenerTls>) {
    let default = Listen::default().client;
    let Some(node) = node else { return (default, None) };
    if let Some(text) = node.text() {
        let parsed = text.parse().map_err(|error: AddrParseError| {
            diagnostics
                .problems
                .push(refused("listen", "client", text, node.span, &error).cure(ADDRESS));
        });
        return (parsed.unwrap_or(default), None);
    }
    let Some(section) = nested(node, "client", LISTEN, diagnostics) else { return (default, None) };
    let address = section.parsed("address", ADDRESS, &mut diagnostics.problems).unwrap_or(default);
    (address, tls::listener(node.get("tls"), diagnostics))
}

/// A map with `tls` in it.
fn nested<'a>(
    node: &'a Node,
    name: &'static str,
    parameters: &[Parameter],
    diagnostics: &mut Diagnostics,
) -> Option<Section<'a>> {
    let Yaml::Map(settings) = &node.value else {
        let message = format!("`{name}` must be an address or a map, not {}", node.kind());
        diagnostics
            .problems
            .push(Problem::new(ProblemKind::Syntax, node.span, message).cure(ADDRESS));
        return None;
    };
    let entry = SettingEntry { name, span: node.span, settings };
    Some(Section::read(entry, parameters, &["tls"], &mut diagnostics.problems))
}

/// `admin: 127.0.0.1:9090` or `admin: {address: …, token_digest: …}`.
fn guarded(
    node: Option<&Node>,
    key: &'static str,
    diagnostics: &mut Diagnostics,
) -> Option<ListenerGuard> {
    let node = node?;
    if let Some(text) = node.text() {
        return match text.parse() {
            Ok(address) => {
                let guarded = ListenerGuard { address, token: None, tls: None };
                guard(key, guarded, node.span, diagnostics)
            }
            Err(error) => {
                let error: AddrParseError = error;
                diagnostics
                    .problems
                    .push(refused("listen", key, text, node.span, &error).cure(ADDRESS));
                None
            }
        };
    }
    let section = nested(node, key, GUARDED, diagnostics)?;
    let token = diagnostics.digest(&section, "token_digest");
    let tls = tls::listener(node.get("tls"), diagnostics);
    let address = section.parsed("address", ADDRESS, &mut diagnostics.problems)?;
    let guarded = ListenerGuard { address, token, tls };
    // A problem with the token or the certificate was reported above.
    let is_guarded = section.node("token_digest").is_some()
        || node.get("tls").is_some_and(|tls| tls.get("client_ca").is_some());
    if is_guarded {
        return Some(guarded);
    }
    guard(key, guarded, section.at("address"), diagnostics)
}

/// Reports a listener without authentication that other machines can reach.
fn guard(
    key: &str,
    guarded: ListenerGuard,
    span: Span,
    diagnostics: &mut Diagnostics,
) -> Option<ListenerGuard> {
    let address = guarded.address;
    if !address.ip().is_loopback() {
        let message = format!(
            "`{key}` listens on {address}, which other machines can reach, without a token"
        );
        let cure = format!(
            "listen on 127.0.0.1, or write `{key}: {{address: \"{address}\", token_digest: …}}`; {DIGEST_CURE}"
        );
        diagnostics.problems.push(Problem::new(ProblemKind::Unsafe, span, message).cure(cure));
    }
    Some(guarded)
}

/// Reports two listeners with the same address; port 0 is any free port.
fn check_distinct_addresses(node: &Node, listen: &Listen, diagnostics: &mut Diagnostics) {
    let all = [
        ("client", Some(listen.client)),
        ("admin", listen.admin.as_ref().map(|guarded| guarded.address)),
        ("events", listen.events.as_ref().map(|guarded| guarded.address)),
        ("epp", listen.epp.as_ref().map(|epp| epp.address)),
        ("epp.health", listen.epp.as_ref().and_then(|epp| epp.health)),
    ];
    for (at, (key, address)) in all.iter().enumerate() {
        let Some(address) = address.filter(|address| address.port() != 0) else { continue };
        let Some((other, _)) = all[..at].iter().find(|(_, other)| *other == Some(address)) else {
            continue;
        };
        let key_node = node.get(key.split('.').next().unwrap_or(key));
        let span = key_node.map_or(node.span, |node| node.span);
        let message = format!("`{key}` and `{other}` both listen on {address}");
        let problem = Problem::new(ProblemKind::Twice, span, message);
        diagnostics.problems.push(problem.cure("give each listener its own port"));
    }
}
