//! A conversation of nothing but texts, read from its bytes.

use std::borrow::Cow;

use wornpath_blocks::chat::ChatTurn;

use super::Messages;
use super::walk::{Walk, WrittenSpan};

impl Messages {
    /// The turns of a conversation of nothing but texts that was taken from a body, without a tree.
    pub(crate) fn turns(&self) -> Option<Vec<ChatTurn<'_>>> {
        let mut walk = Walk::new(self.written()?);
        let mut turns = Vec::new();
        while walk.has_member(b']')? {
            turns.push(turn(&mut walk)?);
        }
        Some(turns)
    }
}

fn turn<'a>(walk: &mut Walk<'a>) -> Option<ChatTurn<'a>> {
    if walk.next()? != b'{' {
        return None;
    }
    let mut role = None;
    let mut content = None;
    while walk.has_member(b'}')? {
        let field = match walk.string()?.text {
            "role" => &mut role,
            "content" => &mut content,
            _ => return None,
        };
        walk.expect(b':')?;
        let is_text = walk.next()? == b'"';
        // Of several of one name, a parser takes the last.
        if !is_text || field.replace(walk.string()?).is_some() {
            return None;
        }
    }
    Some(ChatTurn { role: text(role?), content: text(content?) })
}

/// A string's text, copied only if it has escapes.
fn text(written: WrittenSpan<'_>) -> Cow<'_, str> {
    if written.has_escapes { written.text().into() } else { written.text.into() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use proptest::prelude::*;
    use serde_json::{Value, json};

    fn take(list: &str) -> Option<Messages> {
        let body = format!(r#"{{"messages":{list}}}"#);
        Messages::take_from(&Bytes::from(body)).map(|(messages, _)| messages)
    }

    /// The turns as a parser finds them, which are the messages.
    fn spelled_out(messages: &Messages) -> Option<Vec<Value>> {
        let spell = |turn: ChatTurn<'_>| json!({"role": turn.role, "content": turn.content});
        let turns: Vec<_> = messages.turns()?.into_iter().map(spell).collect();
        assert_eq!(turns, messages[..]);
        Some(turns)
    }

    #[test]
    fn turns_are_what_has_a_role_and_a_text_and_nothing_else() {
        let turns = |list: &str| spelled_out(&take(list).unwrap());
        assert_eq!(turns("[]"), Some(vec![]));
        let usual =
            r#"[ {"role" : "user", "content" : "a\n\u00e9\"é"} ,{"content":"","role":"b"}]"#;
        assert_eq!(turns(usual).unwrap().len(), 2);
        for unusual in [
            "[1]",
            "[[]]",
            "[{}]",
            r#"["role"]"#,
            r#"[{"role":"user"}]"#,
            r#"[{"content":"a"}]"#,
            r#"[{"role":"user","content":null}]"#,
            r#"[{"role":"user","content":["a"]}]"#,
            r#"[{"role":"user","content":"a","name":"b"}]"#,
            r#"[{"role":"user","content":"a","content":"b"}]"#,
            r#"[{"role":"user","content":"a","c\u006fntent":"b"}]"#,
            r#"[{"role":"user","content":"a"},{}]"#,
        ] {
            assert_eq!(turns(unusual), None, "{unusual}");
        }
        let parsed: Messages = vec![json!({"role": "user", "content": "a"})].into();
        assert_eq!(parsed.turns(), None);
    }

    proptest! {
        #[test]
        fn turns_are_what_a_parser_finds(
            said in prop::collection::vec((".{0,4}", ".{0,4}"), 0..4),
            damage in prop::option::of((any::<prop::sample::Index>(), any::<char>())),
        ) {
            let turn = |(role, content): (String, String)| json!({"role": role, "content": content});
            let mut list: Vec<char> =
                Value::from_iter(said.into_iter().map(turn)).to_string().chars().collect();
            if let Some((at, character)) = damage {
                let at = at.index(list.len());
                list[at] = character;
            }
            let taken = take(&String::from_iter(list));
            let turns = taken.as_ref().and_then(spelled_out);
            prop_assert!(turns.is_some() || damage.is_some());
        }
    }
}
