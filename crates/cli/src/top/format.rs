//! Numbers in a short form for people; an unknown one is a dash.

use serde_json::Value;

const NONE: &str = "–";

/// A whole number, with a unit prefix from ten thousand on.
pub(super) fn count(value: &Value) -> String {
    match value.as_f64() {
        None => NONE.to_owned(),
        Some(value) if value >= 1e9 => format!("{:.1}G", value / 1e9),
        Some(value) if value >= 1e6 => format!("{:.1}M", value / 1e6),
        Some(value) if value >= 1e4 => format!("{:.1}k", value / 1e3),
        Some(value) => format!("{value:.0}"),
    }
}

/// A rate per second.
pub(super) fn rate(value: &Value) -> String {
    match value.as_f64() {
        Some(value) if value > 0.0 && value < 10.0 => format!("{value:.1}"),
        _ => count(value),
    }
}

/// A share as a percentage.
pub(super) fn percent(value: &Value) -> String {
    value.as_f64().map_or_else(|| NONE.to_owned(), |share| format!("{:.0}%", share * 100.0))
}

/// A time in seconds, in a fitting unit.
pub(super) fn seconds(value: &Value) -> String {
    match value.as_f64() {
        None => NONE.to_owned(),
        Some(time) if time < 0.01 => format!("{:.1} ms", time * 1e3),
        Some(time) if time < 1.0 => format!("{:.0} ms", time * 1e3),
        Some(time) if time < 100.0 => format!("{time:.1} s"),
        Some(time) if time < 7200.0 => format!("{:.0} min", time / 60.0),
        Some(time) => format!("{:.1} h", time / 3600.0),
    }
}

/// A time in microseconds, in a fitting unit.
pub(super) fn micros(value: &Value) -> String {
    seconds(&value.as_f64().map_or(Value::Null, |time| (time / 1e6).into()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn numbers_have_as_many_digits_as_are_useful() {
        assert_eq!(count(&json!(9_999)), "9999");
        assert_eq!(count(&json!(12_345)), "12.3k");
        assert_eq!(count(&json!(3_400_000)), "3.4M");
        assert_eq!(rate(&json!(0.0)), "0");
        assert_eq!(rate(&json!(2.25)), "2.2");
        assert_eq!(percent(&json!(0.756)), "76%");
        assert_eq!(seconds(&json!(0.0042)), "4.2 ms");
        assert_eq!(micros(&json!(32_000)), "32 ms");
        assert_eq!(seconds(&json!(3000)), "50 min");
        assert_eq!((count(&Value::Null), seconds(&Value::Null)), (NONE.into(), NONE.into()));
    }
}
