//! Why lines failed: a file of failed lines as a few kinds, the first message of each and how often
//! it occurred.

use serde::Deserialize;
use serde_json::Value;
use std::io::{self, Write};

/// Kinds that are told apart; the rest is counted together.
const KINDS: usize = 8;
/// Letters of a message that are shown.
const SHOWN: usize = 200;

/// Counts the failed lines that are written to it, by kind.
#[derive(Default)]
pub(crate) struct FailureTally {
    kinds: Vec<FailureKind>,
    others: usize,
    /// A line that has not ended yet.
    partial: Vec<u8>,
}

/// Failures with the same status and code.
pub(crate) struct FailureKind {
    name: String,
    /// What the first of them said, and whose line it was.
    message: String,
    custom_id: String,
    count: usize,
}

/// A line of an error file, in OpenAI's form.
#[derive(Deserialize)]
struct FailedLine {
    #[serde(default)]
    custom_id: Value,
    response: Option<FailedResponse>,
    error: Option<LineError>,
}

#[derive(Deserialize)]
struct FailedResponse {
    status_code: u16,
    body: Value,
}

#[derive(Deserialize)]
struct LineError {
    code: String,
    message: String,
}

impl FailureTally {
    pub(crate) fn is_empty(&self) -> bool {
        self.kinds.is_empty() && self.others == 0
    }

    pub(crate) fn kinds(&self) -> &[FailureKind] {
        &self.kinds
    }

    /// The report, a line for each kind.
    pub(crate) fn report(&self, out: &mut impl Write) -> io::Result<()> {
        for FailureKind { name, message, custom_id, count } in &self.kinds {
            writeln!(out, "  {count} failed: {name}: {message} (first: {custom_id})")?;
        }
        match self.others {
            0 => Ok(()),
            others => writeln!(out, "  {others} failed for other reasons"),
        }
    }

    fn add(&mut self, line: &[u8]) {
        let Ok(FailedLine { custom_id, response, error }) = serde_json::from_slice(line) else {
            return;
        };
        let (name, message) = match (response, error) {
            (Some(response), _) => response.reason(),
            (None, Some(error)) => (error.code, error.message),
            (None, None) => return,
        };
        if let Some(kind) = self.kinds.iter_mut().find(|kind| kind.name == name) {
            kind.count += 1;
        } else if self.kinds.len() < KINDS {
            let custom_id = custom_id.as_str().map_or_else(|| custom_id.to_string(), str::to_owned);
            let message = one_line(&message);
            self.kinds.push(FailureKind { name, message, custom_id, count: 1 });
        } else {
            self.others += 1;
        }
    }
}

impl FailureKind {
    /// The first failure of its kind, as it is told while a run goes on.
    pub(crate) fn first(&self) -> String {
        let Self { name, message, custom_id, .. } = self;
        format!("{custom_id} failed: {name}: {message}")
    }
}

impl FailedResponse {
    /// The status with the code or type that the body names, and its message, in the forms of
    /// OpenAI, vLLM and FastAPI.
    fn reason(self) -> (String, String) {
        let Self { status_code, body } = self;
        let error = if body["error"].is_object() { &body["error"] } else { &body };
        let code = ["code", "type"].iter().find_map(|field| error[*field].as_str());
        let code = code.map_or_else(String::new, |code| format!(" {code}"));
        let told = ["message", "detail"].iter().find_map(|field| error[*field].as_str());
        let told = told.or(body["error"].as_str()).or(body.as_str());
        let message = told.map_or_else(|| body.to_string(), str::to_owned);
        (format!("status {status_code}{code}"), message)
    }
}

/// The beginning of a message, on one line.
fn one_line(message: &str) -> String {
    let words = message.split_whitespace().collect::<Vec<_>>().join(" ");
    match words.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("{}…", &words[..end]),
        None => words,
    }
}

impl Write for FailureTally {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut rest = bytes;
        while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
            self.partial.extend_from_slice(&rest[..end]);
            let line = std::mem::take(&mut self.partial);
            self.add(&line);
            rest = &rest[end + 1..];
        }
        self.partial.extend_from_slice(rest);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_are_counted_by_kind_with_the_message_of_the_first() {
        let mut tally = FailureTally::default();
        let lines = r#"{"custom_id":"a","response":{"status_code":404,"body":{"error":{"code":"model_not_found","message":"no\nmodel x"}}},"error":null}
{"custom_id":"b","response":{"status_code":404,"body":{"error":{"code":"model_not_found","message":"no model y"}}},"error":null}
{"custom_id":"c","response":{"status_code":400,"body":{"object":"error","message":"too long","type":"BadRequestError","code":400}},"error":null}
{"custom_id":"d","response":{"status_code":500,"body":"oops"},"error":null}
{"custom_id":7,"response":null,"error":{"code":"upstream_lost","message":"all attempts failed"}}
"#;
        // In pieces, as a download arrives.
        for piece in lines.as_bytes().chunks(7) {
            tally.write_all(piece).unwrap();
        }
        let mut out = Vec::new();
        tally.report(&mut out).unwrap();
        assert_eq!(
            String::from_utf8(out).unwrap(),
            "  2 failed: status 404 model_not_found: no model x (first: a)\n  \
               1 failed: status 400 BadRequestError: too long (first: c)\n  \
               1 failed: status 500: oops (first: d)\n  \
               1 failed: upstream_lost: all attempts failed (first: 7)\n"
        );
        assert_eq!(tally.kinds()[0].first(), "a failed: status 404 model_not_found: no model x");
    }

    #[test]
    fn no_more_kinds_than_can_be_read_are_kept_and_a_long_message_is_cut() {
        let mut tally = FailureTally::default();
        for code in 0..20 {
            let message = "word ".repeat(100);
            let error = serde_json::json!({"code": format!("c{code}"), "message": message});
            let line = serde_json::json!({"custom_id": "x", "response": null, "error": error});
            writeln!(tally, "{line}").unwrap();
        }
        assert_eq!((tally.kinds().len(), tally.others), (KINDS, 12));
        assert!(tally.kinds()[0].message.chars().count() == SHOWN + 1);
    }
}
