//! Where wornpath listens: for clients, for operators, for events.

use std::net::{AddrParseError, SocketAddr};

use wornpath_routing::document::{Entry, Node, Yaml};
use wornpath_routing::{Kind, Parameter, Problem, Span, Takes};

use super::notes::{DIGEST_CURE, Notes};
use super::section::{Section, refused};
use crate::settings::KeyDigest;

/// The listeners.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Listen {
    /// For clients.
    pub client: SocketAddr,
    /// For operators, if at all.
    pub admin: Option<Guarded>,
    /// For events that sidecars push, if at all.
    pub events: Option<Guarded>,
}

/// A listener that needs a token unless it can only be reached from this machine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Guarded {
    /// Where.
    pub address: SocketAddr,
    /// The digest of the token, if one is needed.
    pub token: Option<KeyDigest>,
}

const CLIENT: &str = "127.0.0.1:8080";

#[rustfmt::skip]
pub(super) const LISTEN: &[Parameter] = &[
    Parameter::with_default("client", Takes::Text, CLIENT, "Address and port for clients."),
];

#[rustfmt::skip]
pub(super) const GUARDED: &[Parameter] = &[
    Parameter::required("address", Takes::Text, "Address and port."),
    Parameter::optional("token_digest", Takes::Text, "`sha256:` and the digest of the token that callers must bring; needed unless the address is a loopback one."),
];

const ADDRESS: &str = "give an address and a port, such as `127.0.0.1:8080` or `[::]:8080`";

pub(super) fn listen(root: &Node, notes: &mut Notes) -> Listen {
    let Some(node) = root.get("listen") else { return Listen::default() };
    let Yaml::Map(settings) = &node.value else {
        let message = format!("`listen` holds {} where a map belongs", node.kind());
        let cure = "write `listen: {client: \"127.0.0.1:8080\"}`";
        notes.problems.push(Problem::new(Kind::Syntax, node.span, message).cure(cure));
        return Listen::default();
    };
    let entry = Entry { name: "listen", span: node.span, settings };
    let section = Section::read(entry, LISTEN, &["admin", "events"], &mut notes.problems);
    let default = Listen::default();
    let listen = Listen {
        client: section.parsed("client", ADDRESS, &mut notes.problems).unwrap_or(default.client),
        admin: guarded(node.get("admin"), "admin", notes),
        events: guarded(node.get("events"), "events", notes),
    };
    same_address(node, &listen, notes);
    listen
}

impl Default for Listen {
    fn default() -> Self {
        let client = CLIENT.parse().expect("the default address is tested to be one");
        Self { client, admin: None, events: None }
    }
}

/// `admin: 127.0.0.1:9090` or `admin: {address: …, token_digest: …}`.
fn guarded(node: Option<&Node>, key: &'static str, notes: &mut Notes) -> Option<Guarded> {
    let node = node?;
    if let Some(text) = node.text() {
        return match text.parse() {
            Ok(address) => guard(key, Guarded { address, token: None }, node.span, notes),
            Err(error) => {
                let error: AddrParseError = error;
                notes.problems.push(refused("listen", key, text, node.span, &error).cure(ADDRESS));
                None
            }
        };
    }
    let section = Section::of(Some(node), (key, node.span), GUARDED, &mut notes.problems);
    let token = notes.digest(&section, "token_digest");
    let address = section.parsed("address", ADDRESS, &mut notes.problems)?;
    if section.node("token_digest").is_some() {
        return Some(Guarded { address, token });
    }
    guard(key, Guarded { address, token }, section.at("address"), notes)
}

/// Refuses to be reached by everybody.
fn guard(key: &str, guarded: Guarded, span: Span, notes: &mut Notes) -> Option<Guarded> {
    let address = guarded.address;
    if !address.ip().is_loopback() {
        let message =
            format!("`{key}` listens at {address}, which others can reach, without a token");
        let cure = format!(
            "listen at 127.0.0.1, or write `{key}: {{address: \"{address}\", token_digest: …}}`; {DIGEST_CURE}"
        );
        notes.problems.push(Problem::new(Kind::Unsafe, span, message).cure(cure));
    }
    Some(guarded)
}

/// Two listeners cannot share an address; port 0 is any free one.
fn same_address(node: &Node, listen: &Listen, notes: &mut Notes) {
    let all = [
        ("client", Some(listen.client)),
        ("admin", listen.admin.map(|guarded| guarded.address)),
        ("events", listen.events.map(|guarded| guarded.address)),
    ];
    for (at, (key, address)) in all.iter().enumerate() {
        let Some(address) = address.filter(|address| address.port() != 0) else { continue };
        let Some((other, _)) = all[..at].iter().find(|(_, other)| *other == Some(address)) else {
            continue;
        };
        let span = node.get(key).map_or(node.span, |node| node.span);
        let message = format!("`{key}` listens at {address}, as `{other}` does");
        let problem = Problem::new(Kind::Twice, span, message);
        notes.problems.push(problem.cure("give each a port of its own"));
    }
}
