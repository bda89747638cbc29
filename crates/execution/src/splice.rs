//! Sets and removes top-level fields of a JSON object in its bytes.
//!
//! A step of a plan may have to add a field to the client's body. Parsing the body into a tree and
//! writing it out again would change more than that (order, spacing, numbers beyond 64 bits) and
//! costs a copy of every string. So the object is only scanned: edited fields are cut out, wherever
//! and however often they occur and however their names are escaped, and the new values are
//! appended.

use crate::json_scan::{JsonScan, NotAnObject};
use bytes::Bytes;
use serde_json::Value;

/// A change of one top-level field.
#[derive(Clone, PartialEq, Debug)]
pub struct Edit {
    /// The name of the field.
    pub field: String,
    /// The new value as JSON; none removes the field.
    pub value: Option<String>,
}

impl Edit {
    /// Sets a field.
    #[must_use]
    pub fn set(field: &str, value: &Value) -> Self {
        Self { field: field.to_owned(), value: Some(value.to_string()) }
    }

    /// Removes a field.
    #[must_use]
    pub fn remove(field: &str) -> Self {
        Self { field: field.to_owned(), value: None }
    }
}

/// Applies the edits, later ones over earlier ones. Without edits, returns the very same bytes.
///
/// # Errors
/// If the bytes are not an object.
pub fn splice(body: &Bytes, edits: &[Edit]) -> Result<Bytes, NotAnObject> {
    if edits.is_empty() {
        return Ok(body.clone());
    }
    let added: usize = edits
        .iter()
        .map(|edit| edit.field.len() + edit.value.as_ref().map_or(0, String::len) + 8)
        .sum();
    let mut out = Vec::with_capacity(body.len() + added);
    let end = JsonScan::new(body, 0..body.len()).object(|scan, name| {
        let value = scan.skip()?;
        if !edits.iter().any(|edit| name.is(&edit.field)) {
            out.push(if out.is_empty() { b'{' } else { b',' });
            out.extend_from_slice(&body[name.at..value.end]);
        }
        Ok(())
    })?;
    for (at, edit) in edits.iter().enumerate() {
        let is_last = !edits[at + 1..].iter().any(|later| later.field == edit.field);
        if let Some(value) = &edit.value
            && is_last
        {
            out.push(if out.is_empty() { b'{' } else { b',' });
            out.extend_from_slice(Value::from(edit.field.as_str()).to_string().as_bytes());
            out.push(b':');
            out.extend_from_slice(value.as_bytes());
        }
    }
    if out.is_empty() {
        out.push(b'{');
    }
    out.extend_from_slice(&body[end..]);
    Ok(out.into())
}

/// The bytes of a top-level field's value; of a field that occurs twice the last, as engines read
/// it.
///
/// # Errors
/// If the bytes are not an object.
pub fn field<'a>(body: &'a [u8], field: &str) -> Result<Option<&'a [u8]>, NotAnObject> {
    let mut found = None;
    JsonScan::new(body, 0..body.len()).object(|scan, name| {
        let value = scan.skip()?;
        if name.is(field) {
            found = Some(&body[value]);
        }
        Ok(())
    })?;
    Ok(found)
}

/// The bytes of the value at a JSON pointer (RFC 6901), with which `pointer` begins with a slash.
pub(crate) fn at_pointer<'a>(json: &'a [u8], pointer: &str) -> Option<&'a [u8]> {
    let start = json.iter().position(|byte| !byte.is_ascii_whitespace())?;
    let mut value = &json[start..];
    for key in pointer.split('/').skip(1) {
        value = match value.first()? {
            b'{' => field(value, &key.replace("~1", "/").replace("~0", "~")).ok()??,
            b'[' => item(value, key.parse().ok()?)?,
            _ => return None,
        };
    }
    Some(value)
}

/// The bytes of an item of an array.
fn item(array: &[u8], wanted: usize) -> Option<&[u8]> {
    let mut at = 0;
    let mut found = None;
    let mut scan = JsonScan::new(array, 0..array.len());
    let visited = scan.array(|scan| {
        let value = scan.skip()?;
        if at == wanted {
            found = Some(&array[value]);
        }
        at += 1;
        Ok(())
    });
    visited.ok().and(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    fn spliced(body: &str, edits: &[Edit]) -> String {
        let bytes = splice(&Bytes::copy_from_slice(body.as_bytes()), edits).unwrap();
        String::from_utf8(bytes.to_vec()).unwrap()
    }

    #[test]
    fn fields_without_an_edit_keep_their_bytes() {
        let body = "{ \"n\" : 1e400,\n \"a\":[1,{\"stream\":true}],\"s\":\"}\\\"{\" }";
        let edits = [Edit::set("stream", &json!(false))];
        let expected =
            "{\"n\" : 1e400,\"a\":[1,{\"stream\":true}],\"s\":\"}\\\"{\",\"stream\":false}";
        assert_eq!(spliced(body, &edits), expected);
        assert_eq!(spliced(body, &[]), body);
    }

    #[test]
    fn every_spelling_of_an_edited_field_is_removed() {
        let body = r#"{"cache_salt":"mine","x":1,"\u0063ache_salt":"theirs","cache_salt":null}"#;
        let edits = [Edit::set("cache_salt", &json!("ours"))];
        assert_eq!(spliced(body, &edits), r#"{"x":1,"cache_salt":"ours"}"#);
        assert_eq!(field(body.as_bytes(), "cache_salt"), Ok(Some(&b"null"[..])));
    }

    #[test]
    fn removing_everything_leaves_an_empty_object() {
        assert_eq!(spliced(r#"{"a":1}"#, &[Edit::remove("a")]), "{}");
        assert_eq!(spliced(" {} ", &[Edit::set("a", &json!([1]))]), "{\"a\":[1]} ");
        let twice = [Edit::set("a", &json!(1)), Edit::set("a", &json!(2))];
        assert_eq!(spliced("{}", &twice), r#"{"a":2}"#);
    }

    #[test]
    fn bytes_that_are_no_object_are_an_error_and_never_a_panic() {
        for body in
            ["", "[]", "3", "{\"a\"", "{\"a\":", "{\"a\":\"\\", "{a:1}", "{\"a\":}", "{\"a\" 1}"]
        {
            let result = splice(&Bytes::copy_from_slice(body.as_bytes()), &[Edit::remove("b")]);
            assert!(result.is_err(), "{body}");
        }
    }

    #[test]
    fn a_pointer_finds_the_bytes_of_what_it_points_to() {
        let json = br#" {"a": [1, {"b/c": 1e400}, "x"], "m~n": {"": [ ] }, "a b": null} "#;
        for (pointer, expected) in [
            ("/a/0", Some("1")),
            ("/a/1/b~1c", Some("1e400")),
            ("/a/2", Some("\"x\"")),
            ("/m~0n/", Some("[ ]")),
            ("/a b", Some("null")),
            ("/a/3", None),
            ("/a/x", None),
            ("/a/0/1", None),
            ("/b", None),
        ] {
            let found = at_pointer(json, pointer).map(|found| std::str::from_utf8(found).unwrap());
            assert_eq!(found, expected, "{pointer}");
        }
        assert_eq!(at_pointer(b"data: {}", "/a"), None);
        assert_eq!(at_pointer(b"", "/a"), None);
    }

    fn any_json() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            "[a-c\"\\\\{}\\[\\],: \u{e9}\n]{0,6}".prop_map(Value::from),
        ];
        leaf.prop_recursive(3, 16, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                prop::collection::btree_map("[ab\"\\\\]{0,2}", inner, 0..4)
                    .prop_map(|map| Value::Object(map.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn splicing_bytes_is_editing_the_tree(
            fields in prop::collection::btree_map("[ab\"\\\\]{0,2}", any_json(), 0..5),
            edits in prop::collection::vec(("[ab\"\\\\]{0,2}", prop::option::of(any_json())), 0..4),
            pretty in any::<bool>(),
        ) {
            let mut tree = Value::Object(fields.into_iter().collect());
            let text = if pretty { format!("{tree:#}") } else { tree.to_string() };
            let edits: Vec<_> = edits
                .into_iter()
                .map(|(field, value)| match value {
                    Some(value) => Edit::set(&field, &value),
                    None => Edit::remove(&field),
                })
                .collect();
            let bytes = splice(&text.into(), &edits).unwrap();
            let found: Value = serde_json::from_slice(&bytes).unwrap();
            let object = tree.as_object_mut().unwrap();
            for edit in &edits {
                object.remove(&edit.field);
                if let Some(value) = &edit.value {
                    object.insert(edit.field.clone(), serde_json::from_str(value).unwrap());
                }
            }
            for (name, value) in found.as_object().unwrap() {
                let pointer = format!("/{}", name.replace('~', "~0").replace('/', "~1"));
                prop_assert_eq!(at_pointer(&bytes, &pointer), field(&bytes, name).unwrap());
                let bytes = field(&bytes, name).unwrap().unwrap();
                prop_assert_eq!(&serde_json::from_slice::<Value>(bytes).unwrap(), value);
            }
            prop_assert_eq!(found, tree);
        }
    }
}
