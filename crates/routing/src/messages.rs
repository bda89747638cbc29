//! The messages of a chat, parsed lazily.
//!
//! They are most of a body, and where prompts are matched by their text, parsing them would cost
//! more than everything else. So they stay bytes: a scan only checks that they are JSON, and where
//! they end.

mod walk;

use std::fmt;
use std::ops::Deref;
use std::sync::OnceLock;

use bytes::Bytes;
use bytestring::ByteString;
use serde_json::{Map, Value};

#[cfg(feature = "text")]
pub(crate) use walk::WrittenSpan;
pub(crate) use walk::{Token, Walk};

/// The messages of a chat.
#[derive(Clone, Default)]
pub struct Messages {
    /// The list as it was written, if it was taken from a body.
    written: Option<ByteString>,
    parsed: OnceLock<Vec<Value>>,
}

impl Messages {
    /// Splits a body into its messages and its other fields. None if the body is not a JSON object
    /// with one list of messages, or an unusual one: then a full parse decides.
    #[must_use]
    pub fn take_from(body: &Bytes) -> Option<(Self, Map<String, Value>)> {
        let body = ByteString::try_from(body.clone()).ok()?;
        let mut walk = Walk::new(&body);
        let list = walk.list_of("messages")?;
        walk.ends_without("messages")?;
        // The body with `null` instead of the list: if that is an object, so is the body.
        let rest = [&body[..list.start], "null", &body[list.end..]].concat();
        let mut fields: Map<String, Value> = serde_json::from_str(&rest).ok()?;
        fields.shift_remove("messages")?;
        let written = Some(body.slice_ref(&body[list]));
        Some((Self { written, parsed: OnceLock::new() }, fields))
    }

    /// The list as it was written, if it was taken from a body.
    #[must_use]
    pub fn written(&self) -> Option<&str> {
        self.written.as_deref()
    }

    /// The list itself.
    #[must_use]
    pub fn into_vec(self) -> Vec<Value> {
        let _ = self.deref();
        self.parsed.into_inner().unwrap_or_default()
    }
}

impl Deref for Messages {
    type Target = [Value];

    fn deref(&self) -> &[Value] {
        // The scan has shown that it parses.
        let tree = || match Walk::new(self.written()?).tree()? {
            Value::Array(list) => Some(list),
            _ => None,
        };
        self.parsed.get_or_init(|| tree().unwrap_or_default())
    }
}

impl From<Vec<Value>> for Messages {
    fn from(list: Vec<Value>) -> Self {
        Self { written: None, parsed: OnceLock::from(list) }
    }
}

impl FromIterator<Value> for Messages {
    fn from_iter<T: IntoIterator<Item = Value>>(list: T) -> Self {
        list.into_iter().collect::<Vec<_>>().into()
    }
}

impl PartialEq for Messages {
    fn eq(&self, other: &Self) -> bool {
        self[..] == other[..]
    }
}

impl fmt::Debug for Messages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    fn take(body: &str) -> Option<(Messages, Map<String, Value>)> {
        Messages::take_from(&Bytes::copy_from_slice(body.as_bytes()))
    }

    #[test]
    fn messages_are_taken_out_and_the_other_fields_stay() {
        let body = r#" { "model" : "m", "messages" : [ {"role":"user","content":"a \"[]{}\\ \ud83d\ude00"} , 3 ],"n":[1,{"messages":[]}]} "#;
        let (messages, fields) = take(body).unwrap();
        let content = "a \"[]{}\\ \u{1f600}";
        assert_eq!(messages[..], [json!({"role": "user", "content": content}), json!(3)]);
        assert_eq!(Value::from(fields), json!({"model": "m", "n": [1, {"messages": []}]}));
    }

    #[test]
    fn what_is_unusual_is_left_to_the_parser() {
        for body in [
            "{}",
            r#"{"messages":3}"#,
            r#"{"messages":[]} x"#,
            r#"{"messages":[1 2]}"#,
            r#"{"messages":[01]}"#,
            r#"{"messages":[-0]}"#,
            r#"{"messages":[1e400]}"#,
            r#"{"messages":[1],"n":18446744073709551616}"#,
            r#"{"messages":["\ud83d"]}"#,
            r#"{"messages":["\x"]}"#,
            "{\"messages\":[\"\n\"]}",
            r#"{"messages":[]"#,
            r#"{"messages":[1],"messages":[2]}"#,
            r#"{"messages":[1],"mess\u0061ges":[2]}"#,
            r#"{"messages":[1],"messages":null}"#,
            r#"{"messages":[1],"n":{},"mess\u0061ges":null}"#,
            r#"{"a":{"messages":[1]}}"#,
        ] {
            assert!(take(body).is_none(), "{body}");
        }
        let deep = format!(r#"{{"messages":{}{}}}"#, "[".repeat(200), "]".repeat(200));
        assert!(take(&deep).is_none());
        let invalid = Bytes::from_static(b"{\"messages\":[\"\xff\"]}");
        assert!(Messages::take_from(&invalid).is_none());
    }

    fn value() -> impl Strategy<Value = Value> {
        let text = prop_oneof!["[a-z \"\\\\\n\u{e9}\u{1f600}]{0,8}", "[\u{0}-\u{7f}]{0,4}"];
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<f64>().prop_map(Value::from),
            text.clone().prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 24, 4, move |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                prop::collection::btree_map(text.clone(), inner, 0..4)
                    .prop_map(|fields| Value::Object(fields.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn what_is_taken_is_what_a_parser_finds(
            list in prop::collection::vec(value(), 0..4),
            other in value(),
            damage in prop::option::of((any::<prop::sample::Index>(), any::<u8>())),
        ) {
            let body = json!({"other": other, "messages": list, "last": other});
            let mut body = body.to_string().into_bytes();
            let is_whole = damage.is_none();
            if let Some((at, byte)) = damage {
                let at = at.index(body.len());
                body[at] = byte;
            }
            let taken = Messages::take_from(&Bytes::from(body.clone()));
            prop_assert!(taken.is_some() || !is_whole);
            if let Some((messages, mut fields)) = taken {
                fields.insert("messages".into(), messages.into_vec().into());
                let parsed: Value = serde_json::from_slice(&body).unwrap();
                prop_assert_eq!(parsed, Value::Object(fields));
            }
        }
    }
}
