//! How two routers show each other that they have the same key.
//!
//! Both send a greeting with a random number, and then a proof: a code over both greetings that only
//! an owner of the key can compute. The proofs of the two sides differ, so one cannot be sent back as
//! the other, and the random numbers make every proof good for one connection only. Limit: what
//! follows is neither encrypted nor signed; where the network is not trusted, TLS does both.

use crate::report::{Origin, RouterId};
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

/// The first bytes of a greeting, with the version of the protocol.
const MAGIC: [u8; 8] = *b"wornpex1";

/// What a router sends first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Hello {
    /// Who it is.
    pub origin: Origin,
    /// A random number.
    pub nonce: [u8; 32],
    /// What its block hashes depend on: routers with another one do not know each other's blocks.
    pub hashes: [u8; 16],
}

/// Which side of a connection a router is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Side {
    /// It has connected.
    Caller,
    /// It was called.
    Called,
}

/// Why bytes are no greeting.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum HelloError {
    /// They have the wrong length, or begin with something else.
    #[error("not a router that speaks this version of the exchange")]
    NotOurs,
}

/// A proof that a side has the key.
pub type Proof = [u8; 32];

impl Hello {
    /// The length of a greeting in bytes.
    pub const LENGTH: usize = 72;

    /// As bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; Self::LENGTH] {
        let mut bytes = [0; Self::LENGTH];
        let (magic, rest) = bytes.split_at_mut(8);
        magic.copy_from_slice(&MAGIC);
        let (router, rest) = rest.split_at_mut(8);
        router.copy_from_slice(&self.origin.router.0.to_le_bytes());
        let (started, rest) = rest.split_at_mut(8);
        started.copy_from_slice(&self.origin.started.to_le_bytes());
        let (nonce, hashes) = rest.split_at_mut(32);
        nonce.copy_from_slice(&self.nonce);
        hashes.copy_from_slice(&self.hashes);
        bytes
    }

    /// From bytes.
    ///
    /// # Errors
    /// If they are no greeting of this version.
    pub fn decode(bytes: &[u8]) -> Result<Self, HelloError> {
        fn part<const N: usize>(bytes: &mut &[u8]) -> Result<[u8; N], HelloError> {
            let (part, rest) = bytes.split_first_chunk().ok_or(HelloError::NotOurs)?;
            *bytes = rest;
            Ok(*part)
        }
        let mut rest = bytes;
        if part::<8>(&mut rest)? != MAGIC {
            return Err(HelloError::NotOurs);
        }
        let router = RouterId(u64::from_le_bytes(part(&mut rest)?));
        let started = u64::from_le_bytes(part(&mut rest)?);
        let nonce = part(&mut rest)?;
        let hashes = part(&mut rest)?;
        let hello = Self { origin: Origin { router, started }, nonce, hashes };
        if rest.is_empty() { Ok(hello) } else { Err(HelloError::NotOurs) }
    }
}

/// The proof of one side.
#[must_use]
pub fn proof(key: &[u8], side: Side, caller: &Hello, called: &Hello) -> Proof {
    let mut proof = [0; 32];
    proof.copy_from_slice(&mac(key, side, caller, called).finalize().into_bytes());
    proof
}

/// Whether this is the proof of that side, compared in constant time.
#[must_use]
pub fn is_proof(key: &[u8], side: Side, greetings: [&Hello; 2], proof: &Proof) -> bool {
    let [caller, called] = greetings;
    mac(key, side, caller, called).verify_slice(proof).is_ok()
}

fn mac(key: &[u8], side: Side, caller: &Hello, called: &Hello) -> Hmac<Sha256> {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("HMAC takes a key of any length");
    mac.update(b"wornpath exchange 1");
    mac.update(&[u8::from(side == Side::Called)]);
    mac.update(&caller.encode());
    mac.update(&called.encode());
    mac
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hello(router: u64) -> Hello {
        let origin = Origin { router: RouterId(router), started: router + 1 };
        Hello { origin, nonce: [router as u8; 32], hashes: [3; 16] }
    }

    #[test]
    fn a_greeting_survives_and_anything_else_is_refused() {
        let bytes = hello(7).encode();
        assert_eq!(Hello::decode(&bytes), Ok(hello(7)));
        assert_eq!(Hello::decode(&bytes[1..]), Err(HelloError::NotOurs));
        assert_eq!(Hello::decode(&[&bytes[..], &[0]].concat()), Err(HelloError::NotOurs));
        assert_eq!(Hello::decode(b"GET / HTTP/1.1\r\n"), Err(HelloError::NotOurs));
    }

    #[test]
    fn a_proof_is_good_for_one_side_of_one_connection_with_one_key() {
        let [one, two] = [1, 2].map(hello);
        let good = proof(b"key", Side::Caller, &one, &two);
        let is_good = |key: &[u8], side, greetings| is_proof(key, side, greetings, &good);
        assert!(is_good(b"key", Side::Caller, [&one, &two]));
        assert!(!is_good(b"kez", Side::Caller, [&one, &two]));
        assert!(!is_good(b"key", Side::Called, [&one, &two]), "sent back");
        let again = Hello { nonce: [9; 32], ..two };
        assert!(!is_good(b"key", Side::Caller, [&one, &again]), "played again");
        assert!(!is_good(b"key", Side::Caller, [&two, &one]));
    }
}
