//! `event_sources`: sources of cache events other than the engines themselves.

use wornpath_events::{
    BrokerLogin, BrokerStream, SOURCE_KINDS, TransportKind, TransportOrigin, UrlUser,
};
use wornpath_yaml::{Node, Parameter, Problem, ProblemKind, Takes};

use super::listen::Listen;
use super::password::{PASSWORD, password, refuse_in_address};
use super::tls;
use crate::diagnostics::Diagnostics;
use crate::section::{Section, maps};

/// A source of events for several pods.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EventSourceConfig {
    /// Its name, which pods use in `events`.
    pub name: String,
    /// Its kind and address.
    pub kind: SourceKind,
}

/// The kind of an event source.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SourceKind {
    /// Sidecars post to the events listener.
    Push {
        /// Whether their posts are numbered.
        semantics: Semantics,
    },
    /// A broker that relays publish to.
    Broker {
        /// The kind of broker.
        kind: &'static TransportKind,
        /// The server, and the stream, topic or prefix on it.
        address: BrokerStream,
    },
}

/// The meaning of a source's events.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Semantics {
    /// Numbered without gaps; copies of a block are counted.
    Sequenced,
    /// A block is present or not; copies are not counted.
    Set,
}

impl EventSourceConfig {
    /// The meaning of its events.
    #[must_use]
    pub const fn semantics(&self) -> Semantics {
        match self.kind {
            SourceKind::Push { semantics } => semantics,
            SourceKind::Broker { .. } => Semantics::Sequenced,
        }
    }
}

#[rustfmt::skip]
pub(crate) const SOURCE: &[Parameter] = &[
    Parameter::required("name", Takes::Text, "Its name, which pods use in `events`."),
    Parameter::required("kind", Takes::OneOf(SOURCE_KINDS), "`push`: sidecars post to `listen.events`, or stream to it over gRPC; `nats`, `redis`, `kafka`: a broker that `wornpath relay` publishes to."),
    Parameter::optional("url", Takes::Text, "Address of the broker: `nats://host:4222`, `redis://host:6379` or `kafka://host:9092`; over TLS `tls://`, `rediss://` or `kafka+ssl://`, with `tls`. A user (`redis://user@host:6379`) may be in it, a password not."),
    Parameter::with_default("stream", Takes::Text, "wornpath", "The broker's stream or topic; for Redis the prefix of its stream names."),
    Parameter::with_default("numbered", Takes::Flag, "false", "Whether sidecars number their posts without gaps; if so, copies of blocks are counted."),
];

pub(crate) fn sources(
    root: &Node,
    listen: &Listen,
    diagnostics: &mut Diagnostics,
) -> Vec<EventSourceConfig> {
    let mut sources = Vec::new();
    let mut names = Vec::new();
    for entry in maps(root, "event_sources", &mut diagnostics.problems) {
        let section =
            Section::read(entry, &[SOURCE, PASSWORD].concat(), &["tls"], &mut diagnostics.problems);
        let name: String = section.or("name", String::new());
        diagnostics.check_unique(&mut names, "event source", &name, section.at("name"));
        let kind = section.maybe::<&'static str>("kind").and_then(TransportKind::named);
        let Some(kind) = kind else { continue };
        let kind = if kind.origin == TransportOrigin::Broker {
            if !kind.is_built_in() {
                not_built_in(&section, kind.name, diagnostics);
            }
            SourceKind::Broker { kind, address: broker(&section, kind, diagnostics) }
        } else {
            if listen.events.is_none() {
                let problem = Problem::new(
                    ProblemKind::MissingDependency,
                    section.at("kind"),
                    "a `push` source needs `listen.events`, which is not set",
                );
                diagnostics.problems.push(problem.cure("add `events: 127.0.0.1:8082` to `listen`"));
            }
            let semantics =
                if section.or("numbered", false) { Semantics::Sequenced } else { Semantics::Set };
            SourceKind::Push { semantics }
        };
        sources.push(EventSourceConfig { name, kind });
    }
    sources
}

fn broker(
    section: &Section<'_>,
    kind: &TransportKind,
    diagnostics: &mut Diagnostics,
) -> BrokerStream {
    let url = url(section, kind, diagnostics);
    let password = password(section, diagnostics);
    let tls = tls::server(section.node("tls"), diagnostics);
    let is_given = ["password_file", "password_env"].iter().any(|key| section.node(key).is_some());
    let is_refused = refuse_in_address(section, "url", diagnostics);
    let UrlUser { url, user } = UrlUser::split(&url);
    if user.is_some() && !is_given && !is_refused {
        let message = "`url` names a user or a token, but there is no password";
        let problem = Problem::new(ProblemKind::MissingParameter, section.at("url"), message);
        diagnostics.mask(section.at("url"));
        diagnostics.problems.push(problem.cure(
            "give `password_file` or `password_env`; a token belongs there, without `…@` in `url`",
        ));
    }
    if !kind.has_login && (user.is_some() || is_given) {
        let message = format!("a `{}` source takes no user and no password", kind.name);
        let problem = Problem::new(ProblemKind::BadParameter, section.span(), message);
        diagnostics
            .problems
            .push(problem.cure("remove them; use a client certificate of `tls` instead"));
    }
    let login = password.map(|password| BrokerLogin { user, password });
    BrokerStream { url, stream: section.or("stream", String::new()), login, tls }
}

/// Reports a broker whose client is not compiled in.
fn not_built_in(section: &Section<'_>, kind: &str, diagnostics: &mut Diagnostics) {
    let message = format!("this build has no support for `{kind}`");
    let problem = Problem::new(ProblemKind::MissingDependency, section.at("kind"), message);
    diagnostics.problems.push(problem.cure(format!("build it with `--features {kind}`")));
}

/// The address of a broker. Its scheme says whether the connection is encrypted, and `tls` says
/// whom to trust then, so there is neither without the other.
fn url(section: &Section<'_>, kind: &TransportKind, diagnostics: &mut Diagnostics) -> String {
    let name = kind.name;
    let with_tls = kind.tls_scheme.unwrap_or(name);
    let has_tls = section.node("tls").is_some();
    let scheme = if has_tls { with_tls } else { name };
    let example = format!("give `url: {scheme}://host:port`");
    let Some(url) = section.maybe::<String>("url") else {
        let message = format!("a `{name}` source needs `url`, which is not set");
        diagnostics.problems.push(
            Problem::new(ProblemKind::MissingParameter, section.span(), message).cure(example),
        );
        return String::new();
    };
    let starts_with = |scheme: &str| url.starts_with(&format!("{scheme}://"));
    if starts_with(scheme) {
        return url;
    }
    let (message, cure) = if starts_with(with_tls) {
        let message = format!("`url` of a `{name}` source is `{with_tls}://…`, which needs `tls`");
        (message, "add `tls: {ca: FILE}` with the CA of its certificate".to_owned())
    } else if has_tls && starts_with(name) {
        let message = format!(
            "a `{name}` source has `tls`, but its `url` is `{name}://…`, which is not encrypted"
        );
        (message, format!("write `{with_tls}://`, or remove `tls`"))
    } else {
        (format!("`url` of a `{name}` source does not start with `{scheme}://`"), example)
    };
    diagnostics.shown_address(&url, section.at("url"));
    let problem = Problem::new(ProblemKind::BadParameter, section.at("url"), message);
    diagnostics.problems.push(problem.cure(cure));
    url
}
