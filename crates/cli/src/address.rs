//! Addresses on the command line: checks of them, and what to do where one cannot be bound.

use anyhow::{anyhow, bail};
use std::fmt::Display;
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use wornpath_config::authority;

/// Refuses an invalid engine address, by the rules of the configuration. Addresses appear in logs,
/// metrics and headers, so one with a user or a password is refused, and the error does not show
/// it.
pub(crate) fn check(option: &str, url: &str) -> anyhow::Result<()> {
    let Err(problem) = authority(url.trim_end_matches('/')) else { return Ok(()) };
    let shown = if url.contains('@') { "…" } else { url };
    bail!("{option} is `{shown}`: {problem}; write `http://host:port`")
}

/// Refuses an address with a user or a password, without showing it.
pub(crate) fn refuse_user(option: &str, url: &str) -> anyhow::Result<()> {
    if url.contains('@') { check(option, url) } else { Ok(()) }
}

/// Refuses an address that ends in `/v1`, which the paths of requests begin with.
pub(crate) fn refuse_version(option: &str, url: &str) -> anyhow::Result<()> {
    if let Some(without) = url.trim_end_matches('/').strip_suffix("/v1") {
        bail!("{option} is `{url}`; give it without /v1, which requests add: {without}");
    }
    Ok(())
}

/// Why nothing can listen at `address` for `what`, and what to do about it. `setting` is the option
/// or the key that chooses another address.
pub(crate) fn unbound(
    address: SocketAddr,
    what: impl Display,
    cause: &io::Error,
    setting: &str,
) -> anyhow::Error {
    let cure = match cause.kind() {
        ErrorKind::AddrInUse => {
            "another process has that port; end it, or choose another port with"
        }
        ErrorKind::AddrNotAvailable => "no interface has that address; choose another with",
        ErrorKind::PermissionDenied => "ports below 1024 need a privilege; choose another with",
        _ => "choose another with",
    };
    anyhow!("cannot listen at {address} for {what}: {cause}; {cure} {setting}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(checked: anyhow::Result<()>) -> String {
        checked.unwrap_err().to_string()
    }

    #[test]
    fn an_address_with_a_password_is_refused_and_not_shown() {
        let error = error(check("--pod", "http://user:private@host:8000"));
        assert!(
            error.contains("it must not contain a user or a password")
                && !error.contains("private"),
            "{error}"
        );
    }

    #[test]
    fn an_address_that_paths_cannot_be_added_to_is_refused_with_the_cure() {
        assert!(error(check("--pod", "http://host/?a=b")).contains("it must not have a query"));
        assert!(error(check("--pod", "http://host/#a")).contains("it must not have a query"));
        let version = error(refuse_version("--pod", "http://host:8000/v1/"));
        assert!(version.ends_with("which requests add: http://host:8000"), "{version}");
        check("--pod", "http://host:8000/models/a/").unwrap();
        refuse_version("--pod", "http://host:8000/models/a").unwrap();
    }
}
