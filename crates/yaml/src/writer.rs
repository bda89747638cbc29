//! Writes values as YAML that parses back to the same values.

use std::fmt::Write;
use std::time::Duration;

/// A name: plain if YAML reads it as a plain word, else quoted.
#[must_use]
pub fn word(text: &str) -> String {
    /// Words that YAML readers take for something else than text.
    const SPECIAL: [&str; 8] = ["null", "true", "false", "yes", "no", "on", "off", "nan"];
    let is_first = |c: char| c.is_ascii_alphabetic() || c == '_';
    let is_word = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
    let is_plain = text.starts_with(is_first) && text.chars().all(is_word);
    let is_special = SPECIAL.iter().any(|special| special.eq_ignore_ascii_case(text));
    if is_plain && !is_special { text.to_owned() } else { quoted(text) }
}

/// Any text, on one line between double quotes. Not a JSON string: JSON leaves characters bare that
/// YAML takes for line breaks or does not allow.
#[must_use]
pub fn quoted(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            '\n' => out.push_str("\\n"),
            '\t' => out.push_str("\\t"),
            '\u{2028}' | '\u{2029}' | '\u{FEFF}' | '\u{FFFE}' | '\u{FFFF}' => escape(&mut out, c),
            _ if c.is_control() => escape(&mut out, c),
            _ => out.push(c),
        }
    }
    out.push('"');
    out
}

fn escape(out: &mut String, c: char) {
    let _ = write!(out, "\\u{:04X}", u32::from(c));
}

/// A time in the largest unit that it is a whole number of.
#[must_use]
pub fn time(time: Duration) -> String {
    let micros = time.as_micros();
    if micros.is_multiple_of(1_000_000) {
        format!("{}s", micros / 1_000_000)
    } else if micros.is_multiple_of(1_000) {
        format!("{}ms", micros / 1_000)
    } else {
        format!("{micros}us")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::{Node, Yaml, parse};
    use proptest::prelude::*;

    #[test]
    fn words_stay_as_they_are_and_whatever_else_is_quoted() {
        assert_eq!(word("x-session.id_2"), "x-session.id_2");
        for text in ["", "null", "True", "1", "-", "a b", "a: b", "~", "#", "é"] {
            assert_eq!(word(text), format!("\"{text}\""));
        }
        assert_eq!(quoted("a\"\\\n\t\u{7f}\u{85}\u{2028}"), r#""a\"\\\n\t\u007F\u0085\u2028""#);
    }

    proptest! {
        #[test]
        fn any_text_is_read_back_as_it_was_as_key_and_as_value(text in "(?s).{0,40}") {
            for written in [word(&text), quoted(&text)] {
                let block = parse(&format!("- {written}: {{b: {written}}}\n")).unwrap();
                let flow = parse(&format!("{{{written}: {written}}}")).unwrap();
                let Yaml::List(items) = &block.value else { panic!() };
                let inner = items[0].get(&text).and_then(|node| node.get("b"));
                prop_assert_eq!(inner.and_then(Node::text), Some(text.as_str()));
                prop_assert_eq!(flow.get(&text).and_then(Node::text), Some(text.as_str()));
            }
        }
    }
}
