//! `exchange`: what routers of the same pods tell each other.

use std::path::Path;

use wornpath_yaml::{Node, Parameter, Problem, ProblemKind, Takes};

use super::listen::Listen;
use super::tls;
use crate::diagnostics::Diagnostics;
use crate::exchange::{ExchangeKey, ExchangeSettings, PeerAddress};
use crate::section::{Section, refused};

/// Shorter keys can be guessed.
const MIN_KEY: usize = 16;

#[rustfmt::skip]
pub(crate) const EXCHANGE: &[Parameter] = &[
    Parameter::required("listen", Takes::Text, "Address and port for the other routers."),
    Parameter::required("peers", Takes::Texts, "The other routers, as `host:port`. A name is resolved again and again, and all its addresses are called, such as those of a headless service in Kubernetes. The router itself may be among them."),
    Parameter::optional("key_file", Takes::Text, "File with a secret that all of them have, of 16 characters or more; required unless `listen` is a loopback address. A router with another one is not heard."),
];

pub(crate) fn exchange(
    root: &Node,
    listeners: &Listen,
    diagnostics: &mut Diagnostics,
) -> Option<ExchangeSettings> {
    let node = root.get("exchange")?;
    let section = Section::map(node, "exchange", EXCHANGE, &["tls"], &mut diagnostics.problems);
    let tls = tls::mutual(node.get("tls"), diagnostics);
    let cure = "write `host:port`, such as `routers.default.svc:7400`";
    let mut peers = Vec::new();
    for (text, span) in section.texts("peers") {
        match text.parse::<PeerAddress>() {
            Ok(peer) => peers.push(peer),
            Err(error) => {
                let shown = diagnostics.shown_address(&text, span);
                let problem = refused("exchange", "peers", shown, span, &error);
                diagnostics.problems.push(problem.cure(cure));
            }
        }
    }
    let key = key(&section, diagnostics);
    let cure = "give an address and a port, such as `0.0.0.0:7400`";
    let listen = section.parsed("listen", cure, &mut diagnostics.problems)?;
    let settings = ExchangeSettings { listen, peers, key: key.unwrap_or_default(), tls };
    check_listen(&section, &settings, listeners, diagnostics);
    Some(settings)
}

/// Reads the secret; none if it is absent or was refused.
fn key(section: &Section<'_>, diagnostics: &mut Diagnostics) -> Option<ExchangeKey> {
    let file: String = section.maybe("key_file")?;
    diagnostics.note_secret("key_file", &file);
    let why = match diagnostics.environment.text(Path::new(&file)) {
        Ok(text) if text.trim().len() >= MIN_KEY => {
            return Some(ExchangeKey(text.trim().as_bytes().to_vec()));
        }
        Ok(text) => format!("it has {} characters; {MIN_KEY} are needed", text.trim().len()),
        Err(error) => error.to_string(),
    };
    let message = format!("`key_file` of `exchange`: `{file}`: {why}");
    let problem = Problem::new(ProblemKind::BadParameter, section.at("key_file"), message);
    let cure = format!("write a random secret to it: `openssl rand -hex 32 > {file}`");
    diagnostics.problems.push(problem.cure(cure));
    None
}

/// Reports a listener without authentication that other machines can reach, and one whose address
/// is taken.
fn check_listen(
    section: &Section<'_>,
    settings: &ExchangeSettings,
    listeners: &Listen,
    diagnostics: &mut Diagnostics,
) {
    let listen = settings.listen;
    let span = section.at("listen");
    if !listen.ip().is_loopback() && section.node("key_file").is_none() {
        let message = format!(
            "`exchange` listens on {listen}, which other machines can reach, without a `key_file`"
        );
        let problem = Problem::new(ProblemKind::Unsafe, span, message);
        let cure = "set `key_file`, with the same secret for all routers, or listen on 127.0.0.1";
        diagnostics.problems.push(problem.cure(cure));
    }
    let taken = [
        ("listen.client", Some(listeners.client)),
        ("listen.admin", listeners.admin.as_ref().map(|guarded| guarded.address)),
        ("listen.events", listeners.events.as_ref().map(|guarded| guarded.address)),
        ("listen.epp", listeners.epp.as_ref().map(|epp| epp.address)),
    ];
    let same = |(_, address): &&(_, _)| listen.port() != 0 && *address == Some(listen);
    if let Some((other, _)) = taken.iter().find(same) {
        let message = format!("`listen` of `exchange` and `{other}` both listen on {listen}");
        let problem = Problem::new(ProblemKind::Twice, span, message);
        diagnostics.problems.push(problem.cure("give each listener its own port"));
    }
}
