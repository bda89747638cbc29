//! Data planes that ask with little more than a client's headers and body: without a path, without
//! their processing modes, and with the end of their messages right behind the body.

use super::proto::{HttpHeaders, ProcessingRequest};
use serde::Deserialize;
use serde::de::IgnoredAny;

/// The path of a request whose data plane does not tell it, until its body is there.
pub(super) const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";

/// What it means that a data plane sends no more, before there is an answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum NoMoreMessages {
    /// Its client disconnected.
    ClientLeft,
    /// It has said everything, and waits for the answer.
    IsWhole,
}

impl NoMoreMessages {
    /// A data plane that tells its modes keeps the stream open for the response.
    pub(super) const fn of(first: &ProcessingRequest) -> Self {
        if first.protocol_config.is_some() { Self::ClientLeft } else { Self::IsWhole }
    }
}

/// Whether the path of a request with a body is missing.
pub(super) fn is_pathless(head: &HttpHeaders) -> bool {
    let headers = head.headers.as_ref().map(|map| &*map.headers).unwrap_or_default();
    !head.end_of_stream && headers.iter().all(|header| header.key != ":path")
}

#[derive(Deserialize)]
struct Fields {
    messages: Option<IgnoredAny>,
    prompt: Option<IgnoredAny>,
}

/// The path of the API that has such bodies.
pub(super) fn path_of(body: &[u8]) -> &'static str {
    match serde_json::from_slice(body) {
        Ok(Fields { messages: None, prompt: Some(_) }) => COMPLETIONS,
        _ => CHAT,
    }
}
