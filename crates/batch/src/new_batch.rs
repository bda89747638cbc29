//! The parameters of a new batch, within OpenAI's limits: the journal keeps them.

use crate::error::BatchError;
use serde_json::{Map, Value};
use wornpath_jobs::duration;

/// OpenAI's limits of `metadata`: pairs, and characters of a key and of a value.
const MOST_PAIRS: usize = 16;
const MOST_KEY: usize = 64;
const MOST_VALUE: usize = 512;
/// Maximum characters of a completion window.
const MOST_WINDOW: usize = 20;
/// Characters of a client's text that an error message quotes.
const QUOTED: usize = 64;

/// Parses a completion window, such as `24h`, into its text and its seconds.
pub(crate) fn window(text: &str) -> Result<(String, u64), BatchError> {
    let wrong = || {
        let message = format!(
            "invalid value: `{}`; `completion_window` is a duration such as 24h, 30m or 7d",
            quoted(text)
        );
        BatchError::invalid(&message, Some("completion_window"))
    };
    let seconds = duration(text).filter(|_| text.len() <= MOST_WINDOW).map(|it| it.as_secs());
    Ok((text.to_owned(), seconds.ok_or_else(wrong)?))
}

/// `{"anchor": "created_at", "seconds": 86400}`
pub(crate) fn expires_after(value: &Value) -> Result<Option<u64>, BatchError> {
    if value.is_null() {
        return Ok(None);
    }
    let seconds = value["seconds"].as_u64().filter(|_| value["anchor"] == "created_at");
    let wrong = "`output_expires_after` must have the form {\"anchor\": \"created_at\", \"seconds\": 86400}";
    seconds.map(Some).ok_or_else(|| BatchError::invalid(wrong, Some("output_expires_after")))
}

pub(crate) fn identical_once(value: &Value) -> Result<bool, BatchError> {
    let wrong = || {
        let value = value.to_string();
        let message =
            format!("invalid value: {}; `identical_once` must be true or false", quoted(&value));
        BatchError::invalid(&message, Some("identical_once"))
    };
    if value.is_null() { Ok(false) } else { value.as_bool().ok_or_else(wrong) }
}

/// Checks `metadata` against OpenAI's limits.
pub(crate) fn metadata(value: &Value) -> Result<Option<Map<String, Value>>, BatchError> {
    let wrong = |message: String| Err(BatchError::invalid(&message, Some("metadata")));
    let pairs = match value {
        Value::Null => return Ok(None),
        Value::Object(pairs) => pairs,
        _ => return wrong("`metadata` must be an object of strings".to_owned()),
    };
    let count = pairs.len();
    if count > MOST_PAIRS {
        return wrong(format!("`metadata` has {count} keys; at most {MOST_PAIRS} are allowed"));
    }
    for (key, value) in pairs {
        let shown = quoted(key);
        let length = key.chars().count();
        if length > MOST_KEY {
            return wrong(format!(
                "key `{shown}` of `metadata` has {length} characters; at most {MOST_KEY} are allowed"
            ));
        }
        let Some(text) = value.as_str() else {
            return wrong(format!("value of key `{shown}` of `metadata` must be a string"));
        };
        let length = text.chars().count();
        if length > MOST_VALUE {
            return wrong(format!(
                "value of key `{shown}` of `metadata` has {length} characters; at most {MOST_VALUE} are allowed"
            ));
        }
    }
    Ok(Some(pairs.clone()))
}

/// The beginning of a client's text.
fn quoted(text: &str) -> String {
    match text.char_indices().nth(QUOTED) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn refusal(value: &Value) -> String {
        metadata(value).unwrap_err().to_string()
    }

    #[test]
    fn metadata_within_openais_limits_is_kept_as_it_is() {
        let pair = |number: usize| (format!("{number:0>64}"), json!("é".repeat(512)));
        let most: Map<String, Value> = (0..16).map(pair).collect();
        assert_eq!(metadata(&most.clone().into()), Ok(Some(most)));
        assert_eq!(metadata(&Value::Null), Ok(None));
        assert_eq!(metadata(&json!({})), Ok(Some(Map::new())));
    }

    #[test]
    fn metadata_beyond_a_limit_is_refused_with_the_key_the_length_and_the_rule() {
        let many: Map<String, Value> = (0..17).map(|key| (key.to_string(), json!(""))).collect();
        assert_eq!(refusal(&many.into()), "`metadata` has 17 keys; at most 16 are allowed");
        let value = "é".repeat(513);
        assert_eq!(
            refusal(&json!({ "note": value })),
            "value of key `note` of `metadata` has 513 characters; at most 512 are allowed"
        );
        let key = "k".repeat(900_000);
        assert_eq!(
            refusal(&json!({ key: "" })),
            format!(
                "key `{}…` of `metadata` has 900000 characters; at most 64 are allowed",
                "k".repeat(64)
            )
        );
        assert_eq!(refusal(&json!({"a": 1})), "value of key `a` of `metadata` must be a string");
        assert_eq!(refusal(&json!([])), "`metadata` must be an object of strings");
    }

    #[test]
    fn a_completion_window_is_short() {
        assert_eq!(window("24h").map(|(_, seconds)| seconds), Ok(86_400));
        for wrong in ["", "h", "0h", "-1h", "1w", "99999999999999999999d"] {
            assert!(window(wrong).is_err(), "{wrong}");
        }
        let error = window(&format!("{}1h", "0".repeat(900_000))).unwrap_err().to_string();
        assert!(error.len() < 200, "{error}");
    }
}
