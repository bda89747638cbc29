//! Matches request paths against patterns with a `{name}` segment.

use hyper::Method;
use percent_encoding::percent_decode_str;

/// A path pattern, such as `/pods/{name}/drain`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Pattern(pub(crate) &'static str);

impl Pattern {
    /// Matches a path; the inner option is the decoded name.
    pub(crate) fn matches(self, path: &str) -> Option<Option<String>> {
        let Some((before, after)) = self.0.split_once("{name}") else {
            return (self.0 == path).then_some(None);
        };
        let name = path.strip_prefix(before)?.strip_suffix(after)?;
        let is_one_part = !name.is_empty() && !name.contains('/');
        let decoded = percent_decode_str(name);
        // The library leaves an incomplete escape as it is.
        let is_complete = decoded.clone().count() + 2 * name.matches('%').count() == name.len();
        let decoded = decoded.decode_utf8().ok().filter(|_| is_one_part && is_complete)?;
        Some(Some(decoded.into_owned()))
    }

    /// Whether it has a `{name}` segment.
    pub(crate) fn has_name(self) -> bool {
        self.0.contains("{name}")
    }
}

/// The result of a lookup.
pub(crate) enum RouteMatch<T> {
    /// The route, with the name in the path.
    Route(T, Option<String>),
    /// The path exists with these other methods.
    OtherMethods(Vec<Method>),
    /// The path does not exist.
    Nothing,
}

/// Looks up the route of a request.
pub(crate) fn find<T: Copy>(
    routes: impl Iterator<Item = (Method, Pattern, T)>,
    method: &Method,
    path: &str,
) -> RouteMatch<T> {
    let mut others = Vec::new();
    for (known, pattern, route) in routes {
        match pattern.matches(path) {
            Some(name) if known == *method => return RouteMatch::Route(route, name),
            Some(_) => others.push(known),
            None => {}
        }
    }
    if others.is_empty() { RouteMatch::Nothing } else { RouteMatch::OtherMethods(others) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_one_percent_decoded_segment_of_the_path() {
        let drain = Pattern("/pods/{name}/drain");
        assert_eq!(drain.matches("/pods/10.0.0.5:8000/drain"), Some(Some("10.0.0.5:8000".into())));
        assert_eq!(drain.matches("/pods/b%2F0/drain"), Some(Some("b/0".into())));
        for wrong in [
            "/pods/drain",
            "/pods//drain",
            "/pods/a/b/drain",
            "/pods/%G0/drain",
            "/pods/%2/drain",
            "/pods/%FF/drain",
        ] {
            assert_eq!(drain.matches(wrong), None, "{wrong}");
        }
        assert_eq!(Pattern("/pods").matches("/pods"), Some(None));
        assert_eq!(Pattern("/pods").matches("/pods/"), None);
    }

    #[test]
    fn a_known_path_with_another_method_yields_the_supported_methods() {
        let routes = || {
            [(Method::GET, Pattern("/pods"), 1), (Method::POST, Pattern("/pods"), 2)].into_iter()
        };
        assert!(matches!(find(routes(), &Method::POST, "/pods"), RouteMatch::Route(2, None)));
        assert!(
            matches!(find(routes(), &Method::PUT, "/pods"), RouteMatch::OtherMethods(methods) if methods.len() == 2)
        );
        assert!(matches!(find(routes(), &Method::GET, "/pod"), RouteMatch::Nothing));
    }
}
