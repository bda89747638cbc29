//! Token counts of streams whose clients did not ask for them.
//!
//! Engines send the counts of a chat or completion stream only to requests that ask, in one more
//! event before the last. Most clients do not ask. So the router does, and takes that event out
//! again: the client gets, byte for byte, what it would have got.

use crate::dialect::Api;
use crate::proxy::parse::ParsedBody;
use bytes::{Bytes, BytesMut};
use memchr::memmem;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::{Map, Value};
use wornpath_config::StreamUsage;
use wornpath_execution::{Edit, STREAM_OPTIONS, StepCall, splice};

const ASK: &[u8] = br#","stream_options":{"include_usage":true}"#;

/// Asks for the token counts of a stream, unless the client does or sets other options.
pub(crate) fn ask_for_usage(
    api: Api,
    body: &ParsedBody,
    call: &mut StepCall,
    setting: StreamUsage,
) {
    let is_stream = body.is_object && body.request.is_streamed();
    if setting != StreamUsage::Always || !is_stream || !api.dialect().reports_usage_on_request() {
        return;
    }
    let asked = match body.request.fields.get(STREAM_OPTIONS) {
        None => append(&call.body),
        Some(options) if asks_nothing(options) => {
            let ask = Value::Object(Map::from_iter([("include_usage".to_owned(), true.into())]));
            splice(&call.body, &[Edit::set(STREAM_OPTIONS, &ask)]).ok()
        }
        Some(_) => None,
    };
    if let Some(asked) = asked {
        call.body = asked;
        call.asks_usage = true;
    }
}

fn asks_nothing(options: &Value) -> bool {
    let is_off = |value: &Value| matches!(value, Value::Null | Value::Bool(false));
    match options {
        Value::Null => true,
        Value::Object(options) => {
            options.iter().all(|(name, value)| name == "include_usage" && is_off(value))
        }
        _ => false,
    }
}

/// The body, which lacks the field, with the field at its end: one copy, without a scan.
fn append(body: &[u8]) -> Option<Bytes> {
    let end = body.trim_ascii_end().strip_suffix(b"}")?.len();
    Some([&body[..end], ASK, &body[end..]].concat().into())
}

/// An event without an end in so many bytes is passed on as it comes.
const MAX_EVENT_BYTES: usize = 1 << 20;

/// Removes the event with the token counts from a stream.
#[derive(Debug, Default)]
pub(crate) struct UsageFilter {
    /// The beginning of an event whose end has not come yet.
    held: BytesMut,
}

/// The fields by which the event with the token counts is recognised: it has no choices.
#[derive(Deserialize)]
struct StreamChunk {
    choices: Vec<IgnoredAny>,
    usage: Option<Map<String, Value>>,
}

impl UsageFilter {
    /// What the client gets of the next chunk; events are passed on once they are complete.
    pub(crate) fn filter(&mut self, data: Bytes) -> Bytes {
        // The usual case: a chunk of whole events, which says nothing about usage.
        if self.held.is_empty() && ends_event(&data) && !may_be_usage(&data) {
            return data;
        }
        self.held.extend_from_slice(&data);
        let mut out = BytesMut::new();
        while let Some(end) = event_end(&self.held) {
            let event = self.held.split_to(end);
            if !is_usage(&event) {
                out.unsplit(event);
            }
        }
        if self.held.len() > MAX_EVENT_BYTES {
            out.unsplit(self.held.split());
        }
        out.freeze()
    }

    /// What is left when the stream has ended.
    pub(crate) fn rest(&mut self) -> Bytes {
        self.held.split().freeze()
    }
}

fn ends_event(data: &[u8]) -> bool {
    data.ends_with(b"\n\n") || data.ends_with(b"\r\n\r\n")
}

/// The position after the first blank line.
fn event_end(data: &[u8]) -> Option<usize> {
    memchr::memchr_iter(b'\n', data).find_map(|at| match &data[at + 1..] {
        [b'\n', ..] => Some(at + 2),
        [b'\r', b'\n', ..] => Some(at + 3),
        _ => None,
    })
}

/// A cheap test: some engines have `"usage":null` in every chunk, but only one has no choices.
fn may_be_usage(data: &[u8]) -> bool {
    memmem::find(data, b"\"usage\"").is_some() && memmem::find(data, b"[]").is_some()
}

fn is_usage(event: &[u8]) -> bool {
    if !may_be_usage(event) {
        return false;
    }
    let mut lines = event.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii);
    let Some(data) = lines.find_map(|line| line.strip_prefix(b"data:")) else { return false };
    let chunk = serde_json::from_slice::<StreamChunk>(data);
    chunk.is_ok_and(|chunk| chunk.choices.is_empty() && chunk.usage.is_some())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use wornpath_routing::Request;

    fn asked(json: &str, setting: StreamUsage) -> Option<Value> {
        let fields: Map<String, Value> = serde_json::from_str(json).unwrap();
        let request = Request { fields, ..Request::default() };
        let body = ParsedBody { request, is_object: true, ..ParsedBody::default() };
        let mut call = StepCall {
            method: hyper::Method::POST,
            path: "/v1/chat/completions".parse().unwrap(),
            headers: hyper::HeaderMap::new(),
            body: Bytes::copy_from_slice(json.as_bytes()),
            asks_usage: false,
        };
        ask_for_usage(Api::CHAT, &body, &mut call, setting);
        let sent: Value = serde_json::from_slice(&call.body).unwrap();
        call.asks_usage.then(|| sent[STREAM_OPTIONS].clone())
    }

    #[test]
    fn only_streams_whose_client_set_no_options_ask() {
        let ask = Some(serde_json::json!({"include_usage": true}));
        for body in [
            r#"{"stream":true}"#,
            "{ \"stream\" : true }\r\n ",
            r#"{"stream":true,"stream_options":null}"#,
            r#"{"stream":true,"stream_options":{}}"#,
            r#"{"stream_options":{"include_usage":false},"stream":true}"#,
        ] {
            assert_eq!(asked(body, StreamUsage::Always), ask, "{body}");
            assert_eq!(asked(body, StreamUsage::Client), None, "{body}");
        }
        for body in [
            r#"{"stream":false}"#,
            r#"{"model":"m"}"#,
            r#"{"stream":true,"stream_options":{"include_usage":true}}"#,
            r#"{"stream":true,"stream_options":{"continuous_usage_stats":true}}"#,
            r#"{"stream":true,"stream_options":"on"}"#,
        ] {
            assert_eq!(asked(body, StreamUsage::Always), None, "{body}");
        }
    }

    const USAGE: &str = "data: {\"id\":\"c\",\"choices\":[],\"usage\":{\"prompt_tokens\":5}}\n\n";

    /// The stream as a client gets it if it arrives in chunks of these sizes, again and again.
    fn filtered(stream: &str, sizes: &[usize]) -> String {
        let mut filter = UsageFilter::default();
        let mut out = Vec::new();
        let mut rest = stream.as_bytes();
        for size in sizes.iter().cycle() {
            if rest.is_empty() {
                break;
            }
            let (chunk, later) = rest.split_at((*size).clamp(1, rest.len()));
            out.extend_from_slice(&filter.filter(Bytes::copy_from_slice(chunk)));
            rest = later;
        }
        out.extend_from_slice(&filter.rest());
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn events_that_only_resemble_it_stay() {
        for event in [
            "data: {\"choices\":[{\"delta\":{\"content\":\"\\\"usage\\\"\"}}],\"usage\":null}\n\n",
            "data: {\"choices\":[{\"index\":0}],\"usage\":{\"prompt_tokens\":5}}\n\n",
            "data: {\"choices\":[],\"usage\":null,\"prompt_filter_results\":[]}\n\n",
            "data: {\"error\":{\"message\":\"usage\"},\"usage\":{}}\n\n",
            ": \"usage\"\n\n",
            "event: x\ndata: \"usage\"\n\n",
            "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":5}}",
        ] {
            assert_eq!(filtered(event, &[usize::MAX]), event);
        }
    }

    #[test]
    fn an_event_without_an_end_is_not_held_forever() {
        let mut filter = UsageFilter::default();
        let endless = Bytes::from(vec![b'x'; MAX_EVENT_BYTES + 1]);
        assert_eq!(filter.filter(endless.clone()), endless);
    }

    proptest! {
        #[test]
        fn a_stream_is_what_it_was_without_the_event_however_it_is_split(
            texts in proptest::collection::vec("[a-z\"\\\\ \u{e9}]{0,12}", 0..8),
            sizes in proptest::collection::vec(1_usize..200, 1..6),
            has_crlf: bool,
        ) {
            let mut stream: String = texts
                .iter()
                .map(|text| {
                    let delta = serde_json::json!({"choices": [{"delta": {"content": text}}]});
                    format!("data: {delta}\n\n")
                })
                .collect();
            let mut end = "data: [DONE]\n\n".to_owned();
            let mut usage = USAGE.to_owned();
            if has_crlf {
                for part in [&mut stream, &mut end, &mut usage] {
                    *part = part.replace('\n', "\r\n");
                }
            }
            let sent = format!("{stream}{usage}{end}");
            prop_assert_eq!(filtered(&sent, &sizes), format!("{stream}{end}"));
        }
    }
}
