//! Access to the admin plane: on loopback every process of this machine, elsewhere clients with the
//! token or a trusted client certificate.
//!
//! A browser sends requests for pages of other sites too, from this machine and with the operator's
//! certificate. So whatever the kind of access, a request that a page of another origin made is
//! refused, and without a token or TLS one whose `Host` is a name that an attacker may have pointed
//! at this machine (DNS rebinding; with TLS the browser has compared the name with our
//! certificate). A token needs neither: no page of another origin has it.

use std::net::{IpAddr, SocketAddr};

use hyper::HeaderMap;
use hyper::header::{AUTHORIZATION, HOST, ORIGIN};

use wornpath_config::KeyDigest;
use wornpath_config::tls::ListenerTls;

const SCHEME: &[u8] = b"Bearer ";

/// How callers of the admin plane are authenticated.
#[derive(Clone, Copy, Debug)]
pub enum AdminAccess {
    /// By a bearer token.
    Token(KeyDigest),
    /// By the client certificate that the listener has verified.
    Certificate,
    /// Any process on this machine.
    Here,
}

/// The admin plane would be reachable without authentication.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "admin listener {address}: reachable from other machines without a token; set `token_digest` or `tls.client_ca`, or \
     listen on 127.0.0.1"
)]
pub struct AdminAccessError {
    /// The address of the listener.
    pub address: SocketAddr,
}

impl AdminAccess {
    /// For a listener at `address` with a token, certificates, or neither.
    ///
    /// # Errors
    /// If other machines can reach it, and it has neither.
    pub fn new(
        address: SocketAddr,
        token: Option<KeyDigest>,
        tls: Option<&ListenerTls>,
    ) -> Result<Self, AdminAccessError> {
        match token {
            Some(token) => Ok(Self::Token(token)),
            None if tls.is_some_and(ListenerTls::is_mutual) => Ok(Self::Certificate),
            None if address.ip().is_loopback() => Ok(Self::Here),
            None => Err(AdminAccessError { address }),
        }
    }

    /// Whether static files must be served without a token, so that the page can ask for it.
    pub(crate) const fn wants_token(&self) -> bool {
        matches!(self, Self::Token(_))
    }

    /// The reason to refuse a request, if there is one.
    pub(crate) fn refuses(&self, headers: &HeaderMap) -> Option<&'static str> {
        match self {
            Self::Certificate | Self::Here if is_from_another_page(headers) => Some(
                "requests of web pages of another origin are refused; set a token to allow them",
            ),
            Self::Certificate => None,
            Self::Token(digest) => {
                let token = headers.get(AUTHORIZATION).map(|value| value.as_bytes());
                let token = token.and_then(|value| value.split_at_checked(SCHEME.len()));
                let token = token.filter(|(scheme, _)| scheme.eq_ignore_ascii_case(SCHEME));
                let token = token.map(|(_, token)| token);
                let is_known = token.is_some_and(|token| digest.is_of(token));
                (!is_known).then_some("expected `Authorization: Bearer` and the token")
            }
            Self::Here if !names_this_machine(headers) => {
                Some("expected this machine's address in `Host`; set a token to use other names")
            }
            Self::Here => None,
        }
    }
}

/// Whether a page made the request that this listener did not serve. Browsers write these headers
/// themselves; `Sec-Fetch-Site` also comes with the requests that have no `Origin`, such as of
/// images.
fn is_from_another_page(headers: &HeaderMap) -> bool {
    let fetch = |name| headers.get(name).map(|value| value.as_bytes());
    let site = fetch("sec-fetch-site").unwrap_or(b"none");
    // Following a link to the dashboard is allowed: the linking page cannot read the response.
    let is_link = fetch("sec-fetch-mode") == Some(b"navigate") && !headers.contains_key(ORIGIN);
    let is_other_site = site != b"same-origin" && site != b"none" && !is_link;
    is_other_site || headers.contains_key(ORIGIN) && !is_our_own_page(headers)
}

/// Whether the page that made a request came from this very listener.
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
    fn a_listener_that_other_machines_can_reach_needs_a_token() {
        let here = "[::1]:1".parse().unwrap();
        let anywhere = "0.0.0.0:1".parse().unwrap();
        assert!(AdminAccess::new(here, None, None).is_ok());
        let refusal = AdminAccess::new(anywhere, None, None).unwrap_err().to_string();
        assert!(refusal.starts_with("admin listener 0.0.0.0:1: reachable"), "{refusal}");
        let access = AdminAccess::new(anywhere, Some(KeyDigest::of(b"secret")), None).unwrap();
        let good = headers(&[("authorization", "Bearer secret"), ("origin", "http://tool")]);
        assert_eq!(access.refuses(&good), None);
        for wrong in ["Bearer secre", "secret", "Bearer ", "Basic secret"] {
            assert!(access.refuses(&headers(&[("authorization", wrong)])).is_some(), "{wrong}");
        }
        assert!(access.refuses(&headers(&[])).is_some());
    }

    #[test]
    fn pages_of_other_origins_are_refused_on_loopback() {
        let access = AdminAccess::new("127.0.0.1:1".parse().unwrap(), None, None).unwrap();
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
        for (site, is_refused) in
            [("cross-site", true), ("same-site", true), ("same-origin", false), ("none", false)]
        {
            let image = headers(&[("host", "127.0.0.1:8081"), ("sec-fetch-site", site)]);
            assert_eq!(access.refuses(&image).is_some(), is_refused, "{site}");
        }
        let rebound = headers(&[("host", "evil.example"), ("origin", "http://evil.example")]);
        assert!(access.refuses(&rebound).is_some(), "a name that points here is not enough");
    }

    #[test]
    fn pages_of_other_origins_are_refused_with_an_operators_certificate() {
        let access = AdminAccess::Certificate;
        let request = |origin| headers(&[("host", "router.example:8081"), ("origin", origin)]);
        for origin in ["https://evil.example", "https://router.example", "null", ""] {
            assert!(access.refuses(&request(origin)).is_some(), "{origin}");
        }
        assert_eq!(access.refuses(&request("https://router.example:8081")), None);
        assert_eq!(access.refuses(&headers(&[("host", "router.example:8081")])), None);
        let image = headers(&[("host", "router.example:8081"), ("sec-fetch-site", "cross-site")]);
        assert!(access.refuses(&image).is_some());
        let mut link = image;
        link.insert("sec-fetch-mode", "navigate".parse().unwrap());
        assert_eq!(access.refuses(&link), None);
        link.insert("origin", "https://evil.example".parse().unwrap());
        assert!(access.refuses(&link).is_some(), "a form of another page");
    }
}
