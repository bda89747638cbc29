//! Addresses on the command line: what must not be in one, and what cannot be called.

use anyhow::bail;
use wornpath_config::authority;

/// Refuses what is no address of an engine, by the rule that configurations have. What an address is called by is seen
/// in logs, metrics and headers, so it must hold no secret; of one that does, nothing is shown here either.
pub(crate) fn check(option: &str, url: &str) -> anyhow::Result<()> {
    let Err(problem) = authority(url.trim_end_matches('/')) else { return Ok(()) };
    let shown = if url.contains('@') { "…" } else { url };
    bail!("{option} is `{shown}`, and {problem}; write `http://host:port`")
}

/// Refuses an address with a user or a password, which would be shown, and does not show it.
pub(crate) fn refuse_user(option: &str, url: &str) -> anyhow::Result<()> {
    if url.contains('@') { check(option, url) } else { Ok(()) }
}

/// Refuses an address to which paths of the interface cannot be added.
pub(crate) fn refuse_version(option: &str, url: &str) -> anyhow::Result<()> {
    if let Some(without) = url.trim_end_matches('/').strip_suffix("/v1") {
        bail!("{option} is `{url}`, and requests already name /v1; give it without: {without}");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(checked: anyhow::Result<()>) -> String {
        checked.unwrap_err().to_string()
    }

    #[test]
    fn an_address_with_a_password_is_refused_and_not_shown() {
        let said = said(check("--pod", "http://user:private@host:8000"));
        assert!(
            said.contains("it has a user or a password") && !said.contains("private"),
            "{said}"
        );
    }

    #[test]
    fn what_cannot_be_called_is_refused_with_the_cure() {
        assert!(said(check("--pod", "http://host/?a=b")).contains("it has a query"));
        assert!(said(check("--pod", "http://host/#a")).contains("it has a query"));
        let version = said(refuse_version("--pod", "http://host:8000/v1/"));
        assert!(version.ends_with("give it without: http://host:8000"), "{version}");
        check("--pod", "http://host:8000/models/a/").unwrap();
        refuse_version("--pod", "http://host:8000/models/a").unwrap();
    }
}
