//! The settings of the exchange between routers.

use crate::tls::{ClientTls, ListenerTls};
use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;

/// How routers of the same pods find and authenticate each other.
#[derive(Clone, Debug)]
pub struct ExchangeSettings {
    /// Where this router is called by others.
    pub listen: SocketAddr,
    /// The routers that it calls.
    pub peers: Vec<PeerAddress>,
    /// The secret that all of them have.
    pub key: ExchangeKey,
    /// TLS in both directions, if enabled.
    pub tls: Option<ExchangeTls>,
}

/// Host and port of routers. A name may have several addresses, and other ones later.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PeerAddress {
    /// A name or an IP address, without brackets.
    pub host: String,
    /// The port.
    pub port: u16,
}

/// Why a text is no address of a router.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PeerAddressError {
    /// It has no port, or one that is not a number.
    #[error("it has no port from 1 to 65535")]
    Port,
    /// It has no host, or a URL in its place.
    #[error("it has no host before the port")]
    Host,
}

/// The secret of an exchange; empty between routers of one machine.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct ExchangeKey(pub Vec<u8>);

/// TLS between routers: each shows its certificate, and trusts the same CA.
#[derive(Clone, Debug)]
pub struct ExchangeTls {
    /// For routers that call.
    pub listener: ListenerTls,
    /// For routers that are called.
    pub client: ClientTls,
}

impl FromStr for PeerAddress {
    type Err = PeerAddressError;

    fn from_str(text: &str) -> Result<Self, PeerAddressError> {
        let (host, port) = text.rsplit_once(':').ok_or(PeerAddressError::Port)?;
        let port: u16 = port.parse().map_err(|_| PeerAddressError::Port)?;
        let inner = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        let is_host = !host.is_empty() && !host.contains(['/', '@', ' ']);
        let is_bare = inner.is_some() || !host.contains(':');
        match (port, is_host && is_bare) {
            (0, _) => Err(PeerAddressError::Port),
            (_, false) => Err(PeerAddressError::Host),
            (port, true) => Ok(Self { host: inner.unwrap_or(host).to_owned(), port }),
        }
    }
}

impl fmt::Display for PeerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { host, port } = self;
        if host.contains(':') { write!(f, "[{host}]:{port}") } else { write!(f, "{host}:{port}") }
    }
}

/// Never shows the secret.
impl fmt::Debug for ExchangeKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ExchangeKey(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_is_a_name_or_an_address_with_a_port() {
        let read = |text: &str| text.parse::<PeerAddress>();
        for text in ["routers.default.svc:7400", "10.0.0.1:1", "[::1]:65535"] {
            assert_eq!(read(text).map(|peer| peer.to_string()), Ok(text.to_owned()));
        }
        assert_eq!(read("[fd00::2]:80").map(|peer| peer.host), Ok("fd00::2".to_owned()));
        for text in ["routers", "routers:", "routers:0", "routers:70000"] {
            assert_eq!(read(text), Err(PeerAddressError::Port), "{text}");
        }
        for text in [":80", "fd00::2:80", "http://a:80", "a@b:80"] {
            assert_eq!(read(text), Err(PeerAddressError::Host), "{text}");
        }
    }
}
