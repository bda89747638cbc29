//! Access to the admin plane: on loopback every process of this machine, elsewhere clients with the
//! token or a trusted client certificate.
//!
//! A browser sends requests for pages of other sites too, from this machine and with the operator's
//! certificate. So whatever the kind of access, a request that a page of another origin made is
//! refused. A page becomes one of our origin if an attacker points its name at this listener (DNS
//! rebinding), so without a token the `Host` must be this machine's address or a name in the
//! listener's certificate. With a token it may be any name: such a page does not have the token.

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

    /// The reason to refuse a request that a page of another origin may have made, if there is one.
    /// `is_own_name` tells the names of the listener's certificate.
    pub(crate) fn refuses_page(
        &self,
        headers: &HeaderMap,
        is_own_name: impl Fn(&str) -> bool,
    ) -> Option<&'static str> {
        if is_from_another_page(headers) {
            return Some("requests of web pages of another origin are refused");
        }
        match self {
            Self::Token(_) => None,
            Self::Certificate => (!names_this_machine(headers, is_own_name)).then_some(
                "expected this machine's address or a name of the listener's certificate in `Host`",
            ),
            Self::Here => (!names_this_machine(headers, |_| false)).then_some(
                "expected this machine's address in `Host`; set a token to use other names",
            ),
        }
    }

    /// The reason to refuse a caller, if there is one.
    pub(crate) fn refuses_caller(&self, headers: &HeaderMap) -> Option<&'static str> {
        let Self::Token(digest) = self else { return None };
        let token = headers.get(AUTHORIZATION).map(|value| value.as_bytes());
        let token = token.and_then(|value| value.split_at_checked(SCHEME.len()));
        let token = token.filter(|(scheme, _)| scheme.eq_ignore_ascii_case(SCHEME));
        let token = token.map(|(_, token)| token);
        let is_known = token.is_some_and(|token| digest.is_of(token));
        (!is_known).then_some("expected `Authorization: Bearer` and the token")
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

fn names_this_machine(headers: &HeaderMap, is_own_name: impl Fn(&str) -> bool) -> bool {
    let Some(host) = headers.get(HOST).and_then(|host| host.to_str().ok()) else { return true };
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    };
    let name = name.trim_start_matches('[').trim_end_matches(']');
    name.eq_ignore_ascii_case("localhost") || name.parse::<IpAddr>().is_ok() || is_own_name(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refuses(access: AdminAccess, headers: &HeaderMap) -> Option<&'static str> {
        let is_own_name = |name: &str| name == "router.example";
        access.refuses_page(headers, is_own_name).or_else(|| access.refuses_caller(headers))
    }

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
        let good = headers(&[("authorization", "Bearer secret"), ("host", "any.example")]);
        assert_eq!(refuses(access, &good), None);
        for wrong in ["Bearer secre", "secret", "Bearer ", "Basic secret"] {
            assert!(refuses(access, &headers(&[("authorization", wrong)])).is_some(), "{wrong}");
        }
        assert!(refuses(access, &headers(&[])).is_some());
        let mut page = good;
        page.insert("origin", "http://evil.example".parse().unwrap());
        assert!(refuses(access, &page).is_some(), "a page of another origin, with the token");
    }

    #[test]
    fn pages_of_other_origins_are_refused_on_loopback() {
        let access = AdminAccess::new("127.0.0.1:1".parse().unwrap(), None, None).unwrap();
        for good in ["127.0.0.1:8081", "localhost", "localhost:8081", "[::1]:8081", "[::1]"] {
            assert_eq!(refuses(access, &headers(&[("host", good)])), None, "{good}");
        }
        for bad in ["evil.example", "evil.example:8081", "localhost.evil.example:1", ""] {
            assert!(refuses(access, &headers(&[("host", bad)])).is_some(), "{bad}");
        }
        for origin in
            ["http://evil.example", "http://127.0.0.1:9999", "http://127.0.0.1", "null", ""]
        {
            let page = headers(&[("host", "127.0.0.1:8081"), ("origin", origin)]);
            assert!(refuses(access, &page).is_some(), "{origin}");
        }
        let own = headers(&[("host", "127.0.0.1:8081"), ("origin", "http://127.0.0.1:8081")]);
        assert_eq!(refuses(access, &own), None);
        for (site, is_refused) in
            [("cross-site", true), ("same-site", true), ("same-origin", false), ("none", false)]
        {
            let image = headers(&[("host", "127.0.0.1:8081"), ("sec-fetch-site", site)]);
            assert_eq!(refuses(access, &image).is_some(), is_refused, "{site}");
        }
        let rebound = headers(&[("host", "evil.example"), ("origin", "http://evil.example")]);
        assert!(refuses(access, &rebound).is_some(), "a name that points here is not enough");
    }

    #[test]
    fn pages_of_other_origins_are_refused_with_an_operators_certificate() {
        let access = AdminAccess::Certificate;
        let request = |origin| headers(&[("host", "router.example:8081"), ("origin", origin)]);
        for origin in ["https://evil.example", "https://router.example", "null", ""] {
            assert!(refuses(access, &request(origin)).is_some(), "{origin}");
        }
        assert_eq!(refuses(access, &request("https://router.example:8081")), None);
        for (host, is_refused) in
            [("10.0.0.1:8081", false), ("localhost", false), ("evil.example:8081", true)]
        {
            let named = headers(&[("host", host)]);
            assert_eq!(refuses(access, &named).is_some(), is_refused, "{host}");
            let origin = format!("https://{host}");
            let page = headers(&[("host", host), ("origin", &origin)]);
            assert_eq!(refuses(access, &page).is_some(), is_refused, "a page of {host}");
        }
        assert_eq!(refuses(access, &headers(&[("host", "router.example:8081")])), None);
        let image = headers(&[("host", "router.example:8081"), ("sec-fetch-site", "cross-site")]);
        assert!(refuses(access, &image).is_some());
        let mut link = image;
        link.insert("sec-fetch-mode", "navigate".parse().unwrap());
        assert_eq!(refuses(access, &link), None);
        link.insert("origin", "https://evil.example".parse().unwrap());
        assert!(refuses(access, &link).is_some(), "a form of another page");
    }
}
