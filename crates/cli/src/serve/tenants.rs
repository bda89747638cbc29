//! Tenants from `--api-key`.
//!
//! A name is seen by operators and in routes, a key by nobody, so one must never be taken for the other: base64 ends in
//! `=`, and what stands before that is a secret. What could be both is refused.

use anyhow::{bail, ensure};
use sha2::{Digest, Sha256};
use wornpath_config::{KeyDigest, TenantSettings};
use wornpath_routing::Name;
use wornpath_routing::queue::Priority;

/// What ends in one `=` and is at least so long is a key in base64, and no name whose key is missing.
const LONG: usize = 24;

/// Sets the tenants of these keys: `KEY`, or `NAME=KEY`. A key without a name gets a number. A tenant that the file has
/// loses the key it has there, and keeps its priority, weight and quota.
pub(super) fn set(keys: &[String], tenants: &mut Vec<TenantSettings>) -> anyhow::Result<()> {
    let mut given = Vec::new();
    for (number, key) in (1..).zip(keys) {
        let (name, key) = split(key.trim(), number)?;
        let name: Name = name.map_or_else(|| format!("key-{number}"), str::to_owned).into();
        let key = KeyDigest(Sha256::digest(key.as_bytes()).into());
        let plain =
            TenantSettings { name, key, priority: Priority::NORMAL, weight: 1, quota: None };
        let listed = tenants.iter().find(|tenant| tenant.name == plain.name);
        given.push(listed.map_or(plain, |listed| TenantSettings { key, ..listed.clone() }));
    }
    tenants.retain(|tenant| given.iter().all(|new| new.name != tenant.name));
    for (number, new) in (1..).zip(given) {
        ensure!(
            tenants.iter().all(|tenant| tenant.key != new.key),
            "--api-key number {number} has a key that another tenant has; give each a key of its own"
        );
        tenants.push(new);
    }
    Ok(())
}

/// Name and key. Nothing of what was given is in an error: it may be the secret.
fn split(given: &str, number: usize) -> anyhow::Result<(Option<&str>, &str)> {
    ensure!(!given.is_empty(), "--api-key number {number} is empty; give a key");
    let Some((name, key)) = given.split_once('=') else { return Ok((None, given)) };
    let (name, key) = (name.trim(), key.trim());
    let is_plain = |one: char| one.is_alphanumeric() || "-_. ".contains(one);
    let has_name = !name.is_empty() && name.chars().all(is_plain);
    let is_padding = key.chars().all(|one| one == '=');
    let is_base64 = key == "=" || given.len() >= LONG && given.len().is_multiple_of(4);
    match (has_name, is_padding) {
        (true, false) => Ok((Some(name), key)),
        (_, true) if is_base64 && !name.is_empty() => Ok((None, given)),
        (_, true) => bail!(
            "--api-key number {number} ends in `=`: it is a short key, or a name without its key; write NAME=KEY"
        ),
        (false, false) => bail!(
            "--api-key number {number} has `=` within, and what stands before it is no name of letters, digits, `-`, `_` and \
             `.`; write NAME=KEY"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG_KEY: &str = "q3ZkS0J4Z1p2b0h3bWtQd1JtYXZ0eU1nS2xEc1hYc2M=";

    #[test]
    fn what_ends_as_base64_does_is_a_key_and_never_a_name() {
        assert_eq!(split("abc==", 1).unwrap(), (None, "abc=="));
        assert_eq!(split("a+b/c==", 1).unwrap(), (None, "a+b/c=="));
        assert_eq!(split(LONG_KEY, 1).unwrap(), (None, LONG_KEY));
        let named = format!("team={LONG_KEY}");
        assert_eq!(split(&named, 1).unwrap(), (Some("team"), LONG_KEY));
        assert_eq!(split("team=key", 1).unwrap(), (Some("team"), "key"));
        assert_eq!(split("key", 1).unwrap(), (None, "key"));
    }

    #[test]
    fn what_could_be_a_name_or_a_key_is_refused_without_being_shown() {
        for given in ["team=", "private/+=private", "=private", "====", "==", "=", ""] {
            let said = split(given, 2).unwrap_err().to_string();
            assert!(said.contains("--api-key number 2") && !said.contains("private"), "{said}");
        }
    }

    #[test]
    fn a_key_belongs_to_one_tenant() {
        let mut tenants = Vec::new();
        let said = set(&["a=same".into(), "b=same".into()], &mut tenants).unwrap_err().to_string();
        assert!(said.contains("number 2") && !said.contains("same"), "{said}");
    }
}
