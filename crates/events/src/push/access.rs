//! Access control of pushed events: without a token on the loopback, by token elsewhere. A pod may
//! have a token of its own; then no other token is accepted for it, so that a sidecar cannot report
//! on another's pod.
//!
//! A browser on the router's machine reaches a loopback listener too, and a browser with a client
//! certificate one that asks for it. A sidecar is no web page, so whatever a page sends is refused:
//! any request with an `Origin`; without a token also a `Host` that is not this machine (DNS
//! rebinding), and a body that is not JSON (a form).

use crate::transport::PodName;
use hyper::header::{CONTENT_TYPE, HOST, HeaderMap, ORIGIN};
use hyper::http::uri::Authority;
use hyper::{Request, StatusCode};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{PoisonError, RwLock};
use subtle::ConstantTimeEq;

/// The SHA-256 of a token.
pub type TokenDigest = [u8; 32];

/// The pods that sidecars may report on, each with the digest of its own token if it has one.
#[derive(Debug, Default)]
pub struct PodTokens(RwLock<BTreeMap<PodName, Option<TokenDigest>>>);

impl PodTokens {
    /// Replaces the pods.
    pub fn set(&self, pods: BTreeMap<PodName, Option<TokenDigest>>) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = pods;
    }

    pub(super) fn contains(&self, pod: &str) -> bool {
        self.0.read().unwrap_or_else(PoisonError::into_inner).contains_key(pod)
    }

    fn token(&self, pod: &str) -> Option<TokenDigest> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).get(pod).copied().flatten()
    }

    /// Whether the header has the token of any pod.
    pub(super) fn has_token(&self, authorization: Option<&[u8]>) -> bool {
        let pods = self.0.read().unwrap_or_else(PoisonError::into_inner);
        // Compares all of them, so that the timing does not reveal which one matches.
        pods.values().flatten().fold(false, |found, token| found | is_token(*token, authorization))
    }
}

/// Whether the header has this token. Constant-time.
fn is_token(expected: TokenDigest, authorization: Option<&[u8]>) -> bool {
    let token = authorization.and_then(|value| value.strip_prefix(b"Bearer "));
    let Some(token) = token else { return false };
    let found: TokenDigest = Sha256::digest(token).into();
    found.ct_eq(&expected).into()
}

/// The access rule of a listener for pushed events.
#[derive(Clone)]
pub struct PushAccess(Callers);

/// Who may report.
#[derive(Clone, Copy)]
enum Callers {
    /// Callers with the token of this digest.
    Token(TokenDigest),
    /// Callers whose certificate the listener has verified.
    Certificate,
    /// Any process on this machine.
    Here,
}

/// Why a request that a web page may have made is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub(super) enum PageError {
    #[error("requests of web pages are refused: this one has an `Origin`")]
    Origin,
    #[error("expected this machine's address in `Host`; set a token to use other names")]
    Host,
    #[error("content-type is missing or another than `application/json`")]
    ContentType,
}

impl PageError {
    pub(super) const fn status(self) -> StatusCode {
        match self {
            Self::Origin | Self::Host => StatusCode::FORBIDDEN,
            Self::ContentType => StatusCode::UNSUPPORTED_MEDIA_TYPE,
        }
    }
}

/// A listener that other machines can reach has no token.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "event listener {address}: reachable from other machines without a token; set a token, or listen on \
     127.0.0.1"
)]
pub struct PushAccessError {
    /// The listener's address.
    pub address: SocketAddr,
}

impl PushAccess {
    /// For a listener at `address`.
    ///
    /// # Errors
    /// Other machines can reach the address and there is no token.
    pub fn new(address: SocketAddr, token: Option<&str>) -> Result<Self, PushAccessError> {
        Self::of_digest(address, token.map(|token| Sha256::digest(token).into()))
    }

    /// For a listener at `address`, with the token's digest.
    ///
    /// # Errors
    /// Other machines can reach the address and there is no token.
    pub fn of_digest(
        address: SocketAddr,
        digest: Option<[u8; 32]>,
    ) -> Result<Self, PushAccessError> {
        match digest {
            Some(digest) => Ok(Self(Callers::Token(digest))),
            None if address.ip().is_loopback() => Ok(Self(Callers::Here)),
            None => Err(PushAccessError { address }),
        }
    }

    /// For a listener that verifies client certificates, and so needs no token.
    #[must_use]
    pub const fn client_certificates_verified() -> Self {
        Self(Callers::Certificate)
    }

    /// Refuses a call that a web page may have made.
    pub(super) fn check_page<B>(&self, request: &Request<B>) -> Result<(), PageError> {
        if request.headers().contains_key(ORIGIN) {
            return Err(PageError::Origin);
        }
        match self.0 {
            Callers::Here if !names_this_machine(request) => Err(PageError::Host),
            _ => Ok(()),
        }
    }

    /// Refuses a body that a web page can send without asking first.
    pub(super) fn check_content_type(&self, headers: &HeaderMap) -> Result<(), PageError> {
        let kind = headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
        let essence = kind.and_then(|kind| kind.split(';').next()).unwrap_or_default().trim();
        let is_json = essence.eq_ignore_ascii_case("application/json");
        match self.0 {
            Callers::Here | Callers::Certificate if !is_json => Err(PageError::ContentType),
            _ => Ok(()),
        }
    }

    /// Whether a request with this `Authorization` header is admitted for pods without a token of
    /// their own.
    pub(super) fn admits(&self, authorization: Option<&[u8]>) -> bool {
        match self.0 {
            Callers::Token(expected) => is_token(expected, authorization),
            Callers::Certificate | Callers::Here => true,
        }
    }

    /// Whether a request with this `Authorization` header may report on this pod.
    pub(super) fn admits_to(
        &self,
        tokens: &PodTokens,
        pod: &str,
        authorization: Option<&[u8]>,
    ) -> bool {
        match tokens.token(pod) {
            Some(own) => is_token(own, authorization),
            None => self.admits(authorization),
        }
    }
}

/// Whether the request was sent to a loopback address, by its `Host` or, over HTTP/2, its
/// authority.
fn names_this_machine<B>(request: &Request<B>) -> bool {
    let host = request.headers().get(HOST).map(|host| host.to_str().unwrap_or_default());
    let Some(host) = host.or(request.uri().authority().map(Authority::as_str)) else { return true };
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    };
    let name = name.trim_start_matches('[').trim_end_matches(']');
    name.eq_ignore_ascii_case("localhost")
        || name.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_web_page_can_send_is_refused() {
        let request = |all: &[(&str, &str)]| {
            let request = Request::post("/events/bye");
            let add = |request: hyper::http::request::Builder, header: &(&str, &str)| {
                request.header(header.0, header.1)
            };
            all.iter().fold(request, add).body(()).unwrap()
        };
        let here = PushAccess::new("127.0.0.1:1".parse().unwrap(), None).unwrap();
        let token = PushAccess::new("0.0.0.0:1".parse().unwrap(), Some("secret")).unwrap();
        let certificate = PushAccess::client_certificates_verified();
        for access in [&here, &token, &certificate] {
            for origin in ["http://evil.example", "http://127.0.0.1:1", "null"] {
                let page = request(&[("host", "127.0.0.1:1"), ("origin", origin)]);
                assert_eq!(access.check_page(&page), Err(PageError::Origin), "{origin}");
            }
        }
        for (host, is_own) in [
            ("127.0.0.1:1", true),
            ("localhost:1", true),
            ("[::1]:1", true),
            ("evil.example", false),
            ("10.0.0.1:1", false),
            ("", false),
        ] {
            let named = request(&[("host", host)]);
            assert_eq!(here.check_page(&named).is_ok(), is_own, "{host}");
            assert_eq!(token.check_page(&named), Ok(()), "{host}");
        }
        for (kind, is_json) in [
            ("application/json", true),
            ("Application/JSON; charset=utf-8", true),
            ("text/plain", false),
            ("application/x-www-form-urlencoded", false),
        ] {
            let typed = request(&[("content-type", kind)]);
            for access in [&here, &certificate] {
                let checked = access.check_content_type(typed.headers());
                assert_eq!(checked.is_ok(), is_json, "{kind}");
            }
            assert_eq!(token.check_content_type(typed.headers()), Ok(()), "{kind}");
        }
        let untyped = here.check_content_type(request(&[]).headers());
        assert_eq!(untyped, Err(PageError::ContentType));
    }

    #[test]
    fn a_listener_that_other_machines_can_reach_needs_a_token() {
        let here = "127.0.0.1:1".parse().unwrap();
        let anywhere = "0.0.0.0:1".parse().unwrap();
        assert!(PushAccess::new(here, None).is_ok_and(|access| access.admits(None)));
        let refusal = PushAccess::new(anywhere, None).err().unwrap().to_string();
        assert!(
            refusal.starts_with("event listener 0.0.0.0:1: reachable from other machines"),
            "{refusal}"
        );
        let access = PushAccess::new(anywhere, Some("secret")).unwrap();
        assert!(access.admits(Some(b"Bearer secret")));
        for wrong in [None, Some(&b"Bearer secre"[..]), Some(b"secret"), Some(b"Bearer ")] {
            assert!(!access.admits(wrong));
        }
    }

    #[test]
    fn a_pod_with_its_own_token_accepts_no_other() {
        let access = PushAccess::new("127.0.0.1:1".parse().unwrap(), Some("all")).unwrap();
        let tokens = PodTokens::default();
        let digest = |token: &str| Some(Sha256::digest(token).into());
        tokens.set([("a".into(), digest("own")), ("b".into(), None)].into());
        let own = Some(&b"Bearer own"[..]);
        let all = Some(&b"Bearer all"[..]);
        assert!(access.admits_to(&tokens, "a", own) && !access.admits_to(&tokens, "a", all));
        assert!(access.admits_to(&tokens, "b", all) && !access.admits_to(&tokens, "b", own));
        assert!(tokens.has_token(own) && !tokens.has_token(all) && !tokens.has_token(None));
        assert!(tokens.contains("b") && !tokens.contains("c"));
    }
}
