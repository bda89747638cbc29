//! One line of the access log.

use std::fmt::{self, Write};
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use wornpath_config::LogFormat;
use wornpath_routing::Name;

use crate::dialect::Api;
use crate::observe::summary::{RequestEnd, RequestSummary};
use crate::observe::timestamp::Timestamp;

/// Bytes of a reason; a message may quote what the client sent.
const MAX_REASON: usize = 512;

/// What a line says of a request.
pub(super) struct AccessRecord {
    ended_at: Timestamp,
    id: String,
    api: Api,
    tenant: Option<Name>,
    model: Name,
    pod: Option<Name>,
    profile: Name,
    status: u16,
    ended: RequestEnd,
    reason: Option<Arc<str>>,
    prompt_tokens: Option<u64>,
    cached_tokens: Option<u64>,
    output_tokens: Option<u64>,
    waited: Duration,
    first_token: Option<Duration>,
    total: Duration,
    retries: u32,
    trace: Option<u128>,
}

impl AccessRecord {
    pub(super) fn new(record: &RequestSummary, ended_at: Timestamp) -> Self {
        let own = record.counted();
        Self {
            ended_at,
            id: record.id.clone(),
            api: record.api,
            tenant: record.tenant.clone(),
            model: record.model.clone(),
            pod: record.pod.as_ref().map(|(_, name)| name.clone()),
            profile: record.profile.clone(),
            status: record.status,
            ended: record.ended,
            reason: record.reason.clone(),
            prompt_tokens: record.usage.prompt_tokens.or(own.prompt_tokens),
            cached_tokens: record.computed().1.cached_tokens,
            output_tokens: record.usage.output_tokens.or(own.output_tokens),
            waited: record.waited,
            // A response that is not streamed has its first token with its first byte.
            first_token: record.first_token.or(record.first_byte),
            total: record.total,
            retries: record.retries,
            trace: record.trace_id(),
        }
    }

    /// Appends the line, with its end.
    pub(super) fn write(&self, format: LogFormat, text: &mut String) {
        match format {
            LogFormat::Json => {
                let object: serde_json::Map<_, _> =
                    self.fields().into_iter().map(|(name, it)| (name.to_owned(), it)).collect();
                // Writing to a string cannot fail.
                let _ = write!(text, "{}", Value::Object(object));
            }
            LogFormat::Text => self.write_text(text),
        }
        text.push('\n');
    }

    /// Times are in milliseconds.
    fn fields(&self) -> [(&'static str, Value); 18] {
        let name = |name: &Option<Name>| json!(name.as_ref().map(Name::as_str));
        [
            ("time", json!(self.ended_at.to_string())),
            ("id", json!(self.id)),
            ("api", json!(self.api.name())),
            ("tenant", name(&self.tenant)),
            ("model", json!(self.model.as_str())),
            ("profile", json!(self.profile.as_str())),
            ("pod", name(&self.pod)),
            ("status", json!(self.status)),
            ("end", json!(self.ended.word())),
            ("reason", json!(self.reason.as_deref().map(shortened))),
            ("prompt_tokens", json!(self.prompt_tokens)),
            ("cached_tokens", json!(self.cached_tokens)),
            ("output_tokens", json!(self.output_tokens)),
            ("waited_ms", json!(millis(self.waited))),
            ("ttft_ms", json!(self.first_token.map(millis))),
            ("total_ms", json!(millis(self.total))),
            ("retries", json!(self.retries)),
            ("trace", json!(self.trace.map(|trace| format!("{trace:032x}")))),
        ]
    }

    fn write_text(&self, text: &mut String) {
        for (at, (name, value)) in self.fields().into_iter().enumerate() {
            let shown = TextValue(&value);
            // Writing to a string cannot fail. The time comes first, without its name.
            let _ = match at {
                0 => write!(text, "{shown}"),
                _ => write!(text, " {name}={shown}"),
            };
        }
    }
}

/// A value in the text format: quoted if it could be taken for something else.
struct TextValue<'a>(&'a Value);

impl fmt::Display for TextValue<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_plain = |text: &str| {
            let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._:/@+-".contains(&byte);
            !text.is_empty() && text != "-" && text.bytes().all(plain)
        };
        match self.0 {
            Value::Null => f.write_str("-"),
            Value::String(text) if is_plain(text) => f.write_str(text),
            other => other.fmt(f),
        }
    }
}

fn shortened(reason: &str) -> &str {
    &reason[..reason.floor_char_boundary(MAX_REASON)]
}

/// Milliseconds, to the microsecond.
fn millis(time: Duration) -> f64 {
    time.as_micros() as f64 / 1000.0
}
