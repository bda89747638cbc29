//! Who may operate: on the loopback whoever is on this machine, elsewhere who knows the token or has a
//! certificate that the listener believes.
//!
//! A browser on this machine also runs other people's pages. Without a token, a request that a page made is
//! refused: it names an origin, or a host that somebody pointed at this machine.

use std::net::{IpAddr, SocketAddr};

use hyper::HeaderMap;
use hyper::header::{AUTHORIZATION, HOST, ORIGIN};

use crate::settings::KeyDigest;
use crate::tls::ListenerTls;

const SCHEME: &[u8] = b"Bearer ";

/// Who may operate.
#[derive(Clone, Copy, Debug)]
pub enum Access {
    /// Who knows the token.
    Token(KeyDigest),
    /// Whom the listener lets in, having seen a certificate.
    Certificate,
    /// Whoever is on this machine.
    Here,
}

/// Anybody could operate.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "admin listener {address}: it can be reached from other machines and has no token; set `token_digest` or `tls.client_ca`, or \
     listen on 127.0.0.1"
)]
pub struct AccessError {
    /// Where it was to listen.
    pub address: SocketAddr,
}

impl Access {
    /// For a listener at `address` with a token, certificates, or neither.
    ///
    /// # Errors
    /// Others can reach it, and it has neither.
    pub fn new(
        address: SocketAddr,
        token: Option<KeyDigest>,
        tls: Option<&ListenerTls>,
    ) -> Result<Self, AccessError> {
        match token {
            Some(token) => Ok(Self::Token(token)),
            None if tls.is_some_and(ListenerTls::is_mutual) => Ok(Self::Certificate),
            None if address.ip().is_loopback() => Ok(Self::Here),
            None => Err(AccessError { address }),
        }
    }

    /// Whether a browser must be given the page before it can show a token.
    pub(super) const fn wants_token(&self) -> bool {
        matches!(self, Self::Token(_))
    }

    /// Why a request may not pass, if it may not.
    pub(super) fn refuses(&self, headers: &HeaderMap) -> Option<&'static str> {
        match self {
            Self::Certificate => None,
            Self::Token(digest) => {
                let token = headers.get(AUTHORIZATION).map(|value| value.as_bytes());
                let token = token.and_then(|value| value.split_at_checked(SCHEME.len()));
                let token = token.filter(|(scheme, _)| scheme.eq_ignore_ascii_case(SCHEME));
                let token = token.map(|(_, token)| token);
                let is_known = token.is_some_and(|token| digest.is_of(token));
                (!is_known).then_some("expected `Authorization: Bearer` and the token")
            }
            Self::Here if headers.contains_key(ORIGIN) && !is_our_own_page(headers) => {
                Some("a web page may not operate; set a token to let tools in browsers do it")
            }
            Self::Here if !names_this_machine(headers) => {
                Some("expected this machine's address in `Host`; set a token to use other names")
            }
            Self::Here => None,
        }
    }
}

/// Whether the page that made a request came from this very listener. A browser writes both headers itself.
fn is_our_own_page(headers: &HeaderMap) -> bool {
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
    let (Some(origin), Some(host)) = (text(ORIGIN), text(HOST)) else { return false };
    origin.split_once("://").is_some_and(|(_, from)| from.eq_ignore_ascii_case(host))
}

fn names_this_machine(headers: &HeaderMap) -> bool {
    let Some(host) = headers.get(HOST).and_then(|host| host.to_str().ok()) else { return true };
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    };
    let name = name.trim_start_matches('[').trim_end_matches(']');
    name == "localhost" || name.parse::<IpAddr>().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(all: &[(&'static str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in all {
            headers.insert(*name, value.parse().unwrap());
        }
        headers
    }

    #[test]
    fn whoever_can_be_reached_needs_a_token() {
        let (here, anywhere) = ("[::1]:1".parse().unwrap(), "0.0.0.0:1".parse().unwrap());
        assert!(Access::new(here, None, None).is_ok());
        let refusal = Access::new(anywhere, None, None).unwrap_err().to_string();
        assert!(refusal.starts_with("admin listener 0.0.0.0:1: it can be reached"), "{refusal}");
        let access = Access::new(anywhere, Some(KeyDigest::of(b"secret")), None).unwrap();
        let good = headers(&[("authorization", "Bearer secret"), ("origin", "http://tool")]);
        assert_eq!(access.refuses(&good), None);
        for wrong in ["Bearer secre", "secret", "Bearer ", "Basic secret"] {
            assert!(access.refuses(&headers(&[("authorization", wrong)])).is_some(), "{wrong}");
        }
        assert!(access.refuses(&headers(&[])).is_some());
    }

    #[test]
    fn pages_of_other_people_cannot_operate_through_a_browser_on_this_machine() {
        let access = Access::new("127.0.0.1:1".parse().unwrap(), None, None).unwrap();
        for good in ["127.0.0.1:8081", "localhost", "localhost:8081", "[::1]:8081", "[::1]"] {
            assert_eq!(access.refuses(&headers(&[("host", good)])), None, "{good}");
        }
        for bad in ["evil.example", "evil.example:8081", "localhost.evil.example:1", ""] {
            assert!(access.refuses(&headers(&[("host", bad)])).is_some(), "{bad}");
        }
        for origin in
            ["http://evil.example", "http://127.0.0.1:9999", "http://127.0.0.1", "null", ""]
        {
            let page = headers(&[("host", "127.0.0.1:8081"), ("origin", origin)]);
            assert!(access.refuses(&page).is_some(), "{origin}");
        }
        let own = headers(&[("host", "127.0.0.1:8081"), ("origin", "http://127.0.0.1:8081")]);
        assert_eq!(access.refuses(&own), None);
        let rebound = headers(&[("host", "evil.example"), ("origin", "http://evil.example")]);
        assert!(access.refuses(&rebound).is_some(), "a name that points here is not enough");
    }
}
