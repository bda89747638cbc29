//! Client APIs: one file for each, one line in [`ALL`].
//!
//! A dialect says at which paths it is spoken, what routing needs of a body, how a stream ends, and
//! how errors look. Everything else is the same for all: bodies are passed on as they are.

pub(crate) mod chat;
mod completions;
mod messages;
mod promptless;
mod responses;
pub(crate) mod stream_end;
pub(crate) mod stream_error;

use bytes::Bytes;
use hyper::StatusCode;
use serde_json::{Map, Value, json};
use std::fmt;
use std::hash::{Hash, Hasher};
use wornpath_routing::{Messages, Prompt};

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

/// How clients of one API speak.
pub(crate) trait Dialect: Sync {
    /// Its name in metrics and logs.
    fn name(&self) -> &'static str;

    /// The paths at which engines speak it.
    fn paths(&self) -> &'static [&'static str];

    /// Whether bodies and streams are as described here; not so at paths that no dialect names.
    fn is_known(&self) -> bool {
        true
    }

    /// Whether engines generate answers token by token.
    fn generates(&self) -> bool {
        false
    }

    /// Whether the chat template may render numbers of the body, which must be read exactly then.
    fn renders_numbers(&self) -> bool {
        false
    }

    /// Whether engines convert the body to a chat before they apply the template.
    fn is_converted(&self) -> bool {
        false
    }

    /// Whether engines heed `cache_salt` in the body.
    fn takes_salt(&self) -> bool {
        true
    }

    /// The messages of a body and its other fields, if they can be read without a tree of the whole.
    fn take_messages(&self, body: &Bytes) -> Option<(Messages, Map<String, Value>)> {
        let _ = body;
        None
    }

    /// The prompt, taken out of the fields of a body.
    fn prompt(&self, fields: &mut Map<String, Value>) -> Prompt {
        let _ = fields;
        Prompt::default()
    }

    /// What a line of a stream begins with that says that the stream is over.
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

    /// Whether only the end of a whole stream has the counts of tokens.
    fn counts_only_at_the_end(&self) -> bool {
        false
    }

    /// An error as clients expect it.
    fn error_body(&self, kind: &str, status: StatusCode, message: &str) -> Value {
        json!({"error": {"message": message, "type": kind, "param": null, "code": status.as_u16()}})
    }

    /// The last event of a stream that broke, where it is the event of that number.
    fn error_event(&self, kind: &str, message: &str, number: u64) -> Value {
        let _ = number;
        self.error_body(kind, StatusCode::BAD_GATEWAY, message)
    }
}

/// A client API.
#[derive(Clone, Copy)]
pub struct Api(&'static dyn Dialect);

impl Api {
    /// `/v1/chat/completions`
    pub const CHAT: Self = Self(ALL[0]);
    /// Any path that no dialect names.
    pub const OTHER: Self = Self(ALL[ALL.len() - 1]);

    /// All of them, the last one for other paths.
    pub fn all() -> impl ExactSizeIterator<Item = Self> {
        ALL.into_iter().map(Self)
    }

    /// The API that is spoken at a path.
    #[must_use]
    pub fn at(path: &str) -> Self {
        Self::all().find(|api| api.0.paths().contains(&path)).unwrap_or(Self::OTHER)
    }

    /// The API in whose form errors at a path are answered: also below the paths of one with errors
    /// of its own.
    #[must_use]
    pub fn of_errors_at(path: &str) -> Self {
        if path.starts_with("/v1/messages/") { Self::at("/v1/messages") } else { Self::at(path) }
    }

    /// Whether engines generate its answers token by token.
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
    fn every_file_of_a_dialect_is_in_the_table_and_no_name_or_path_is_there_twice() {
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
        assert_eq!(implemented, ALL.len(), "a dialect is missing in the table");
    }

    #[test]
    fn a_path_is_spoken_in_its_dialect() {
        assert_eq!(Api::at("/v1/chat/completions"), Api::CHAT);
        assert_eq!(Api::at("/rerank").name(), "rerank");
        assert_eq!(Api::at("/v1/audio/transcriptions"), Api::OTHER);
        assert_eq!(Api::of_errors_at("/v1/messages/count_tokens").name(), "messages");
        assert_eq!(Api::of_errors_at("/v1/completions").name(), "completions");
    }
}
