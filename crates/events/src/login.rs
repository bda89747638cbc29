//! Credentials of a broker: a user in its URL, and a password beside it, never in it.

use percent_encoding::percent_decode_str;
use std::fmt;

/// How a client logs in to a broker.
#[derive(Clone, PartialEq, Eq)]
pub struct BrokerLogin {
    /// Without one, the password is that of the default user (Redis) or a token (NATS).
    pub user: Option<String>,
    /// It is never shown.
    pub password: String,
}

impl fmt::Debug for BrokerLogin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("BrokerLogin(..)")
    }
}

/// A URL `scheme://user@host`, split.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UrlUser {
    /// The URL without the user.
    pub url: String,
    /// The user, decoded.
    pub user: Option<String>,
}

impl UrlUser {
    /// Splits a URL.
    #[must_use]
    pub fn split(url: &str) -> Self {
        let Some((user, host)) = user_info(url) else {
            return Self { url: url.to_owned(), user: None };
        };
        let scheme = url.split_once("://").map_or("", |(scheme, _)| scheme);
        let user = percent_decode_str(user).decode_utf8_lossy().into_owned();
        Self { url: format!("{scheme}://{host}"), user: Some(user) }
    }
}

/// Whether a URL of a broker or a database contains a password: behind its user, or as a parameter.
///
/// A password may contain any character, so everything up to the last `@` counts as the user's.
#[must_use]
pub fn has_password(url: &str) -> bool {
    let is_behind_user = user_info(url).is_some_and(|(user, _)| user.contains(':'));
    let query = url.split_once('?').map_or("", |(_, query)| query);
    let name = |pair: &str| pair.split('=').next().unwrap_or_default().to_ascii_lowercase();
    is_behind_user || query.split('&').any(|pair| name(pair).contains("password"))
}

/// What is before and after the last `@` of a URL, without its scheme.
fn user_info(url: &str) -> Option<(&str, &str)> {
    let (_, rest) = url.split_once("://")?;
    rest.rsplit_once('@')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_user_is_split_from_a_url() {
        for (url, without, user) in [
            ("nats://a:4222", "nats://a:4222", None),
            ("nats://m%40e@a:4222", "nats://a:4222", Some("m@e")),
            ("rediss://me@a:6379/0", "rediss://a:6379/0", Some("me")),
            ("a:4222", "a:4222", None),
        ] {
            let user = user.map(str::to_owned);
            assert_eq!(UrlUser::split(url), UrlUser { url: without.to_owned(), user }, "{url}");
        }
    }

    #[test]
    fn a_password_is_found_wherever_it_stands_in_a_url() {
        for url in [
            "nats://me:secret@a:4222",
            "redis://:secret@a",
            "redis://me:p/a?s#s@a:6379/0",
            "postgres://me:@a/b",
            "postgres://me@a/b?password=secret",
            "postgres://me@a/b?sslmode=require&Password=secret",
            "postgres://me@a/b?sslpassword=secret",
        ] {
            assert!(has_password(url), "{url}");
        }
        for url in
            ["nats://a:4222", "redis://me@a:6379/0", "postgres://me@a:5432/b?sslmode=require"]
        {
            assert!(!has_password(url), "{url}");
        }
    }

    #[test]
    fn a_password_is_not_printed() {
        let login = BrokerLogin { user: Some("me".to_owned()), password: "secret".to_owned() };
        assert_eq!(format!("{login:?}"), "BrokerLogin(..)");
    }
}
