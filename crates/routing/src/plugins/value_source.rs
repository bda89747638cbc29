//! Sources of a value in a request: a header, a cookie or a body field.

use serde_json::Value;

use crate::request::Request;

/// The part of a request that a preparer reads a value from.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum ValueSource {
    /// By its name in lower case.
    Header(String),
    /// By its name, as the client spells it.
    Cookie(String),
    /// A body field, by its path.
    Field(Vec<String>),
}

impl ValueSource {
    pub(crate) fn header(name: &str) -> Self {
        Self::Header(name.to_ascii_lowercase())
    }

    pub(crate) fn cookie(name: &str) -> Self {
        Self::Cookie(name.to_owned())
    }

    /// Parses `user`, or `metadata.session` for a nested field.
    pub(crate) fn field(path: &str) -> Self {
        Self::Field(path.split('.').map(str::to_owned).collect())
    }

    /// Passes the value to `read` as text, if the request has it and it is not empty. Numbers and
    /// booleans of the body are passed as JSON spells them.
    pub(crate) fn with_text<R>(
        &self,
        request: &Request,
        read: impl FnOnce(&str) -> R,
    ) -> Option<R> {
        let found = match self {
            Self::Header(name) => request.header(name),
            Self::Cookie(name) => cookie(request, name),
            Self::Field(path) => match field(request, path)? {
                Value::String(text) => Some(text.as_str()),
                Value::Number(number) => return Some(read(&number.to_string())),
                Value::Bool(flag) => Some(if *flag { "true" } else { "false" }),
                _ => None,
            },
        };
        found.filter(|text| !text.is_empty()).map(read)
    }
}

fn cookie<'a>(request: &'a Request, name: &str) -> Option<&'a str> {
    let cookies = request.headers.iter().filter(|(header, _)| header == "cookie");
    cookies
        .flat_map(|(_, value)| value.split(';'))
        .filter_map(|pair| pair.trim().split_once('='))
        .find(|(known, _)| *known == name)
        .map(|(_, value)| value.trim_matches('"'))
}

fn field<'a>(request: &'a Request, path: &[String]) -> Option<&'a Value> {
    let (first, rest) = path.split_first()?;
    rest.iter().try_fold(request.fields.get(first)?, |value, name| value.get(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find(source: &ValueSource) -> Option<String> {
        let body = br#"{"prompt":"p","user":"u1","metadata":{"session":7,"tags":[]},"empty":""}"#;
        let mut request = Request::from_json(body).unwrap();
        request.headers = vec![
            ("x-session".into(), "s1".into()),
            ("cookie".into(), "theme=dark; sid=\"c1\"".into()),
        ];
        source.with_text(&request, str::to_owned)
    }

    #[test]
    fn values_are_found_in_headers_cookies_and_fields() {
        assert_eq!(find(&ValueSource::header("X-Session")).as_deref(), Some("s1"));
        assert_eq!(find(&ValueSource::cookie("sid")).as_deref(), Some("c1"));
        assert_eq!(find(&ValueSource::field("user")).as_deref(), Some("u1"));
        assert_eq!(find(&ValueSource::field("metadata.session")).as_deref(), Some("7"));
    }

    #[test]
    fn absent_empty_and_non_scalar_values_are_not_found() {
        for path in ["empty", "metadata", "metadata.tags", "metadata.session.x", "none", ""] {
            assert_eq!(find(&ValueSource::field(path)), None, "{path}");
        }
        assert_eq!(find(&ValueSource::cookie("SID")), None);
        assert_eq!(find(&ValueSource::header("x-other")), None);
    }
}
