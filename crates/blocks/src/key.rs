//! The cell's secret and the values derived from it: roots of chains, cache salts, hashing secrets.
//!
//! A chain's hash reveals whether a prefix was requested before. A tenant that could compute
//! hashes, or reach another tenant's root, could probe that tenant's prompts. So all values are
//! derived from a secret that the routers of a cell share, by HMAC-SHA256 over an unambiguous
//! encoding of the inputs. [`crate::hasher`] derives the roots of chains.

use std::fmt;

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

/// The secret of a cell. Routers with equal keys agree on every hash.
#[derive(Clone, PartialEq, Eq)]
pub struct HashKey([u8; 32]);

impl HashKey {
    /// The key of a cell without a configured one. It is public, so it does not keep tenants from
    /// probing each other: use it for a single tenant, a simulation or a test, otherwise configure
    /// a secret.
    pub const DEFAULT: Self = Self(*b"wornpath: the default public key");

    /// A key from 32 secret bytes.
    #[must_use]
    pub const fn new(secret: [u8; 32]) -> Self {
        Self(secret)
    }

    /// The `cache_salt` that isolates one tenant's cached blocks from all others, as 32 hex digits.
    #[must_use]
    pub fn cache_salt(&self, tenant: &str) -> String {
        let mut mac = self.mac(b"cache salt");
        field(&mut mac, Some(tenant.as_bytes()));
        hex_digits(mac)
    }

    /// The name that engines get in place of one that a tenant chose, as 32 hex digits: the same
    /// for the same choice of the tenant, and one that no other tenant can produce. `kind` says what
    /// is named.
    #[must_use]
    pub fn tenant_scoped(&self, tenant: &str, kind: &str, chosen: &str) -> String {
        let mut mac = self.mac(b"tenant scoped");
        for part in [tenant, kind, chosen] {
            field(&mut mac, Some(part.as_bytes()));
        }
        hex_digits(mac)
    }

    /// 192 bytes of key for a fast hash, different for every purpose.
    pub(crate) fn hashing_secret(&self, purpose: &[u8]) -> [u8; 192] {
        let mut secret = [0; 192];
        for (counter, part) in (0_u8..).zip(secret.chunks_exact_mut(32)) {
            let mut mac = self.mac(b"hashing secret");
            field(&mut mac, Some(purpose));
            mac.update(&[counter]);
            part.copy_from_slice(&mac.finalize().into_bytes());
        }
        secret
    }

    /// A code over fields, different for every purpose.
    pub(crate) fn mac(&self, purpose: &[u8]) -> Hmac<Sha256> {
        let mut mac =
            Hmac::<Sha256>::new_from_slice(&self.0).expect("HMAC takes a key of any length");
        field(&mut mac, Some(purpose));
        mac
    }
}

impl Default for HashKey {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// Never shows the secret.
impl fmt::Debug for HashKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HashKey(..)")
    }
}

/// Encodes presence, length and bytes, so that no two sequences of fields have the same encoding.
pub(crate) fn field(mac: &mut Hmac<Sha256>, value: Option<&[u8]>) {
    match value {
        None => mac.update(&[0]),
        Some(bytes) => {
            mac.update(&[1]);
            mac.update(&(bytes.len() as u64).to_le_bytes());
            mac.update(bytes);
        }
    }
}

/// The first 16 bytes of the digest, as hex digits.
fn hex_digits(mac: Hmac<Sha256>) -> String {
    let digest: [u8; 32] = mac.finalize().into_bytes().into();
    digest[..16].iter().flat_map(|byte| [byte >> 4, byte & 15]).map(hex_digit).collect()
}

fn hex_digit(nibble: u8) -> char {
    char::from(if nibble < 10 { b'0' + nibble } else { b'a' + nibble - 10 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_other_tenant_kind_or_key_leads_to_the_same_scoped_name() {
        let other = HashKey::new([7; 32]);
        let mut names = vec![other.tenant_scoped("a", "b", "c")];
        for [tenant, kind, chosen] in
            [["a", "b", "c"], ["ab", "", "c"], ["a", "", "bc"], ["", "ab", "c"], ["a", "b", ""]]
        {
            names.push(HashKey::DEFAULT.tenant_scoped(tenant, kind, chosen));
        }
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), 6);
    }

    #[test]
    fn the_key_is_never_printed() {
        assert_eq!(format!("{:?}", HashKey::new([65; 32])), "HashKey(..)");
    }

    /// Tenants keep their cached blocks over an upgrade: these values must never change.
    #[test]
    fn salts_are_stable_across_releases() {
        let salt = HashKey::DEFAULT.cache_salt("tenant-a");
        assert_eq!(salt, "8da96ca4a17a24d3aee714c2915c8b50");
        let uuid = HashKey::DEFAULT.tenant_scoped("tenant-a", "uuid", "cat");
        assert_eq!(uuid, "611f90f83511b7839b0fc58f77c7d3cc");
    }
}
