//! Numbers as Python's `json` reads them: integers of any length, infinite floats, `-0` as an
//! integer.
//!
//! A [`serde_json::Value`] holds integers of 64 bits and finite floats, reads a longer integer and
//! `-0` as floats, and rejects `1e400`. Engines read JSON by Python's rules, and one different
//! digit in a prompt is a different prefix. So a number that a `Value` cannot hold is kept as
//! written, in an object with one field of a private name, until a template reads it
//! ([`to_template`]).
//!
//! Rejected: `arbitrary_precision` of `serde_json`. It turns every number, including token ids,
//! into a string in all crates of the product, passes numbers as maps to derived deserializers of
//! untagged and flattened types, and does not know Python's `NaN`.
//!
//! Limits: a template cannot compute with an integer of more than 128 bits, and the operator `~`
//! and the filter `join`, which print by minijinja's rules, print a float without the exponent that
//! Python prints.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use memchr::memchr2;
use minijinja::Value as Jinja;
use minijinja::value::{Object, ObjectRepr};
use serde::de::IgnoredAny;
use serde_json::{Map, Value};

/// The field that holds a number as written. A client that sends such a field changes only its own
/// prompt.
const WRITTEN: &str = "\u{f8ff}number";

/// Which numbers the text may contain.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Grammar {
    /// Numbers of standard JSON.
    Json,
    /// Also `NaN`, `Infinity` and `-Infinity`, as in Python.
    Python,
}

/// Rewrites every number that a [`Value`] cannot hold to a form that it can, and that templates
/// print as that number. A text that is not JSON does not become JSON; byte positions change.
#[must_use]
pub fn exact_numbers(json: &str, grammar: Grammar) -> Cow<'_, str> {
    let bytes = json.as_bytes();
    let mut exact = String::new();
    let mut at = 0;
    let mut copied = 0;
    while let Some(byte) = bytes.get(at) {
        match byte {
            b'"' => at = end_of_string(bytes, at + 1),
            b'-' | b'0'..=b'9' | b'A'..=b'Z' | b'a'..=b'z' => {
                let is_part =
                    |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'-' | b'.');
                let length = bytes[at..].iter().position(|byte| !is_part(byte));
                let end = length.map_or(bytes.len(), |length| at + length);
                if !fits(&json[at..end], grammar) {
                    exact.push_str(&json[copied..at]);
                    exact.extend(["{\"", WRITTEN, "\":\"", &json[at..end], "\"}"]);
                    copied = end;
                }
                at = end;
            }
            _ => at += 1,
        }
    }
    if copied == 0 {
        return Cow::Borrowed(json);
    }
    exact.push_str(&json[copied..]);
    Cow::Owned(exact)
}

/// The position behind the closing quote of the string whose content starts at `at`.
fn end_of_string(bytes: &[u8], mut at: usize) -> usize {
    while let Some(found) = bytes.get(at..).and_then(|rest| memchr2(b'"', b'\\', rest)) {
        at += found;
        if bytes[at] == b'"' {
            return at + 1;
        }
        at += 2;
    }
    bytes.len()
}

/// Whether a word of a JSON text can stay unchanged: a [`Value`] holds it, or engines reject it
/// too.
fn fits(word: &str, grammar: Grammar) -> bool {
    match word.as_bytes() {
        [b'-' | b'0'..=b'9', digits @ ..] if digits.iter().all(u8::is_ascii_digit) => {
            let is_held =
                word.len() < 19 || word.parse::<i64>().is_ok() || word.parse::<u64>().is_ok();
            word != "-0" && (is_held || !is_json(word))
        }
        [b'-' | b'0'..=b'9', rest @ ..] if !rest.ends_with(b"Infinity") => {
            // Without an exponent it takes hundreds of digits to exceed the range of a float.
            let may_be_more =
                rest.len() > 300 || rest.iter().any(|byte| matches!(byte, b'e' | b'E'));
            !may_be_more || word.parse().is_ok_and(f64::is_finite) || !is_json(word)
        }
        _ => grammar == Grammar::Json || !matches!(word, "NaN" | "Infinity" | "-Infinity"),
    }
}

/// Whether the word is a valid JSON number.
fn is_json(word: &str) -> bool {
    serde_json::from_str::<IgnoredAny>(word).is_ok()
}

/// The number that an object represents, if it represents one.
pub(super) fn to_template(object: &Map<String, Value>) -> Option<Jinja> {
    if object.len() != 1 {
        return None;
    }
    let written = object.get(WRITTEN)?.as_str()?;
    match written {
        "NaN" => return Some(f64::NAN.into()),
        "Infinity" => return Some(f64::INFINITY.into()),
        "-Infinity" => return Some(f64::NEG_INFINITY.into()),
        _ => {}
    }
    if !is_json(written) {
        return None;
    }
    if written.contains(['.', 'e', 'E']) {
        return written.parse::<f64>().ok().map(Jinja::from);
    }
    let small = written.parse::<i128>().map(Jinja::from);
    Some(small.unwrap_or_else(|_| Jinja::from_object(LongInteger(written.to_owned()))))
}

/// The digits of an integer of more than 128 bits.
#[derive(Debug)]
struct LongInteger(String);

impl Object for LongInteger {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The test `integer` of templates.
pub(super) fn is_integer(value: &Jinja) -> bool {
    value.is_integer() || value.downcast_object_ref::<LongInteger>().is_some()
}

/// The test `number` of templates.
pub(super) fn is_number(value: &Jinja) -> bool {
    minijinja::tests::is_number(value) || is_integer(value)
}

#[cfg(test)]
mod tests {
    use super::super::{ChatTemplate, Conversation, TokenizerConfig};
    use super::*;

    fn exact(json: &str) -> Cow<'_, str> {
        exact_numbers(json, Grammar::Python)
    }

    #[test]
    fn a_number_that_a_value_holds_stays_unchanged() {
        for json in [
            "",
            "0",
            "-1",
            "[1.5, -0.0, 1e308, true, false, null]",
            "[9223372036854775807, -9223372036854775808, 18446744073709551615]",
            r#"{"-0": "-0 1e400 NaN", "a\"": "18446744073709551616"}"#,
            "\"not closed 1e400",
            "\"ends in an escape \\",
        ] {
            assert!(matches!(exact(json), Cow::Borrowed(same) if same == json), "{json}");
        }
        let literals = "[NaN, Infinity, -Infinity]";
        assert_eq!(exact_numbers(literals, Grammar::Json), literals);
    }

    #[test]
    fn a_number_that_a_value_cannot_hold_is_kept_in_an_object() {
        for number in [
            "-0",
            "18446744073709551616",
            "-9223372036854775809",
            "1e400",
            "-1.5E+309",
            "NaN",
            "-Infinity",
        ] {
            let json = format!("{{\"é\": [1, {number}], \"b\": {number}}}");
            let value: Value = serde_json::from_str(&exact(&json)).unwrap();
            assert_eq!(value["é"][0], 1);
            assert_eq!(
                (&value["é"][1][WRITTEN], &value["b"][WRITTEN]),
                (&number.into(), &number.into())
            );
        }
    }

    #[test]
    fn invalid_json_does_not_become_valid() {
        for json in [
            "-",
            "01e400",
            "1.e400",
            "00000000000000000000001",
            "-00",
            "1e400x",
            "--1e400",
            "+1e400",
            "1e4000.",
            "Infinit",
            "-NaN",
            "1Infinity",
            "{1e400: 1}",
            "[1e400 1e400]",
        ] {
            assert!(serde_json::from_str::<Value>(&exact(json)).is_err(), "{json}");
        }
    }

    #[test]
    fn templates_see_an_integer_of_any_length_as_an_integer() {
        let digits = "9".repeat(50);
        let source = "{{ n is number }} {{ n is integer }} {{ n is string }} {{ n is mapping }} {{ '#' ~ n }} \
            {{ 'yes' if n }} {{ [n] }} {{ {'k': n} | tojson }} {{ o is mapping }}";
        let template = ChatTemplate::from_jinja("t", source, &TokenizerConfig::empty()).unwrap();
        // `o` has the field name of a number but does not represent one.
        let kwargs = format!("{{\"n\": {digits}, \"o\": {{\"{WRITTEN}\": \"many\"}}}}");
        let kwargs: Value = serde_json::from_str(&exact(&kwargs)).unwrap();
        let conversation = Conversation { kwargs: kwargs.as_object(), ..Conversation::new(&[]) };
        let expected =
            format!("True True False False #{digits} yes [{digits}] {{\"k\": {digits}}} True");
        assert_eq!(template.render(&conversation).unwrap().text, expected);
    }
}
