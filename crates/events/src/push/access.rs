//! Access control of pushed events: without a token on the loopback, by token elsewhere. A pod may
//! have a token of its own; then no other token is accepted for it, so that a sidecar cannot report
//! on another's pod.

use crate::transport::PodName;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{PoisonError, RwLock};

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
    found.iter().zip(expected).fold(0, |difference, (a, b)| difference | (a ^ b)) == 0
}

/// The access rule of a listener for pushed events.
#[derive(Clone)]
pub struct PushAccess(Option<[u8; 32]>);

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
        if digest.is_none() && !address.ip().is_loopback() {
            return Err(PushAccessError { address });
        }
        Ok(Self(digest))
    }

    /// For a listener that verifies client certificates, and so needs no token.
    #[must_use]
    pub const fn client_certificates_verified() -> Self {
        Self(None)
    }

    /// Whether a request with this `Authorization` header is admitted for pods without a token of
    /// their own.
    pub(super) fn admits(&self, authorization: Option<&[u8]>) -> bool {
        self.0.is_none_or(|expected| is_token(expected, authorization))
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

#[cfg(test)]
mod tests {
    use super::*;

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
