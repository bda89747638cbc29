//! Who may push: on the loopback anybody, elsewhere who knows the token.

use sha2::{Digest, Sha256};
use std::net::SocketAddr;

/// Who may push events. The token is kept as its digest.
#[derive(Clone)]
pub struct Access(Option<[u8; 32]>);

/// Events from anywhere would be believed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "event listener {address}: it can be reached from other machines and has no token; set one, or listen \
     on 127.0.0.1"
)]
pub struct AccessError {
    /// Where it was to listen.
    pub address: SocketAddr,
}

impl Access {
    /// For a listener at `address`.
    ///
    /// # Errors
    /// Others can reach it and there is no token.
    pub fn new(address: SocketAddr, token: Option<&str>) -> Result<Self, AccessError> {
        Self::of_digest(address, token.map(|token| Sha256::digest(token).into()))
    }

    /// For a listener at `address` whose token is known by its SHA-256 only.
    ///
    /// # Errors
    /// Others can reach it and there is no token.
    pub fn of_digest(address: SocketAddr, digest: Option<[u8; 32]>) -> Result<Self, AccessError> {
        if digest.is_none() && !address.ip().is_loopback() {
            return Err(AccessError { address });
        }
        Ok(Self(digest))
    }

    /// Whether a request with this `Authorization` header may pass. How long that takes says nothing about
    /// the token.
    pub(super) fn admits(&self, authorization: Option<&[u8]>) -> bool {
        let Some(expected) = self.0 else { return true };
        let token = authorization.and_then(|value| value.strip_prefix(b"Bearer "));
        let Some(token) = token else { return false };
        let found: [u8; 32] = Sha256::digest(token).into();
        found.iter().zip(expected).fold(0, |difference, (a, b)| difference | (a ^ b)) == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_can_be_reached_needs_a_token() {
        let (here, anywhere) = ("127.0.0.1:1".parse().unwrap(), "0.0.0.0:1".parse().unwrap());
        assert!(Access::new(here, None).is_ok_and(|access| access.admits(None)));
        let refusal = Access::new(anywhere, None).err().unwrap().to_string();
        assert!(refusal.starts_with("event listener 0.0.0.0:1: it can be reached"), "{refusal}");
        let access = Access::new(anywhere, Some("secret")).unwrap();
        assert!(access.admits(Some(b"Bearer secret")));
        for wrong in [None, Some(&b"Bearer secre"[..]), Some(b"secret"), Some(b"Bearer ")] {
            assert!(!access.admits(wrong));
        }
    }
}
