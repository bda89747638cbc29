//! Tenants from `--api-key` and `--api-key-file`.
//!
//! A tenant's name appears in logs and routes, a key nowhere, so one must never be taken for the
//! other: base64 ends in `=`, and the text before that is a secret. An ambiguous value is refused.

use anyhow::{Context, bail, ensure};
use sha2::{Digest, Sha256};
use std::path::PathBuf;
use wornpath_config::{KeyDigest, TenantSettings};
use wornpath_routing::Name;
use wornpath_routing::queue::Priority;

/// A value of at least this length that ends in one `=` is a base64 key, not a name without a key.
const MIN_BASE64_KEY: usize = 24;

/// A key as it was given, `KEY` or `NAME=KEY`.
pub(super) struct GivenKey {
    /// Where it was given, for errors.
    from: String,
    text: String,
}

/// The keys of the options, then those of the files, one per line.
pub(super) fn given_keys(options: &[String], files: &[PathBuf]) -> anyhow::Result<Vec<GivenKey>> {
    let option = |(number, key): (usize, &String)| GivenKey {
        from: format!("--api-key number {number}"),
        text: key.clone(),
    };
    let mut given: Vec<_> = (1..).zip(options).map(option).collect();
    for file in files {
        let path = file.display();
        let text = std::fs::read_to_string(file)
            .with_context(|| format!("--api-key-file: cannot read {path}"))?;
        let lines = (1..).zip(text.lines()).filter(|(_, line)| !line.trim().is_empty());
        let before = given.len();
        given.extend(lines.map(|(number, line)| GivenKey {
            from: format!("--api-key-file {path} line {number}"),
            text: line.to_owned(),
        }));
        ensure!(given.len() > before, "--api-key-file: {path} has no key; write KEY or NAME=KEY");
    }
    Ok(given)
}

/// Whether keys were given as options, and not by the environment variable.
pub(super) fn is_on_command_line(options: &[String], variable: Option<&str>) -> bool {
    match options {
        [] => false,
        [one] => Some(one.as_str()) != variable,
        _ => true,
    }
}

/// Adds the tenants of these keys. A key without a name gets a number as its name. A tenant of the
/// file gets the new key, and keeps its priorities, weight and quota.
pub(super) fn set(keys: &[GivenKey], tenants: &mut Vec<TenantSettings>) -> anyhow::Result<()> {
    let mut given = Vec::new();
    for (number, GivenKey { from, text }) in (1..).zip(keys) {
        let (name, key) = split(text.trim(), from)?;
        let name: Name = name.map_or_else(|| format!("key-{number}"), str::to_owned).into();
        let key = KeyDigest(Sha256::digest(key.as_bytes()).into());
        let plain = TenantSettings {
            name,
            key,
            further_keys: Vec::new(),
            priority: Priority::NORMAL,
            weight: 1,
            quota: None,
            requests_per_minute: None,
            tokens_per_minute: None,
            engine_priority: None,
        };
        let listed = tenants.iter().find(|tenant| tenant.name == plain.name);
        given.push(listed.map_or(plain, |listed| TenantSettings { key, ..listed.clone() }));
    }
    tenants.retain(|tenant| given.iter().all(|new| new.name != tenant.name));
    for (GivenKey { from, .. }, new) in keys.iter().zip(given) {
        ensure!(
            tenants.iter().all(|tenant| tenant.key_of(&new.key).is_none()),
            "{from} is the key of another tenant; give each tenant its own key"
        );
        tenants.push(new);
    }
    Ok(())
}

/// Splits a value into name and key. Errors show nothing of the value, which may be the secret.
fn split<'a>(given: &'a str, from: &str) -> anyhow::Result<(Option<&'a str>, &'a str)> {
    ensure!(!given.is_empty(), "{from} is empty; give a key");
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
        (_, true) => {
            bail!("{from} ends in `=`: a short key, or a name without a key; write NAME=KEY")
        }
        (false, false) => bail!(
            "{from}: the text before `=` is not a name of letters, digits, `-`, `_` and `.`; write NAME=KEY"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG_KEY: &str = "q3ZkS0J4Z1p2b0h3bWtQd1JtYXZ0eU1nS2xEc1hYc2M=";

    #[test]
    fn a_value_that_ends_like_base64_is_a_key_and_never_a_name() {
        assert_eq!(split("abc==", "--api-key number 1").unwrap(), (None, "abc=="));
        assert_eq!(split("a+b/c==", "--api-key number 1").unwrap(), (None, "a+b/c=="));
        assert_eq!(split(LONG_KEY, "--api-key number 1").unwrap(), (None, LONG_KEY));
        let named = format!("team={LONG_KEY}");
        assert_eq!(split(&named, "--api-key number 1").unwrap(), (Some("team"), LONG_KEY));
        assert_eq!(split("team=key", "--api-key number 1").unwrap(), (Some("team"), "key"));
        assert_eq!(split("key", "--api-key number 1").unwrap(), (None, "key"));
    }

    #[test]
    fn an_ambiguous_value_is_refused_without_being_shown() {
        for given in ["team=", "private/+=private", "=private", "====", "==", "=", ""] {
            let error = split(given, "--api-key number 2").unwrap_err().to_string();
            assert!(error.contains("--api-key number 2") && !error.contains("private"), "{error}");
        }
    }

    #[test]
    fn a_key_of_two_tenants_is_refused() {
        let mut tenants = Vec::new();
        let keys = given_keys(&["a=same".into(), "b=same".into()], &[]).unwrap();
        let error = set(&keys, &mut tenants).unwrap_err().to_string();
        assert!(error.contains("number 2") && !error.contains("same"), "{error}");
    }

    #[test]
    fn a_file_has_one_key_per_line_and_its_errors_name_the_line() {
        let path = std::env::temp_dir().join(format!("wornpath-keys-{}", std::process::id()));
        std::fs::write(&path, "team=private-a\n\nprivate-b\r\n").unwrap();
        let files = [path.clone()];
        let mut tenants = Vec::new();
        set(&given_keys(&["private-c".into()], &files).unwrap(), &mut tenants).unwrap();
        let named: Vec<_> = tenants.iter().map(|tenant| tenant.name.as_str()).collect();
        assert_eq!(named, ["key-1", "team", "key-3"]);
        assert!(tenants[2].key.is_of(b"private-b"));
        std::fs::write(&path, "team=private-a\nteam=\n").unwrap();
        let refused = set(&given_keys(&[], &files).unwrap(), &mut tenants).unwrap_err().to_string();
        assert!(
            refused.contains("line 2 ends in `=`") && !refused.contains("private"),
            "{refused}"
        );
        std::fs::write(&path, "\n").unwrap();
        assert!(given_keys(&[], &files).err().unwrap().to_string().contains("has no key"));
        std::fs::remove_file(&path).unwrap();
        assert!(given_keys(&[], &files).err().unwrap().to_string().contains("cannot read"));
    }

    #[test]
    fn a_key_of_the_environment_is_not_on_the_command_line() {
        let key = |key: &str| key.to_owned();
        assert!(!is_on_command_line(&[], None));
        assert!(!is_on_command_line(&[key("a")], Some("a")));
        assert!(is_on_command_line(&[key("a")], None));
        assert!(is_on_command_line(&[key("a")], Some("b")));
        assert!(is_on_command_line(&[key("a"), key("b")], Some("a")));
    }
}
