//! One line of an input: its id, its API and its body.

use serde_json::Value;
use std::time::Duration;

/// An API that lines can use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Interface {
    /// `/v1/chat/completions`
    Chat,
    /// `/v1/completions`
    Completions,
    /// `/v1/embeddings`
    Embeddings,
    /// `/v1/responses`
    Responses,
}

impl Interface {
    /// All APIs.
    pub const ALL: [Self; 4] = [Self::Chat, Self::Completions, Self::Embeddings, Self::Responses];

    /// The HTTP path.
    #[must_use]
    pub const fn path(self) -> &'static str {
        match self {
            Self::Chat => "/v1/chat/completions",
            Self::Completions => "/v1/completions",
            Self::Embeddings => "/v1/embeddings",
            Self::Responses => "/v1/responses",
        }
    }

    /// The API at a path.
    #[must_use]
    pub fn at(path: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|known| known.path() == path)
    }

    /// The API of a line of the Batch API, or of a plain request body.
    #[must_use]
    pub fn of_line(line: &Value) -> Option<Self> {
        let body = if line["body"].is_object() { &line["body"] } else { line };
        line["url"].as_str().and_then(Self::at).or_else(|| Self::of_body(body))
    }

    /// Whether prefixes found in caches are counted on. Engines report no cached tokens for
    /// embeddings, so nothing would confirm them, and bidirectional models cannot reuse any.
    #[must_use]
    pub const fn reuses_prefixes(self) -> bool {
        !matches!(self, Self::Embeddings)
    }

    /// The API of a body without a `url`.
    fn of_body(body: &Value) -> Option<Self> {
        let has = |field: &str| !body[field].is_null();
        match (has("messages"), has("prompt"), has("input")) {
            (true, _, _) => Some(Self::Chat),
            (_, true, _) => Some(Self::Completions),
            (_, _, true) => Some(Self::Embeddings),
            _ => None,
        }
    }
}

/// The accepted forms of a line.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LineForm {
    /// Lines of the Batch API, all for one API.
    Batch(Interface),
    /// Lines of the Batch API for any API, and plain request bodies.
    Free,
}

/// Why a line is invalid, with the codes of the Batch API.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{message}")]
pub struct LineProblem {
    /// The machine-readable code.
    pub code: &'static str,
    /// The explanation.
    pub message: String,
    /// The field at fault.
    pub param: Option<&'static str>,
}

/// A parsed line.
#[derive(Clone, PartialEq, Debug)]
pub struct BatchLine {
    /// The id; none for a plain body.
    pub custom_id: Option<String>,
    /// The API of the request.
    pub interface: Interface,
    /// The request body.
    pub body: Value,
    /// The line's own deadline, from the start of its run or the creation of its batch.
    pub deadline: Option<Duration>,
}

impl BatchLine {
    /// Parses a line.
    ///
    /// # Errors
    /// If it does not have an accepted form.
    pub fn parse(text: &[u8], form: LineForm) -> Result<Self, LineProblem> {
        let value: Value = serde_json::from_slice(text).map_err(|error| {
            problem("invalid_json_line", format!("line is not valid JSON: {error}"), None)
        })?;
        if !value.is_object() {
            let message = "line is not a JSON object".to_owned();
            return Err(problem("invalid_json_line", message, None));
        }
        if form == LineForm::Free && value["body"].is_null() && value["url"].is_null() {
            let none = || {
                let message = "none of `messages`, `prompt`, `input` and `body`".to_owned();
                problem("missing_required_parameter", message, Some("body"))
            };
            let interface = Interface::of_body(&value).ok_or_else(none)?;
            return Ok(Self { custom_id: None, interface, body: value, deadline: None });
        }
        Self::of_batch(value, form)
    }

    fn of_batch(mut value: Value, form: LineForm) -> Result<Self, LineProblem> {
        let text = |field: &'static str| match &value[field] {
            Value::String(text) if !text.is_empty() => Ok(text.as_str()),
            Value::Null | Value::String(_) => {
                let message = format!("missing required parameter: `{field}`");
                Err(problem("missing_required_parameter", message, Some(field)))
            }
            other => {
                let message = format!("`{field}` is {other}; it must be a string");
                Err(problem("invalid_type", message, Some(field)))
            }
        };
        let custom_id = text("custom_id")?.to_owned();
        let method = if value["method"].is_null() && form == LineForm::Free {
            "POST"
        } else {
            text("method")?
        };
        if method != "POST" {
            let message = format!("`method` is `{method}`; it must be `POST`");
            return Err(problem("invalid_method", message, Some("method")));
        }
        let url = text("url")?;
        let interface = Interface::at(url).ok_or_else(|| {
            let known: Vec<_> = Interface::ALL.iter().map(|known| known.path()).collect();
            let message = format!("`url` is `{url}`; it must be one of {}", known.join(", "));
            problem("invalid_url", message, Some("url"))
        })?;
        if let LineForm::Batch(wanted) = form
            && wanted != interface
        {
            let message = format!("`url` is `{url}`; the batch is for `{}`", wanted.path());
            return Err(problem("mismatched_url", message, Some("url")));
        }
        let deadline = match &value["deadline"] {
            Value::Null => None,
            text => Some(text.as_str().and_then(duration).ok_or_else(|| {
                let message = format!(
                    "`deadline` is {text}; it must be a duration such as \"90s\", \"30m\", \"24h\" or \"7d\""
                );
                problem("invalid_value", message, Some("deadline"))
            })?),
        };
        match value["body"].take() {
            body @ Value::Object(_) => {
                Ok(Self { custom_id: Some(custom_id), interface, body, deadline })
            }
            Value::Null => {
                let message = "missing required parameter: `body`".to_owned();
                Err(problem("missing_required_parameter", message, Some("body")))
            }
            _ => {
                let message = "`body` is not an object".to_owned();
                Err(problem("invalid_type", message, Some("body")))
            }
        }
    }
}

/// A duration in whole seconds, minutes, hours or days, such as `24h`; at least one second.
#[must_use]
pub fn duration(text: &str) -> Option<Duration> {
    let (number, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    let unit = match unit {
        "s" => 1,
        "m" => 60,
        "h" => 3_600,
        "d" => 86_400,
        _ => return None,
    };
    let number: u64 = number.parse().ok().filter(|number| *number > 0)?;
    number.checked_mul(unit).map(Duration::from_secs)
}

const fn problem(code: &'static str, message: String, param: Option<&'static str>) -> LineProblem {
    LineProblem { code, message, param }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(text: &str, form: LineForm) -> (&'static str, String) {
        let problem = BatchLine::parse(text.as_bytes(), form).unwrap_err();
        (problem.code, problem.message)
    }

    #[test]
    fn a_batch_line_and_a_plain_body_are_parsed() {
        let line =
            br#"{"custom_id":"a","method":"POST","url":"/v1/embeddings","body":{"input":"x"}}"#;
        let parsed = BatchLine::parse(line, LineForm::Batch(Interface::Embeddings)).unwrap();
        assert_eq!(
            (parsed.custom_id.as_deref(), parsed.interface),
            (Some("a"), Interface::Embeddings)
        );
        let alone = BatchLine::parse(br#"{"model":"m","prompt":"x"}"#, LineForm::Free).unwrap();
        assert_eq!((alone.custom_id, alone.interface), (None, Interface::Completions));
    }

    #[test]
    fn a_line_has_a_deadline_of_its_own_or_none() {
        let line = |deadline: &str| {
            let text = format!(
                r#"{{"custom_id":"a","url":"/v1/completions","deadline":{deadline},"body":{{}}}}"#
            );
            BatchLine::parse(text.as_bytes(), LineForm::Free)
        };
        assert_eq!(line("null").unwrap().deadline, None);
        assert_eq!(line("\"10m\"").unwrap().deadline, Some(Duration::from_secs(600)));
        for wrong in ["10", "\"\"", "\"10\"", "\"0s\"", "\"1w\"", "\"99999999999999999999d\""] {
            let problem = line(wrong).unwrap_err();
            assert_eq!((problem.code, problem.param), ("invalid_value", Some("deadline")));
        }
        let message = line("\"soon\"").unwrap_err().message;
        assert!(message.starts_with("`deadline` is \"soon\"; it must be a duration such as"));
    }

    #[test]
    fn an_invalid_line_has_the_code_of_its_problem() {
        let batch = LineForm::Batch(Interface::Chat);
        let cases = [
            ("{", "invalid_json_line"),
            ("[]", "invalid_json_line"),
            ("{}", "missing_required_parameter"),
            (r#"{"custom_id":7}"#, "invalid_type"),
            (r#"{"custom_id":"a","method":"GET"}"#, "invalid_method"),
            (r#"{"custom_id":"a","method":"POST","url":"/v1/x"}"#, "invalid_url"),
            (r#"{"custom_id":"a","method":"POST","url":"/v1/embeddings"}"#, "mismatched_url"),
            (
                r#"{"custom_id":"a","method":"POST","url":"/v1/chat/completions"}"#,
                "missing_required_parameter",
            ),
            (
                r#"{"custom_id":"a","method":"POST","url":"/v1/chat/completions","body":3}"#,
                "invalid_type",
            ),
        ];
        for (line, code) in cases {
            assert_eq!(refused(line, batch).0, code, "{line}");
        }
        assert_eq!(
            refused("{}", LineForm::Free).1,
            "none of `messages`, `prompt`, `input` and `body`"
        );
    }
}
