//! Finds what isolation has to change in the bytes of a JSON object. Names are decoded as an engine
//! reads them, escapes included.

use std::borrow::Cow;
use std::ops::Range;
use wornpath_execution::{JsonScan, NotAnObject};

/// The deepest nesting, that of `serde_json`.
const MAX_DEPTH: usize = 128;

/// A member of an object.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Member<'a> {
    /// Its name, without escapes.
    pub(super) name: Cow<'a, str>,
    /// The position of its value.
    pub(super) value: Range<usize>,
}

/// The members of the object that `bytes` are, in their order, repeated names included.
pub(super) fn members(bytes: &[u8]) -> Result<Vec<Member<'_>>, NotAnObject> {
    let mut members = Vec::new();
    JsonScan::new(bytes, 0..bytes.len()).object(|scan, name| {
        let name = name.decoded()?;
        members.push(Member { name, value: scan.skip()? });
        Ok(())
    })?;
    Ok(members)
}

/// The positions of the values of all members called `name` in the value at `within`, at any depth,
/// except inside members with a name in `without`.
pub(super) fn values_of(
    bytes: &[u8],
    within: Range<usize>,
    name: &str,
    without: &[&str],
) -> Result<Vec<Range<usize>>, NotAnObject> {
    let mut found = Vec::new();
    search(&mut JsonScan::new(bytes, within), &Wanted { name, without }, 0, &mut found)?;
    Ok(found)
}

struct Wanted<'a> {
    name: &'a str,
    without: &'a [&'a str],
}

/// Searches the value at the scanner's position, and moves past it.
fn search(
    scan: &mut JsonScan<'_>,
    wanted: &Wanted<'_>,
    depth: usize,
    found: &mut Vec<Range<usize>>,
) -> Result<(), NotAnObject> {
    if depth > MAX_DEPTH {
        return Err(scan.wrong());
    }
    match scan.next_byte()? {
        b'{' => {
            let searched = scan.object(|scan, name| {
                let name = name.decoded()?;
                if name == wanted.name {
                    found.push(scan.skip()?);
                    return Ok(());
                }
                if wanted.without.contains(&name.as_ref()) {
                    return scan.skip().map(drop);
                }
                search(scan, wanted, depth + 1, found)
            });
            searched.map(drop)
        }
        b'[' => scan.array(|scan| search(scan, wanted, depth + 1, found)),
        _ => scan.skip().map(drop),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::{Map, Value};

    #[test]
    fn members_have_their_decoded_names_and_the_bytes_of_their_values() {
        let body = br#" { "a" : [1, "}\"]"] ,"\u0062":-1.5e3,"a":null,"":{"x":{}}} "#;
        let found = members(body).unwrap();
        let shown: Vec<_> = found
            .iter()
            .map(|it| (it.name.as_ref(), std::str::from_utf8(&body[it.value.clone()]).unwrap()))
            .collect();
        let expected =
            [("a", r#"[1, "}\"]"]"#), ("b", "-1.5e3"), ("a", "null"), ("", r#"{"x":{}}"#)];
        assert_eq!(shown, expected);
    }

    #[test]
    fn values_are_found_at_any_depth_in_any_spelling_but_not_in_what_is_left_out() {
        let body = br#"[{"uuid":"1","x":[[{"\u0075uid": 2}]]},{"calls":{"uuid":3}},"uuid"]"#;
        let found = values_of(body, 0..body.len(), "uuid", &["calls"]).unwrap();
        let shown: Vec<_> = found.into_iter().map(|at| &body[at]).collect();
        assert_eq!(shown, [&b"\"1\""[..], b"2"]);
    }

    #[test]
    fn bytes_that_are_no_object_are_an_error_and_never_a_panic() {
        for body in
            ["", "[", "3", "{\"a\"", "{\"a\":", "{\"a\":\"\\", "{a:1}", "{\"a\":}", "{\"a\" 1}"]
        {
            assert!(members(body.as_bytes()).is_err(), "{body}");
        }
        let deep = "[".repeat(100_000);
        assert!(values_of(deep.as_bytes(), 0..deep.len(), "a", &[]).is_err());
    }

    fn any_json() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            "[a-c\"\\\\{}\\[\\],: \u{e9}\n]{0,6}".prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 24, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                prop::collection::btree_map("[uv\"\\\\]{0,1}", inner, 0..4)
                    .prop_map(|map| Value::Object(map.into_iter().collect())),
            ]
        })
    }

    /// The values of all members called `u` outside members called `v`, in the tree.
    fn in_tree(value: &Value, found: &mut Vec<Value>) {
        match value {
            Value::Array(items) => items.iter().for_each(|item| in_tree(item, found)),
            Value::Object(members) => {
                for (name, value) in members {
                    match name.as_str() {
                        "u" => found.push(value.clone()),
                        "v" => {}
                        _ => in_tree(value, found),
                    }
                }
            }
            _ => {}
        }
    }

    /// Writes every character of a name as an escape.
    fn with_escaped_names(value: &Value) -> String {
        match value {
            Value::Array(items) => {
                let items: Vec<_> = items.iter().map(with_escaped_names).collect();
                format!("[ {} ]", items.join(" , "))
            }
            Value::Object(members) => {
                let member = |(name, value): (&String, &Value)| {
                    let name: String =
                        name.chars().map(|one| format!("\\u{:04x}", u32::from(one))).collect();
                    format!("\"{name}\" : {}", with_escaped_names(value))
                };
                format!("{{ {} }}", members.iter().map(member).collect::<Vec<_>>().join(" , "))
            }
            _ => value.to_string(),
        }
    }

    proptest! {
        #[test]
        fn the_walk_finds_in_bytes_what_is_in_the_tree(tree in any_json(), escaped in any::<bool>()) {
            let text = if escaped { with_escaped_names(&tree) } else { format!("{tree:#}") };
            let parsed = |at: Range<usize>| serde_json::from_str::<Value>(&text[at]).unwrap();
            let found = values_of(text.as_bytes(), 0..text.len(), "u", &["v"]).unwrap();
            let mut expected = Vec::new();
            in_tree(&tree, &mut expected);
            prop_assert_eq!(found.into_iter().map(parsed).collect::<Vec<_>>(), expected);
            if let Value::Object(object) = &tree {
                let members = members(text.as_bytes()).unwrap();
                let members: Map<String, Value> = members
                    .into_iter()
                    .map(|member| (member.name.into_owned(), parsed(member.value)))
                    .collect();
                prop_assert_eq!(&members, object);
            }
        }
    }
}
