//! Who we are to a broker, as its address says: `scheme://user:password@host`, or a token before the `@`.

/// A broker's address as it may be shown: without who we are to it.
#[must_use]
pub fn without_login(url: &str) -> String {
    split(url).0
}

/// What stands before the host of an address.
#[derive(Clone, PartialEq, Eq)]
#[cfg_attr(
    not(feature = "nats"),
    allow(dead_code, reason = "other brokers' clients read it themselves")
)]
pub(crate) enum Login {
    /// A user, and the password.
    User(String, String),
    /// A token alone.
    Token(String),
}

/// The address without it, and the login.
pub(crate) fn split(url: &str) -> (String, Option<Login>) {
    let Some((scheme, rest)) = url.split_once("://") else { return (url.to_owned(), None) };
    let authority = rest.find('/').map_or(rest, |end| &rest[..end]);
    let Some((login, _)) = authority.rsplit_once('@') else { return (url.to_owned(), None) };
    let login_of = |text: &str| match text.split_once(':') {
        Some((user, password)) => Login::User(decoded(user), decoded(password)),
        None => Login::Token(decoded(text)),
    };
    (format!("{scheme}://{}", &rest[login.len() + 1..]), Some(login_of(login)))
}

/// With `%40` and the like as what they stand for.
fn decoded(text: &str) -> String {
    let (mut out, mut rest) = (Vec::new(), text.as_bytes());
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
    fn an_address_is_shown_without_who_we_are() {
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
        assert_eq!(decoded("100%"), "100%");
    }
}
