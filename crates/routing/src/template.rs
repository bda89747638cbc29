//! Templates of body fields: JSON in which texts stand for values that are known when a request is
//! sent.
//!
//! A text that is `<name>` and nothing else stands for the value itself, of any type. Inside of a
//! longer text, `<name>` stands for the text of the value. In a map, the key `<<` stands for the
//! members of another object, of which the other keys of the map replace some.

use serde_json::Value as Json;

/// The key of a map whose value is the object that the map changes.
pub const MERGE: &str = "<<";

/// A text of a template, cut at its names.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TemplatePart<'a> {
    /// Stays as it is.
    Text(&'a str),
    /// Stands for a value.
    Name(&'a str),
}

/// The parts of a text, in order.
pub fn template_parts(text: &str) -> impl Iterator<Item = TemplatePart<'_>> {
    let mut rest = text;
    std::iter::from_fn(move || {
        let found = rest.match_indices('<').find_map(|(start, _)| {
            let length = rest[start + 1..]
                .find('>')
                .filter(|length| is_template_name(&rest[start + 1..start + 1 + length]))?;
            Some((start, start + 1 + length))
        });
        match found {
            _ if rest.is_empty() => None,
            Some((0, end)) => {
                let name = &rest[1..end];
                rest = &rest[end + 1..];
                Some(TemplatePart::Name(name))
            }
            Some((start, _)) => {
                let text = &rest[..start];
                rest = &rest[start..];
                Some(TemplatePart::Text(text))
            }
            None => Some(TemplatePart::Text(std::mem::take(&mut rest))),
        }
    })
}

/// All names in a template, some of them more than once.
pub fn template_names(template: &Json) -> Vec<&str> {
    match template {
        Json::String(text) => template_parts(text)
            .filter_map(|part| match part {
                TemplatePart::Name(name) => Some(name),
                TemplatePart::Text(_) => None,
            })
            .collect(),
        Json::Array(items) => items.iter().flat_map(template_names).collect(),
        Json::Object(fields) => fields.values().flat_map(template_names).collect(),
        Json::Null | Json::Bool(_) | Json::Number(_) => Vec::new(),
    }
}

/// Whether it can be the name of a value: letters, digits, `_` and `-`.
pub(crate) fn is_template_name(name: &str) -> bool {
    let is_letter = |letter: char| letter.is_ascii_alphanumeric() || letter == '_' || letter == '-';
    !name.is_empty() && name.chars().all(is_letter)
}

/// Whether it is a JSON pointer (RFC 6901) to something inside of a response.
pub(crate) fn is_pointer(pointer: &str) -> bool {
    let mut escapes = pointer.split('~').skip(1);
    pointer.starts_with('/') && escapes.all(|escaped| escaped.starts_with(['0', '1']))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_text_is_cut_at_its_names_and_at_nothing_else() {
        let parts = |text| template_parts(text).collect::<Vec<_>>();
        use TemplatePart::{Name, Text};
        assert_eq!(parts("<a>"), [Name("a")]);
        assert_eq!(
            parts("http://<host>:<port>/"),
            [Text("http://"), Name("host"), Text(":"), Name("port"), Text("/")]
        );
        for plain in ["<|end|>", "a < b > c", "<>", "<a", "a>", "é<ü>"] {
            assert_eq!(parts(plain), [Text(plain)], "{plain}");
        }
        assert_eq!(parts("<<a>"), [Text("<"), Name("a")]);
        assert_eq!(parts(""), []);
    }

    #[test]
    fn names_are_found_wherever_they_stand() {
        let template = json!({"a": ["<x>", {"b": "see <y>"}], "<<": "<z>", "n": 1, "<k>": null});
        let mut names = template_names(&template);
        names.sort_unstable();
        assert_eq!(names, ["x", "y", "z"]);
    }

    #[test]
    fn a_pointer_begins_with_a_slash_and_escapes_tildes() {
        assert!(["/a", "/", "/a~1b~0/0"].into_iter().all(is_pointer));
        assert!(!["", "a", "/a~", "/a~2"].into_iter().any(is_pointer));
    }
}
