//! Tenants from `--api-key`.
//!
//! A tenant's name appears in logs and routes, a key nowhere, so one must never be taken for the
//! other: base64 ends in `=`, and the text before that is a secret. An ambiguous value is refused.

use anyhow::{bail, ensure};
use sha2::{Digest, Sha256};
use wornpath_config::{KeyDigest, TenantSettings};
use wornpath_routing::Name;
use wornpath_routing::queue::Priority;

/// A value of at least this length that ends in one `=` is a base64 key, not a name without a key.
const MIN_BASE64_KEY: usize = 24;

/// Adds the tenants of these keys: `KEY`, or `NAME=KEY`. A key without a name gets a number as its
/// name. A tenant of the file gets the new key, and keeps its priorities, weight and quota.
pub(super) fn set(keys: &[String], tenants: &mut Vec<TenantSettings>) -> anyhow::Result<()> {
    let mut given = Vec::new();
    for (number, key) in (1..).zip(keys) {
        let (name, key) = split(key.trim(), number)?;
        let name: Name = name.map_or_else(|| format!("key-{number}"), str::to_owned).into();
        let key = KeyDigest(Sha256::digest(key.as_bytes()).into());
        let plain = TenantSettings {
            name,
            key,
            priority: Priority::NORMAL,
            weight: 1,
            quota: None,
            engine_priority: None,
        };
        let listed = tenants.iter().find(|tenant| tenant.name == plain.name);
        given.push(listed.map_or(plain, |listed| TenantSettings { key, ..listed.clone() }));
    }
    tenants.retain(|tenant| given.iter().all(|new| new.name != tenant.name));
    for (number, new) in (1..).zip(given) {
        ensure!(
            tenants.iter().all(|tenant| tenant.key != new.key),
            "--api-key number {number} is the key of another tenant; give each tenant its own key"
        );
        tenants.push(new);
    }
    Ok(())
}

/// Splits a value into name and key. Errors show nothing of the value, which may be the secret.
fn split(given: &str, number: usize) -> anyhow::Result<(Option<&str>, &str)> {
    ensure!(!given.is_empty(), "--api-key number {number} is empty; give a key");
    let Some((name, key)) = given.split_once('=') else { return Ok((None, given)) };
    let name = name.trim();
    let key = key.trim();
    let is_plain = |one: char| one.is_alphanumeric() || "-_. ".contains(one);
    let has_name = !name.is_empty() && name.chars().all(is_plain);
    let is_padding = key.chars().all(|one| one == '=');
    let is_base64 = key == "=" || given.len() >= MIN_BASE64_KEY && given.len().is_multiple_of(4);
    match (has_name, is_padding) {
        (true, false) => Ok((Some(name), key)),
        (_, true) if is_base64 && !name.is_empty() => Ok((None, given)),
        (_, true) => bail!(
            "--api-key number {number} ends in `=`: a short key, or a name without a key; write NAME=KEY"
        ),
        (false, false) => bail!(
            "--api-key number {number}: the text before `=` is not a name of letters, digits, `-`, `_` and `.`; write NAME=KEY"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG_KEY: &str = "q3ZkS0J4Z1p2b0h3bWtQd1JtYXZ0eU1nS2xEc1hYc2M=";

    #[test]
    fn a_value_that_ends_like_base64_is_a_key_and_never_a_name() {
        assert_eq!(split("abc==", 1).unwrap(), (None, "abc=="));
        assert_eq!(split("a+b/c==", 1).unwrap(), (None, "a+b/c=="));
        assert_eq!(split(LONG_KEY, 1).unwrap(), (None, LONG_KEY));
        let named = format!("team={LONG_KEY}");
        assert_eq!(split(&named, 1).unwrap(), (Some("team"), LONG_KEY));
        assert_eq!(split("team=key", 1).unwrap(), (Some("team"), "key"));
        assert_eq!(split("key", 1).unwrap(), (None, "key"));
    }

    #[test]
    fn an_ambiguous_value_is_refused_without_being_shown() {
        for given in ["team=", "private/+=private", "=private", "====", "==", "=", ""] {
            let error = split(given, 2).unwrap_err().to_string();
            assert!(error.contains("--api-key number 2") && !error.contains("private"), "{error}");
        }
    }

    #[test]
    fn a_key_of_two_tenants_is_refused() {
        let mut tenants = Vec::new();
        let error = set(&["a=same".into(), "b=same".into()], &mut tenants).unwrap_err().to_string();
        assert!(error.contains("number 2") && !error.contains("same"), "{error}");
    }
}
