//! Who may push: on the loopback anybody, elsewhere who knows the token. A pod with a token of its own is
//! spoken for by those alone who know that one, so that no sidecar can lie about another's pod.

use crate::transport::PodName;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{PoisonError, RwLock};

/// A token, known by its SHA-256 only.
pub type TokenDigest = [u8; 32];

/// The pods that may be spoken of, each with its own token's digest if it has one.
#[derive(Debug, Default)]
pub struct PodTokens(RwLock<BTreeMap<PodName, Option<TokenDigest>>>);

impl PodTokens {
    /// From now on these and no others.
    pub fn are(&self, pods: BTreeMap<PodName, Option<TokenDigest>>) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = pods;
    }

    pub(super) fn knows(&self, pod: &str) -> bool {
        self.0.read().unwrap_or_else(PoisonError::into_inner).contains_key(pod)
    }

    fn token(&self, pod: &str) -> Option<TokenDigest> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).get(pod).copied().flatten()
    }

    /// Whether some pod's own token is this one.
    pub(super) fn has_token(&self, authorization: Option<&[u8]>) -> bool {
        let pods = self.0.read().unwrap_or_else(PoisonError::into_inner);
        // All are compared, so that the time says nothing of which one it is.
        pods.values().flatten().fold(false, |found, token| found | is_token(*token, authorization))
    }
}

/// Whether a header brings this token. How long that takes says nothing about the token.
fn is_token(expected: TokenDigest, authorization: Option<&[u8]>) -> bool {
    let token = authorization.and_then(|value| value.strip_prefix(b"Bearer "));
    let Some(token) = token else { return false };
    let found: TokenDigest = Sha256::digest(token).into();
    found.iter().zip(expected).fold(0, |difference, (a, b)| difference | (a ^ b)) == 0
}

/// Who may push events. The token is kept as its digest.
#[derive(Clone)]
pub struct PushAccess(Option<[u8; 32]>);

/// Events from anywhere would be believed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "event listener {address}: it can be reached from other machines and has no token; set one, or listen \
     on 127.0.0.1"
)]
pub struct PushAccessError {
    /// Where it was to listen.
    pub address: SocketAddr,
}

impl PushAccess {
    /// For a listener at `address`.
    ///
    /// # Errors
    /// Others can reach it and there is no token.
    pub fn new(address: SocketAddr, token: Option<&str>) -> Result<Self, PushAccessError> {
        Self::of_digest(address, token.map(|token| Sha256::digest(token).into()))
    }

    /// For a listener at `address` whose token is known by its SHA-256 only.
    ///
    /// # Errors
    /// Others can reach it and there is no token.
    pub fn of_digest(
        address: SocketAddr,
        digest: Option<[u8; 32]>,
    ) -> Result<Self, PushAccessError> {
        if digest.is_none() && !address.ip().is_loopback() {
            return Err(PushAccessError { address });
        }
        Ok(Self(digest))
    }

    /// For a listener that has seen its callers' certificates.
    #[must_use]
    pub const fn elsewhere_checked() -> Self {
        Self(None)
    }

    /// Whether a request with this `Authorization` header may pass at all.
    pub(super) fn admits(&self, authorization: Option<&[u8]>) -> bool {
        self.0.is_none_or(|expected| is_token(expected, authorization))
    }

    /// Whether it may speak of this pod.
    pub(super) fn admits_to(
        &self,
        guests: &PodTokens,
        pod: &str,
        authorization: Option<&[u8]>,
    ) -> bool {
        match guests.token(pod) {
            Some(own) => is_token(own, authorization),
            None => self.admits(authorization),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_can_be_reached_needs_a_token() {
        let (here, anywhere) = ("127.0.0.1:1".parse().unwrap(), "0.0.0.0:1".parse().unwrap());
        assert!(PushAccess::new(here, None).is_ok_and(|access| access.admits(None)));
        let refusal = PushAccess::new(anywhere, None).err().unwrap().to_string();
        assert!(refusal.starts_with("event listener 0.0.0.0:1: it can be reached"), "{refusal}");
        let access = PushAccess::new(anywhere, Some("secret")).unwrap();
        assert!(access.admits(Some(b"Bearer secret")));
        for wrong in [None, Some(&b"Bearer secre"[..]), Some(b"secret"), Some(b"Bearer ")] {
            assert!(!access.admits(wrong));
        }
    }

    #[test]
    fn a_pod_with_a_token_of_its_own_is_spoken_for_by_nobody_else() {
        let access = PushAccess::new("127.0.0.1:1".parse().unwrap(), Some("all")).unwrap();
        let guests = PodTokens::default();
        let digest = |token: &str| Some(Sha256::digest(token).into());
        guests.are([("a".into(), digest("own")), ("b".into(), None)].into());
        let (own, all) = (Some(&b"Bearer own"[..]), Some(&b"Bearer all"[..]));
        assert!(access.admits_to(&guests, "a", own) && !access.admits_to(&guests, "a", all));
        assert!(access.admits_to(&guests, "b", all) && !access.admits_to(&guests, "b", own));
        assert!(guests.has_token(own) && !guests.has_token(all) && !guests.has_token(None));
        assert!(guests.knows("b") && !guests.knows("c"));
    }
}
