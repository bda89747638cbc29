//! Where events come from besides the engines themselves.

use wornpath_events::{BrokerStream, SOURCE_KINDS, TransportKind, TransportOrigin};
use wornpath_routing::document::Node;
use wornpath_routing::{Parameter, Problem, ProblemKind, Takes};

use super::listen::Listen;
use crate::diagnostics::Diagnostics;
use crate::section::{Section, maps};

/// A source of events for several pods.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EventSourceConfig {
    /// What pods call it.
    pub name: String,
    /// What it is.
    pub kind: SourceKind,
}

/// What a source of events is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SourceKind {
    /// Sidecars post to the events listener.
    Push {
        /// What their posts mean.
        semantics: Semantics,
    },
    /// A broker that relays fill.
    Broker {
        /// Which broker: a line of the registry of transports.
        kind: &'static TransportKind,
        /// The server, and the stream, topic or prefix on it.
        address: BrokerStream,
    },
}

/// What a source's events mean.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Semantics {
    /// Numbered without a gap, and copies are counted.
    Sequenced,
    /// A block is there or not.
    Set,
}

impl EventSourceConfig {
    /// What its events mean.
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
    Parameter::required("name", Takes::Text, "What pods call it in their `events`."),
    Parameter::required("kind", Takes::OneOf(SOURCE_KINDS), "`push`: sidecars post to `listen.events`, or stream to it by gRPC; `nats`, `redis`, `kafka`: a broker that `wornpath relay` fills."),
    Parameter::optional("url", Takes::Text, "Where the broker is, such as `nats://10.0.0.9:4222`."),
    Parameter::with_default("stream", Takes::Text, "wornpath", "The broker's stream or topic, or what its streams' names begin with."),
    Parameter::with_default("numbered", Takes::Flag, "false", "Whether sidecars number their posts without a gap; then copies of blocks are counted."),
];

pub(crate) fn sources(
    root: &Node,
    listen: &Listen,
    notes: &mut Diagnostics,
) -> Vec<EventSourceConfig> {
    let (mut sources, mut names) = (Vec::new(), Vec::new());
    for entry in maps(root, "event_sources", &mut notes.problems) {
        let section = Section::read(entry, SOURCE, &[], &mut notes.problems);
        let name: String = section.or("name", String::new());
        notes.only_once(&mut names, "event source", &name, section.at("name"));
        let kind = section.maybe::<&'static str>("kind").and_then(TransportKind::named);
        let Some(kind) = kind else { continue };
        let kind = if kind.origin == TransportOrigin::Broker {
            if !kind.is_built_in() {
                not_built_in(&section, kind.name, notes);
            }
            let stream = section.or("stream", String::new());
            let url = url(&section, kind.name, notes);
            SourceKind::Broker { kind, address: BrokerStream { url, stream } }
        } else {
            if listen.events.is_none() {
                let problem = Problem::new(
                    ProblemKind::MissingDependency,
                    section.at("kind"),
                    "sidecars have nowhere to post to",
                );
                notes.problems.push(problem.cure("add `events: 127.0.0.1:8082` to `listen`"));
            }
            let semantics =
                if section.or("numbered", false) { Semantics::Sequenced } else { Semantics::Set };
            SourceKind::Push { semantics }
        };
        sources.push(EventSourceConfig { name, kind });
    }
    sources
}

/// Brokers are for fleets of routers; most builds do without their clients.
fn not_built_in(section: &Section<'_>, kind: &str, notes: &mut Diagnostics) {
    let message = format!("this build of wornpath cannot read from `{kind}`");
    let problem = Problem::new(ProblemKind::MissingDependency, section.at("kind"), message);
    notes.problems.push(problem.cure(format!("build it with `--features {kind}`")));
}

fn url(section: &Section<'_>, scheme: &str, notes: &mut Diagnostics) -> String {
    let example = format!("give `url: {scheme}://host:port`");
    let Some(url) = section.maybe::<String>("url") else {
        let message = format!("a `{scheme}` source needs `url`, which is not given");
        notes.problems.push(
            Problem::new(ProblemKind::MissingParameter, section.span(), message).cure(example),
        );
        return String::new();
    };
    if !url.starts_with(&format!("{scheme}://")) {
        notes.shown_address(&url, section.at("url"));
        let message = format!("`url` of a `{scheme}` source does not begin with `{scheme}://`");
        notes.problems.push(
            Problem::new(ProblemKind::BadParameter, section.at("url"), message).cure(example),
        );
    }
    url
}
