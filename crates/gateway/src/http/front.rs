//! The fronts of the server: who connects to a listener, and what workers do with a connection.

use wornpath_config::Settings;
use wornpath_config::tls::ListenerTls;

/// Who connects to a listener.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Front {
    /// Clients, over HTTP.
    Client,
    /// Data planes that ask for endpoints, over gRPC.
    Epp,
    /// Health checks of the picker alone, over gRPC without TLS.
    EppHealth,
    /// Other routers. No worker gets their connections.
    Exchange,
}

/// A connection for a worker.
#[derive(Debug)]
pub(super) struct Accepted {
    pub(super) front: Front,
    pub(super) stream: std::net::TcpStream,
}

/// The phase of the server's life, announced to all workers; phases only advance.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Phase {
    Serving,
    /// Each connection closes after the request in flight on it.
    Draining,
    /// What is in flight ends with an error.
    Cut,
    /// Workers stop, whatever is in flight.
    Stopped,
}

impl Front {
    /// Its name in the log.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Client => "client",
            Self::Epp => "epp",
            Self::EppHealth => "epp health",
            Self::Exchange => "exchange",
        }
    }

    /// Who connects to it, for error messages.
    #[must_use]
    pub const fn callers(self) -> &'static str {
        match self {
            Self::Client => "clients",
            Self::Epp => "the endpoint picker",
            Self::EppHealth => "health checks",
            Self::Exchange => "other routers",
        }
    }

    /// The TLS settings of its connections.
    pub(super) fn tls(self, settings: &Settings) -> Option<ListenerTls> {
        match self {
            Self::Client => settings.tls.client.clone(),
            Self::Epp => settings.tls.epp.clone(),
            Self::EppHealth => None,
            Self::Exchange => {
                settings.exchange.as_ref()?.tls.as_ref().map(|tls| tls.listener.clone())
            }
        }
    }
}
