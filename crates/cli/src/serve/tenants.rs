//! Tenants from `--api-key`.

use anyhow::ensure;
use sha2::{Digest, Sha256};
use wornpath_gateway::{KeyDigest, TenantSettings};
use wornpath_routing::queue::Priority;

/// `KEY`, or `NAME=KEY`. A key without a name gets a number.
pub(super) fn read(keys: &[String]) -> anyhow::Result<Vec<TenantSettings>> {
    let mut tenants = Vec::new();
    for (number, given) in keys.iter().enumerate() {
        let (name, key) = match given.split_once('=') {
            Some((name, key)) => (name.to_owned(), key),
            None => (format!("key-{}", number + 1), given.as_str()),
        };
        ensure!(!key.trim().is_empty(), "--api-key number {} is empty", number + 1);
        tenants.push(TenantSettings {
            name: name.into(),
            key: KeyDigest(Sha256::digest(key.trim().as_bytes()).into()),
            priority: Priority::NORMAL,
            weight: 1,
            quota: None,
        });
    }
    Ok(tenants)
}
