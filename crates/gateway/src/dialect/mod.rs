//! Client APIs: one file for each, one line in [`ALL`].
//!
//! A dialect knows its paths, how routing gets the prompt from a body, how a stream ends, and the
//! form of errors. Everything else is the same for all APIs. A dialect does not translate: engines
//! get the body of the client, so an engine must support the API that the client uses.

pub(crate) mod chat;
mod completions;
mod messages;
mod promptless;
mod response_items;
mod response_tools;
mod responses;
pub(crate) mod stream_end;

use bytes::Bytes;
use hyper::StatusCode;
use serde_json::{Map, Value, json};
use std::fmt;
use std::hash::{Hash, Hasher};
use wornpath_routing::{Messages, Prompt, PromptReading};

/// All client APIs. A new one is a file of its own and a line here.
const ALL: [&dyn Dialect; 8] = [
    &chat::Chat,
    &completions::Completions,
    &promptless::Embeddings,
    &responses::Responses,
    &promptless::Rerank,
    &messages::Messages,
    &promptless::Tokenize,
    &promptless::Other,
];

/// The parts of a client API in which it differs from the others.
pub(crate) trait Dialect: Sync {
    /// Its name in metrics and logs.
    fn name(&self) -> &'static str;

    /// The paths at which engines serve it.
    fn paths(&self) -> &'static [&'static str];

    /// Whether the format of bodies and streams is known; false at paths that no dialect names.
    fn is_known(&self) -> bool {
        true
    }

    /// Whether engines generate answers token by token.
    fn generates(&self) -> bool {
        false
    }

    /// Whether the chat template may render numbers of the body, which must then be parsed exactly.
    fn renders_numbers(&self) -> bool {
        false
    }

    /// The messages of a body and its other fields, where the API allows to parse them without
    /// building a tree of the whole body.
    fn take_messages(&self, body: &Bytes) -> Option<(Messages, Map<String, Value>)> {
        let _ = body;
        None
    }

    /// The prompt, which it removes from the fields of a body, and how it is read.
    fn prompt(&self, fields: &mut Map<String, Value>, reading: &mut PromptReading) -> Prompt {
        let _ = (fields, reading);
        Prompt::default()
    }

    /// The events or data that end a stream: the value of its last `event:` or `data:` line.
    fn end_words(&self) -> &'static [&'static [u8]] {
        &[b"[DONE]"]
    }

    /// Whether a chunk of a stream may end inside an event.
    fn may_split_events(&self) -> bool {
        false
    }

    /// Whether events of a stream have a `sequence_number`.
    fn numbers_events(&self) -> bool {
        false
    }

    /// Whether engines report the token counts of a stream only to requests that ask for them by
    /// `stream_options`.
    fn reports_usage_on_request(&self) -> bool {
        false
    }

    /// Whether token counts are valid only in the last event of a complete stream.
    fn counts_only_at_the_end(&self) -> bool {
        false
    }

    /// The JSON body of an error, in the form that clients of the API expect.
    fn error_body(&self, kind: &str, status: StatusCode, message: &str) -> Value {
        json!({"error": {"message": message, "type": kind, "param": null, "code": status.as_u16()}})
    }

    /// The event that ends a broken stream; `number` is its sequence number.
    fn error_event(&self, kind: &str, message: &str, number: u64) -> Value {
        let _ = number;
        self.error_body(kind, StatusCode::BAD_GATEWAY, message)
    }
}

/// A client API: a cheap handle to its dialect.
#[derive(Clone, Copy)]
pub struct Api(&'static dyn Dialect);

impl Api {
    /// `/v1/chat/completions`
    pub const CHAT: Self = Self(ALL[0]);
    /// Any path that no dialect names.
    pub const OTHER: Self = Self(ALL[ALL.len() - 1]);

    /// All APIs; the last one is for other paths.
    pub fn all() -> impl ExactSizeIterator<Item = Self> {
        ALL.into_iter().map(Self)
    }

    /// The API of a path.
    #[must_use]
    pub fn at(path: &str) -> Self {
        Self::all().find(|api| api.0.paths().contains(&path)).unwrap_or(Self::OTHER)
    }

    /// The API whose error format applies at a path. Paths below `/v1/messages` have Anthropic's
    /// too.
    #[must_use]
    pub fn of_errors_at(path: &str) -> Self {
        if path.starts_with("/v1/messages/") { Self::at("/v1/messages") } else { Self::at(path) }
    }

    /// Whether engines generate the answers of this API token by token.
    #[must_use]
    pub fn generates(self) -> bool {
        self.0.generates()
    }

    /// Its name in metrics and logs.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.0.name()
    }

    pub(crate) fn dialect(self) -> &'static dyn Dialect {
        self.0
    }
}

impl PartialEq for Api {
    fn eq(&self, other: &Self) -> bool {
        self.name() == other.name()
    }
}

impl Eq for Api {}

impl Hash for Api {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.name().hash(state);
    }
}

impl fmt::Debug for Api {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn the_table_has_every_dialect_and_no_duplicate_name_or_path() {
        let names: HashSet<_> = Api::all().map(Api::name).collect();
        assert_eq!(names.len(), ALL.len());
        let paths: Vec<_> = ALL.iter().flat_map(|dialect| dialect.paths()).collect();
        assert_eq!(paths.iter().collect::<HashSet<_>>().len(), paths.len());
        for dialect in ALL.iter().filter(|dialect| dialect.is_known()) {
            assert!(!dialect.paths().is_empty(), "{}", dialect.name());
        }
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/src/dialect");
        let mut implemented = 0;
        for entry in std::fs::read_dir(folder).unwrap() {
            let text = std::fs::read_to_string(entry.unwrap().path()).unwrap();
            implemented += text.lines().filter(|line| line.starts_with("impl Dialect for")).count();
        }
        assert_eq!(implemented, ALL.len(), "a dialect is missing from `ALL`");
    }

    #[test]
    fn a_path_selects_its_api_and_its_error_format() {
        assert_eq!(Api::at("/v1/chat/completions"), Api::CHAT);
        assert_eq!(Api::at("/rerank").name(), "rerank");
        assert_eq!(Api::at("/v1/audio/transcriptions"), Api::OTHER);
        assert_eq!(Api::of_errors_at("/v1/messages/count_tokens").name(), "messages");
        assert_eq!(Api::of_errors_at("/v1/completions").name(), "completions");
    }
}
