//! Walks the bytes of a JSON object, and finds what isolation has to change in it.
//!
//! A tree of the body would not do: it has lost positions and repeated names, and the body must not
//! be written anew. So the walk jumps over the bytes themselves and decodes names only, each as an
//! engine reads it, escapes included.
//!
//! Limit: the walk trusts that the bytes are JSON, which the caller has checked. Of other bytes it
//! may find anything, but it ends, and never reads beyond them.

use memchr::memchr2;
use std::borrow::Cow;
use std::ops::Range;

/// The deepest nesting, that of `serde_json`.
const MAX_DEPTH: usize = 128;

/// Bytes that are not a JSON object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct NotJson;

/// A member of an object.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Member<'a> {
    /// Its name, without escapes.
    pub(super) name: Cow<'a, str>,
    /// The position of its value.
    pub(super) value: Range<usize>,
}

/// The members of the object that `bytes` are, in their order, repeated names included.
pub(super) fn members(bytes: &[u8]) -> Result<Vec<Member<'_>>, NotJson> {
    let mut members = Vec::new();
    let mut walk = Walk { bytes, at: 0 };
    walk.object(|walk, name| {
        let value = walk.skip()?;
        members.push(Member { name, value });
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
) -> Result<Vec<Range<usize>>, NotJson> {
    let mut found = Vec::new();
    let mut walk = Walk { bytes: &bytes[..within.end], at: within.start };
    walk.search(&Wanted { name, without }, 0, &mut found)?;
    Ok(found)
}

struct Wanted<'a> {
    name: &'a str,
    without: &'a [&'a str],
}

struct Walk<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Walk<'a> {
    /// Searches the value at the current position, and moves past it.
    fn search(
        &mut self,
        wanted: &Wanted<'_>,
        depth: usize,
        found: &mut Vec<Range<usize>>,
    ) -> Result<(), NotJson> {
        if depth > MAX_DEPTH {
            return Err(NotJson);
        }
        self.blanks();
        match self.peek()? {
            b'{' => self.object(|walk, name| {
                if name == wanted.name {
                    found.push(walk.skip()?);
                    return Ok(());
                }
                if wanted.without.contains(&name.as_ref()) {
                    return walk.skip().map(drop);
                }
                walk.search(wanted, depth + 1, found)
            }),
            b'[' => self.array(|walk| walk.search(wanted, depth + 1, found)),
            _ => self.skip().map(drop),
        }
    }

    /// Visits every member of an object; `visit` moves past the value.
    fn object(
        &mut self,
        mut visit: impl FnMut(&mut Self, Cow<'a, str>) -> Result<(), NotJson>,
    ) -> Result<(), NotJson> {
        self.blanks();
        self.expect(b'{')?;
        loop {
            self.blanks();
            match self.peek()? {
                b'}' => {
                    self.at += 1;
                    return Ok(());
                }
                b',' => self.at += 1,
                _ => {
                    let name = self.name()?;
                    self.blanks();
                    self.expect(b':')?;
                    self.blanks();
                    visit(self, name)?;
                }
            }
        }
    }

    /// Visits every item of an array; `visit` moves past the item.
    fn array(
        &mut self,
        mut visit: impl FnMut(&mut Self) -> Result<(), NotJson>,
    ) -> Result<(), NotJson> {
        self.expect(b'[')?;
        loop {
            self.blanks();
            match self.peek()? {
                b']' => {
                    self.at += 1;
                    return Ok(());
                }
                b',' => self.at += 1,
                _ => visit(self)?,
            }
        }
    }

    /// Moves past a value and returns its position.
    fn skip(&mut self) -> Result<Range<usize>, NotJson> {
        let start = self.at;
        let mut depth = 0_usize;
        loop {
            match self.peek()? {
                b'"' => self.string()?,
                b'{' | b'[' => {
                    depth += 1;
                    self.at += 1;
                }
                b'}' | b']' => {
                    depth = depth.checked_sub(1).ok_or(NotJson)?;
                    self.at += 1;
                }
                _ if depth > 0 => self.at += 1,
                _ => {
                    let is_end = |byte: &u8| b",]} \t\r\n\"{[:".contains(byte);
                    let rest = &self.bytes[self.at..];
                    let length = rest.iter().position(is_end).unwrap_or(rest.len());
                    if length == 0 {
                        return Err(NotJson);
                    }
                    self.at += length;
                }
            }
            if depth == 0 {
                return Ok(start..self.at);
            }
        }
    }

    fn name(&mut self) -> Result<Cow<'a, str>, NotJson> {
        let start = self.at;
        self.string()?;
        let written = &self.bytes[start..self.at];
        if written.contains(&b'\\') {
            return serde_json::from_slice(written).map(Cow::Owned).map_err(|_| NotJson);
        }
        let name = std::str::from_utf8(&written[1..written.len() - 1]);
        name.map(Cow::Borrowed).map_err(|_| NotJson)
    }

    fn string(&mut self) -> Result<(), NotJson> {
        self.expect(b'"')?;
        loop {
            let rest = self.bytes.get(self.at..).ok_or(NotJson)?;
            let at = memchr2(b'"', b'\\', rest).ok_or(NotJson)?;
            self.at += at + 1;
            if rest[at] == b'"' {
                return Ok(());
            }
            // The escaped byte.
            self.at += 1;
        }
    }

    fn blanks(&mut self) {
        while self.bytes.get(self.at).is_some_and(|byte| b" \t\r\n".contains(byte)) {
            self.at += 1;
        }
    }

    fn expect(&mut self, byte: u8) -> Result<(), NotJson> {
        if self.peek()? != byte {
            return Err(NotJson);
        }
        self.at += 1;
        Ok(())
    }

    fn peek(&self) -> Result<u8, NotJson> {
        self.bytes.get(self.at).copied().ok_or(NotJson)
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
