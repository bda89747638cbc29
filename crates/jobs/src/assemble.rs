//! Assembles a streamed response to what it would be without streaming.
//!
//! Requests that share a prefix wait until the first of them has computed it. Only a stream shows
//! when that is: at its first byte. So the first request is streamed, unless its response would
//! differ, and its chunks are assembled here.

use crate::line::Interface;
use bytes::Bytes;
use serde_json::{Map, Value, json};
use wornpath_execution::Edit;

/// Fields with which the streamed response of some engine differs from the whole one.
const UNSTREAMED: [&str; 10] = [
    "tools",
    "functions",
    "logprobs",
    "top_logprobs",
    "prompt_logprobs",
    "echo",
    "best_of",
    "modalities",
    "audio",
    "kv_transfer_params",
];

/// The edits that make an engine stream the response; none if it must not.
#[must_use]
pub fn streaming(interface: Interface, body: &[u8]) -> Option<[Edit; 2]> {
    let is_set = |name: &&str| {
        wornpath_execution::field(body, name)
            .map_or(true, |value| value.is_some_and(|value| value != b"null" && value != b"false"))
    };
    let can = matches!(interface, Interface::Chat | Interface::Completions);
    (can && !UNSTREAMED.iter().any(is_set)).then(|| {
        [
            Edit::set("stream", &Value::Bool(true)),
            Edit::set("stream_options", &json!({"include_usage": true})),
        ]
    })
}

/// The edits that make an engine not stream the response.
#[must_use]
pub fn whole() -> [Edit; 2] {
    [Edit::remove("stream"), Edit::remove("stream_options")]
}

/// Why a stream has no response.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum StreamError {
    /// An event is invalid.
    #[error("stream has an invalid event: {0}")]
    Unreadable(String),
    /// The engine sent an error event.
    #[error("stream ended in an error: {0}")]
    Failed(String),
    /// It ended without `[DONE]`.
    #[error("stream ended before [DONE]")]
    Unfinished,
}

/// Assembles a stream.
#[derive(Debug, Default)]
pub struct Assembler {
    pending: Vec<u8>,
    response: Map<String, Value>,
    choices: Vec<Map<String, Value>>,
    is_done: bool,
}

impl Assembler {
    /// Adds the next bytes.
    ///
    /// # Errors
    /// If an event is invalid or an error.
    pub fn feed(&mut self, bytes: &[u8]) -> Result<(), StreamError> {
        self.pending.extend_from_slice(bytes);
        let mut from = 0;
        while let Some(length) = self.pending[from..].iter().position(|byte| *byte == b'\n') {
            let line = self.pending[from..from + length].trim_ascii().to_vec();
            from += length + 1;
            if let Some(data) = line.strip_prefix(b"data:") {
                self.event(data.trim_ascii())?;
            }
        }
        self.pending.drain(..from);
        Ok(())
    }

    /// The whole response.
    ///
    /// # Errors
    /// If the stream has no `[DONE]`.
    pub fn finish(mut self) -> Result<Bytes, StreamError> {
        if !self.is_done {
            return Err(StreamError::Unfinished);
        }
        let choices = self.choices.into_iter().map(Value::Object).collect();
        self.response.insert("choices".to_owned(), Value::Array(choices));
        // At the end, as in whole responses.
        if let Some(usage) = self.response.shift_remove("usage") {
            self.response.insert("usage".to_owned(), usage);
        }
        Ok(Value::Object(self.response).to_string().into())
    }

    fn event(&mut self, data: &[u8]) -> Result<(), StreamError> {
        if data == b"[DONE]" {
            self.is_done = true;
            return Ok(());
        }
        let unreadable = |why: &dyn std::fmt::Display| StreamError::Unreadable(why.to_string());
        let chunk: Value = serde_json::from_slice(data).map_err(|error| unreadable(&error))?;
        if !chunk["error"].is_null() {
            return Err(StreamError::Failed(chunk["error"].to_string()));
        }
        let Value::Object(chunk) = chunk else { return Err(unreadable(&"not an object")) };
        for (name, value) in chunk {
            match (name.as_str(), value) {
                ("choices", Value::Array(choices)) => {
                    for choice in choices {
                        self.choice(choice).map_err(|why| unreadable(&why))?;
                    }
                }
                ("object", Value::String(object)) => {
                    let object = object.trim_end_matches(".chunk").to_owned();
                    self.response.insert(name, object.into());
                }
                (_, Value::Null) => {}
                (_, value) => {
                    self.response.insert(name, value);
                }
            }
        }
        Ok(())
    }

    fn choice(&mut self, choice: Value) -> Result<(), &'static str> {
        const MAX_CHOICES: u64 = 1024;
        let Value::Object(choice) = choice else { return Err("a choice is not an object") };
        let index = choice.get("index").and_then(Value::as_u64).unwrap_or(0);
        if index >= MAX_CHOICES {
            return Err("the index of a choice is too large");
        }
        while self.choices.len() <= index as usize {
            let index = self.choices.len();
            self.choices.push(Map::from_iter([("index".to_owned(), json!(index))]));
        }
        let whole = &mut self.choices[index as usize];
        for (name, value) in choice {
            match (name.as_str(), value) {
                ("delta", Value::Object(delta)) => {
                    let message = whole.entry("message").or_insert_with(|| json!({}));
                    if let Value::Object(message) = message {
                        delta.into_iter().for_each(|(name, value)| join(message, name, value));
                    }
                }
                ("text", text) => join(whole, name, text),
                (_, Value::Null) => {
                    whole.entry(name).or_insert(Value::Null);
                }
                (_, value) => {
                    whole.insert(name, value);
                }
            }
        }
        Ok(())
    }
}

/// Appends text; replaces everything else.
fn join(into: &mut Map<String, Value>, name: String, value: Value) {
    match (into.get_mut(&name), value) {
        (Some(Value::String(before)), Value::String(more)) if name != "role" => {
            before.push_str(&more);
        }
        (Some(_), Value::Null) => {}
        (_, value) => {
            into.insert(name, value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHAT: &str = concat!(
        "data: {\"id\":\"c\",\"object\":\"chat.completion.chunk\",\"created\":5,\"model\":\"m\",\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"logprobs\":null,\"finish_reason\":null}]}\n\n",
        ": a comment\n\n",
        "data: {\"id\":\"c\",\"object\":\"chat.completion.chunk\",\"created\":5,\"model\":\"m\",\"choices\":[{\"index\":1,\"delta\":{\"content\":\"x\"}},{\"index\":0,\"delta\":{\"content\":\"He\"},\"logprobs\":null,\"finish_reason\":null}],\"usage\":null}\r\n\r\n",
        "data: {\"id\":\"c\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"y \\u00e4\"},\"finish_reason\":\"stop\"}]}\n\n",
        "data: {\"id\":\"c\",\"choices\":[],\"usage\":{\"prompt_tokens\":3}}\n\n",
        "data: [DONE]\n\n",
    );

    fn assembled(stream: &[u8], cut: usize) -> Result<Value, StreamError> {
        let mut assembler = Assembler::default();
        assembler.feed(&stream[..cut])?;
        assembler.feed(&stream[cut..])?;
        Ok(serde_json::from_slice(&assembler.finish()?).unwrap())
    }

    #[test]
    fn chunks_become_the_whole_response_wherever_they_are_cut() {
        let whole = json!({
            "id": "c", "object": "chat.completion", "created": 5, "model": "m",
            "choices": [
                {"index": 0, "message": {"role": "assistant", "content": "Hey ä"}, "logprobs": null, "finish_reason": "stop"},
                {"index": 1, "message": {"content": "x"}},
            ],
            "usage": {"prompt_tokens": 3},
        });
        for cut in 0..CHAT.len() {
            assert_eq!(assembled(CHAT.as_bytes(), cut), Ok(whole.clone()), "cut at {cut}");
        }
    }

    #[test]
    fn no_incomplete_stream_becomes_a_response() {
        let done = CHAT.find("data: [DONE]").unwrap();
        for end in 0..done {
            assert!(assembled(&CHAT.as_bytes()[..end], 0).is_err(), "ended at {end}");
        }
        let failed = "data: {\"error\":{\"message\":\"lost\"}}\n\ndata: [DONE]\n\n";
        assert!(matches!(assembled(failed.as_bytes(), 0), Err(StreamError::Failed(_))));
        let far = "data: {\"choices\":[{\"index\":4000000000}]}\n\n";
        assert!(matches!(assembled(far.as_bytes(), 0), Err(StreamError::Unreadable(_))));
    }

    #[test]
    fn a_request_whose_stream_would_differ_is_not_streamed() {
        assert!(streaming(Interface::Chat, br#"{"messages":[],"logprobs":false}"#).is_some());
        assert!(streaming(Interface::Chat, br#"{"messages":[],"tools":[{}]}"#).is_none());
        assert!(streaming(Interface::Completions, br#"{"prompt":"p","echo":true}"#).is_none());
        assert!(streaming(Interface::Embeddings, br#"{"input":"p"}"#).is_none());
    }
}
