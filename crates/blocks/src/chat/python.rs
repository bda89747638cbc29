//! Python's behaviour in templates: `str()` and the string methods that minijinja lacks.
//!
//! A prompt must equal the output of Jinja2 under Python byte for byte, because one different byte
//! is a different prefix.

use minijinja::{Error, State, Value, value::ValueKind};

/// Writes `str(value)`, which is what Jinja2 prints.
pub(super) fn str(value: &Value, out: &mut String) {
    match value.as_str() {
        Some(text) => out.push_str(text),
        None => repr(value, out),
    }
}

fn repr(value: &Value, out: &mut String) {
    match value.kind() {
        ValueKind::Undefined => {}
        ValueKind::None => out.push_str("None"),
        ValueKind::Bool => out.push_str(if value.is_true() { "True" } else { "False" }),
        ValueKind::Number => push_number(value, out),
        ValueKind::String => repr_string(value.as_str().unwrap_or_default(), out),
        ValueKind::Seq => {
            let tuple = value.is_tuple();
            out.push(if tuple { '(' } else { '[' });
            let mut count = 0;
            for item in value.try_iter().into_iter().flatten() {
                if count > 0 {
                    out.push_str(", ");
                }
                count += 1;
                repr(&item, out);
            }
            if tuple && count == 1 {
                out.push(',');
            }
            out.push(if tuple { ')' } else { ']' });
        }
        ValueKind::Map => {
            out.push('{');
            for (i, key) in value.try_iter().into_iter().flatten().enumerate() {
                if i > 0 {
                    out.push_str(", ");
                }
                repr(&key, out);
                out.push_str(": ");
                repr(&value.get_item(&key).unwrap_or_default(), out);
            }
            out.push('}');
        }
        _ => out.push_str(&value.to_string()),
    }
}

fn repr_string(text: &str, out: &mut String) {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.push(quote);
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c == quote => out.extend(['\\', c]),
            c if c < ' ' || c == '\u{7f}' => out.push_str(&format!("\\x{:02x}", u32::from(c))),
            c => out.push(c),
        }
    }
    out.push(quote);
}

/// Writes integers unchanged and floats by the rules of Python's `repr`.
pub(super) fn push_number(value: &Value, out: &mut String) {
    if value.is_integer() {
        out.push_str(&value.to_string());
    } else {
        let number = f64::try_from(value.clone()).unwrap_or(f64::NAN);
        out.push_str(&float_repr(number));
    }
}

/// The shortest digits that parse to the same float, in Python's notation.
fn float_repr(number: f64) -> String {
    if !number.is_finite() {
        return format!("{number}").to_lowercase();
    }
    let scientific = shortest(number);
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if number != 0.0 && !(-4..16).contains(&exponent) {
        let sign = if exponent < 0 { '-' } else { '+' };
        return format!("{mantissa}e{sign}{:02}", exponent.abs());
    }
    let sign = if number.is_sign_negative() { "-" } else { "" };
    let digits = mantissa.trim_start_matches('-').replace('.', "");
    let before = usize::try_from(exponent + 1).unwrap_or(0);
    if before == 0 {
        let zeros = "0".repeat(exponent.unsigned_abs() as usize - 1);
        return format!("{sign}0.{zeros}{digits}");
    }
    match digits.split_at_checked(before) {
        Some((whole, fraction)) if !fraction.is_empty() => format!("{sign}{whole}.{fraction}"),
        _ => format!("{sign}{digits:0<before$}.0"),
    }
}

/// The shortest digits with an exponent. Of two candidates that are equally short and near, Rust
/// chooses the greater and Python the even one.
fn shortest(number: f64) -> String {
    let shortest = format!("{number:e}");
    let count = shortest.bytes().take_while(|it| *it != b'e').filter(u8::is_ascii_digit).count();
    let nearest = format!("{number:.*e}", count - 1);
    if nearest.parse() == Ok(number) { nearest } else { shortest }
}

/// Methods of Python's `str` that templates use and minijinja-contrib does not have.
pub(super) fn method(
    state: &mut State<'_, '_>,
    value: &Value,
    method: &str,
    args: &[Value],
) -> Result<Value, Error> {
    if let (Some(text), Some(argument)) = (value.as_str(), args.first().and_then(Value::as_str)) {
        match (method, args.len()) {
            ("removeprefix", 1) => {
                return Ok(text.strip_prefix(argument).unwrap_or(text).into());
            }
            ("removesuffix", 1) => {
                return Ok(text.strip_suffix(argument).unwrap_or(text).into());
            }
            ("partition", 1) => {
                let (head, tail) = text.split_once(argument).unwrap_or((text, ""));
                let found = if head.len() == text.len() { "" } else { argument };
                return Ok(list([head, found, tail]));
            }
            ("rsplit", 1) => return Ok(list(text.split(argument))),
            ("rsplit", 2) => {
                let most = args[1].as_usize().unwrap_or(usize::MAX - 1);
                let mut parts: Vec<_> = text.rsplitn(most + 1, argument).collect();
                parts.reverse();
                return Ok(list(parts));
            }
            _ => {}
        }
    }
    minijinja_contrib::pycompat::unknown_method_callback(state, value, method, args)
}

fn list<'a>(items: impl IntoIterator<Item = &'a str>) -> Value {
    Value::from(items.into_iter().map(Value::from).collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Expectations printed by Python's `repr`.
    #[test]
    fn floats_print_as_python_prints_them() {
        for (number, expected) in [
            (0.0, "0.0"),
            (-0.0, "-0.0"),
            (1.0, "1.0"),
            (0.1, "0.1"),
            (1e15, "1000000000000000.0"),
            (1e16, "1e+16"),
            (1.5e16, "1.5e+16"),
            (0.0001, "0.0001"),
            (0.00001, "1e-05"),
            (1.25e-7, "1.25e-07"),
            (1e100, "1e+100"),
            (123_456.789, "123456.789"),
            (-0.001_234, "-0.001234"),
            (12.0, "12.0"),
            (2f64.powi(-44), "5.684341886080802e-14"),
            (-650_284_537_050_097.0 - 0.25, "-650284537050097.2"),
            (1_544_534_887_418_775.0 + 0.75, "1544534887418775.8"),
            (2f64.powi(-1022), "2.2250738585072014e-308"),
            (5e-324, "5e-324"),
            (9_007_199_254_740_992.0, "9007199254740992.0"),
            (f64::NAN, "nan"),
            (f64::INFINITY, "inf"),
            (f64::NEG_INFINITY, "-inf"),
        ] {
            assert_eq!(float_repr(number), expected);
        }
    }
}
