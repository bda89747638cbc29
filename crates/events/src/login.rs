//! Credentials in a broker's URL: `scheme://user:password@host`, or a token before the `@`.

/// A URL without its credentials, for logs and status.
#[must_use]
pub fn without_login(url: &str) -> String {
    split(url).0
}

/// The credentials of a URL.
#[derive(Clone, PartialEq, Eq)]
#[cfg_attr(
    not(feature = "nats"),
    allow(dead_code, reason = "other brokers' clients parse it themselves")
)]
pub(crate) enum Login {
    /// A user, and the password.
    User(String, String),
    /// A token alone.
    Token(String),
}

/// Splits a URL into the part without credentials and the credentials.
pub(crate) fn split(url: &str) -> (String, Option<Login>) {
    let Some((scheme, rest)) = url.split_once("://") else { return (url.to_owned(), None) };
    let authority = rest.find('/').map_or(rest, |end| &rest[..end]);
    let Some((login, _)) = authority.rsplit_once('@') else { return (url.to_owned(), None) };
    let login_of = |text: &str| match text.split_once(':') {
        Some((user, password)) => Login::User(percent_decoded(user), percent_decoded(password)),
        None => Login::Token(percent_decoded(text)),
    };
    (format!("{scheme}://{}", &rest[login.len() + 1..]), Some(login_of(login)))
}

/// Decodes percent-encoding.
fn percent_decoded(text: &str) -> String {
    let mut out = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((byte, after)) = rest.split_first() {
        let code = after.get(..2).and_then(|code| std::str::from_utf8(code).ok());
        match code.and_then(|code| u8::from_str_radix(code, 16).ok()) {
            Some(code) if *byte == b'%' => {
                out.push(code);
                rest = &after[2..];
            }
            _ => {
                out.push(*byte);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_are_split_from_a_url() {
        let user = |user: &str, password: &str| Login::User(user.to_owned(), password.to_owned());
        for (url, shown, login) in [
            ("nats://a:4222", "nats://a:4222", None),
            ("nats://me:p%40ss:w@a:4222/kv@1", "nats://a:4222/kv@1", Some(user("me", "p@ss:w"))),
            ("nats://t0ken@a", "nats://a", Some(Login::Token("t0ken".to_owned()))),
            ("redis://:secret@a:6379/0", "redis://a:6379/0", Some(user("", "secret"))),
            ("a:4222", "a:4222", None),
        ] {
            assert!(split(url) == (shown.to_owned(), login), "{url}");
            assert_eq!(without_login(url), shown);
        }
        assert_eq!(percent_decoded("100%"), "100%");
    }
}
