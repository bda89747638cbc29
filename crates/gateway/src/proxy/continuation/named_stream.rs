//! Streams of named events: those of Anthropic's messages and of OpenAI's responses.
//!
//! The events of an answer that is one text come in one order, which is a table for each API: some
//! begin it, each piece of text is one, and some end it. So the number of those that have passed
//! says how far a stream is, and what a client still lacks. An event out of order, or of anything
//! but that text, is none that a continuation is known to keep right.

use super::event::{EngineFailure, Stop, StreamForm, data_of, is_nothing};
use super::reason::NotContinued;
use hyper::StatusCode;
use serde::de::IgnoredAny;
use serde_json::Value;
use std::ops::Range;
use wornpath_execution::{JsonScan, NotAnObject};

/// The events of an answer of one text, but for those of its pieces.
#[derive(Debug)]
pub(super) struct EventOrder {
    pub(super) names: &'static [&'static str],
    /// The event of a piece of text.
    pub(super) delta: &'static str,
    /// The events before the first that names the text.
    before_text: usize,
    /// The events before the first piece.
    pub(super) opening: usize,
    /// The events up to the one that says why the answer ended.
    pub(super) closing: usize,
}

static MESSAGES: EventOrder = EventOrder {
    names: &[
        "message_start",
        "content_block_start",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ],
    delta: "content_block_delta",
    before_text: 1,
    opening: 2,
    closing: 3,
};

static RESPONSES: EventOrder = EventOrder {
    names: &[
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ],
    delta: "response.output_text.delta",
    before_text: 2,
    opening: 4,
    closing: 7,
};

/// How far a stream of named events is, and what later events repeat of earlier ones.
#[derive(Clone, Debug)]
pub(super) struct NamedStream {
    pub(super) order: &'static EventOrder,
    /// Of the events in `order`, how many have passed.
    pub(super) passed: usize,
    /// The number of the next event, where they are numbered.
    pub(super) next_number: u64,
    /// The message or the response as the first event has it.
    pub(super) beginning: Box<[u8]>,
    /// The id of the item that has the text; empty where items have none.
    pub(super) item: Box<str>,
    /// The first piece of text, with the whole event around it.
    pub(super) piece: Option<Piece>,
}

/// An event with a piece of text, by positions.
#[derive(Clone, Debug)]
pub(super) struct Piece {
    pub(super) event: Box<[u8]>,
    /// The text, with quotes.
    pub(super) text: Range<usize>,
    /// The number of the event, where they are numbered.
    pub(super) number: Option<Range<usize>>,
}

/// What an event is.
#[derive(Debug)]
pub(super) enum NamedEvent {
    /// A comment, a ping, or `[DONE]` after the end.
    Comment,
    /// It begins or ends the answer or its text.
    Frame,
    /// A piece of text, at this position, with quotes.
    Text(Range<usize>),
}

impl NamedStream {
    /// A stream of which nothing has passed; none if the events of the form have no names.
    pub(super) fn new(form: StreamForm) -> Option<Self> {
        let order = match form {
            StreamForm::Messages => &MESSAGES,
            StreamForm::Responses => &RESPONSES,
            StreamForm::Chat | StreamForm::Completion => return None,
        };
        let beginning = Box::default();
        Some(Self { order, passed: 0, next_number: 0, beginning, item: "".into(), piece: None })
    }

    /// Whether its events have numbers, and its last one repeats the whole answer.
    pub(super) fn is_response(&self) -> bool {
        std::ptr::eq(self.order, &RESPONSES)
    }

    pub(super) const fn has_begun(&self) -> bool {
        self.passed > 0
    }

    /// Whether the text has ended.
    pub(super) const fn is_closed(&self) -> bool {
        self.passed > self.order.opening
    }

    /// Whether the event with the token counts has passed.
    pub(super) const fn has_counts(&self) -> bool {
        self.passed > self.order.closing
    }

    pub(super) const fn has_ended(&self) -> bool {
        self.passed == self.order.names.len()
    }

    /// The bytes that it keeps.
    pub(super) fn len(&self) -> usize {
        self.beginning.len() + self.item.len() + self.piece.as_ref().map_or(0, |it| it.event.len())
    }

    /// The next event.
    ///
    /// # Errors
    /// If the engine has failed, or the stream cannot be continued.
    pub(super) fn read(&mut self, event: &[u8]) -> Result<NamedEvent, Stop> {
        let Some(data) = data_of(event).map_err(Stop::NotContinued)? else {
            return Ok(NamedEvent::Comment);
        };
        let json = &event[data.clone()];
        if json == b"[DONE]" && self.has_ended() {
            return Ok(NamedEvent::Comment);
        }
        let field = Stop::NotContinued(NotContinued::Field);
        if serde_json::from_slice::<IgnoredAny>(json).is_err() {
            return Err(field);
        }
        let members = Members::of(event, data.clone()).map_err(|_| field)?;
        let name = members.kind.clone().map_or("", |at| text_at(event, at));
        if name == self.order.delta {
            return self.piece_of(event, &members).map_err(Stop::NotContinued);
        }
        let value: Value = serde_json::from_slice(json).map_err(|_| field)?;
        if name == "ping" {
            return Ok(NamedEvent::Comment);
        }
        if let Some(failure) = failure(name, &value) {
            return Err(failure);
        }
        let at = self.place_of(name).ok_or_else(|| Stop::NotContinued(why_not(name, &value)))?;
        self.keep(at, &value).map_err(Stop::NotContinued)?;
        self.count(event, members.number).map_err(Stop::NotContinued)?;
        self.passed = at + 1;
        Ok(NamedEvent::Frame)
    }

    /// The place of an event in the order, if it may come next.
    fn place_of(&self, name: &str) -> Option<usize> {
        let name = if name == "response.incomplete" { "response.completed" } else { name };
        let at = self.order.names.iter().position(|known| *known == name)?;
        // An answer without text may have no events of its text.
        let is_empty = self.passed == self.order.before_text && at == self.order.closing;
        (at == self.passed || is_empty).then_some(at)
    }

    fn piece_of(&mut self, event: &[u8], members: &Members) -> Result<NamedEvent, NotContinued> {
        if self.passed != self.order.opening {
            return Err(NotContinued::Field);
        }
        let text = if self.is_response() { members.text.clone() } else { inner(event, members)? };
        let text = text.filter(|at| event[at.start] == b'"').ok_or(NotContinued::Field)?;
        if members.has_logprobs {
            return Err(NotContinued::Logprobs);
        }
        if members.has_other_place {
            return Err(NotContinued::Choices);
        }
        self.count(event, members.number.clone())?;
        if self.piece.is_none() {
            let number = members.number.clone();
            self.piece = Some(Piece { event: event.into(), text: text.clone(), number });
        }
        Ok(NamedEvent::Text(text))
    }

    fn count(&mut self, event: &[u8], number: Option<Range<usize>>) -> Result<(), NotContinued> {
        if !self.is_response() {
            return Ok(());
        }
        let number =
            number.and_then(|at| std::str::from_utf8(&event[at]).ok()?.parse::<u64>().ok());
        self.next_number = number.and_then(|it| it.checked_add(1)).ok_or(NotContinued::Field)?;
        Ok(())
    }

    /// Keeps what later events repeat of this one.
    fn keep(&mut self, at: usize, event: &Value) -> Result<(), NotContinued> {
        match self.order.names[at] {
            "message_start" => self.beginning = written(&event["message"])?,
            "response.created" => self.beginning = written(&event["response"])?,
            "content_block_start" => {
                is_first(&event["index"])?;
                is_text(&event["content_block"], "text")?;
                if event["content_block"]["text"] != "" {
                    return Err(NotContinued::Field);
                }
            }
            "response.output_item.added" => {
                is_first(&event["output_index"])?;
                is_text(&event["item"], "message")?;
                self.item = event["item"]["id"].as_str().ok_or(NotContinued::Field)?.into();
            }
            "response.content_part.added" => {
                is_first(&event["content_index"])?;
                is_text(&event["part"], "output_text")?;
            }
            // Without a reason the engine has aborted the request, of which the client has the end.
            "message_delta" if event["delta"]["stop_reason"].is_null() => {
                return Err(NotContinued::Final);
            }
            "response.completed" if !is_complete(&event["response"]["status"]) => {
                return Err(NotContinued::Final);
            }
            _ => {}
        }
        Ok(())
    }
}

fn is_complete(status: &Value) -> bool {
    status == "completed" || status == "incomplete"
}

fn written(value: &Value) -> Result<Box<[u8]>, NotContinued> {
    if value.is_object() {
        Ok(value.to_string().into_bytes().into())
    } else {
        Err(NotContinued::Field)
    }
}

fn is_first(index: &Value) -> Result<(), NotContinued> {
    if *index == 0 { Ok(()) } else { Err(NotContinued::Choices) }
}

fn is_text(part: &Value, kind: &str) -> Result<(), NotContinued> {
    let found = part["type"].as_str().unwrap_or_default();
    if found == kind { Ok(()) } else { Err(of_kind(found)) }
}

/// Why an event that is in no order forbids a continuation.
fn why_not(name: &str, event: &Value) -> NotContinued {
    let of = ["content_block", "item", "part"].iter().find_map(|it| event[*it]["type"].as_str());
    of_kind(of.unwrap_or(name))
}

/// Why a part of that kind forbids a continuation.
fn of_kind(kind: &str) -> NotContinued {
    let has = |words: &[&str]| words.iter().any(|word| kind.contains(word));
    if has(&["thinking", "reasoning", "signature"]) {
        NotContinued::Reasoning
    } else if has(&["tool", "function", "mcp", "call", "input_json"]) {
        NotContinued::Tools
    } else {
        NotContinued::Field
    }
}

/// An error of the engine, unless it is one of the request.
fn failure(name: &str, event: &Value) -> Option<Stop> {
    let error = match name {
        "error" => event,
        "response.failed" => &event["response"],
        _ => return None,
    };
    let says = |value: &Value| {
        let kinds = ["invalid", "not_found", "too_large", "permission", "authentication", "rate_"];
        let text = value.as_str().unwrap_or_default();
        kinds.iter().any(|kind| text.contains(kind))
            || value.as_u64().is_some_and(|code| (400..500).contains(&code))
    };
    let codes = [&error["error"]["type"], &error["error"]["code"], &error["code"]];
    if codes.into_iter().any(says) {
        return Some(Stop::NotContinued(NotContinued::Final));
    }
    Some(Stop::Failed(EngineFailure::Error(StatusCode::INTERNAL_SERVER_ERROR)))
}

/// The members of an event that matter for a piece of text, by positions.
#[derive(Default)]
struct Members {
    kind: Option<Range<usize>>,
    /// The value of `delta`: the text itself, or an object with it.
    text: Option<Range<usize>>,
    number: Option<Range<usize>>,
    has_logprobs: bool,
    /// Whether it belongs to another than the first item or part.
    has_other_place: bool,
}

impl Members {
    fn of(event: &[u8], data: Range<usize>) -> Result<Self, NotAnObject> {
        let mut members = Self::default();
        JsonScan::new(event, data).object(|scan, name| {
            let at = scan.skip()?;
            let value = &event[at.clone()];
            if name.is("type") {
                members.kind = Some(at);
            } else if name.is("delta") {
                members.text = Some(at);
            } else if name.is("sequence_number") {
                members.number = Some(at);
            } else if name.is("logprobs") {
                members.has_logprobs = !is_nothing(value);
            } else if name.is("index") || name.is("output_index") || name.is("content_index") {
                members.has_other_place |= value != b"0";
            }
            Ok(())
        })?;
        Ok(members)
    }
}

/// The text of a delta that is an object.
fn inner(event: &[u8], members: &Members) -> Result<Option<Range<usize>>, NotContinued> {
    let delta = members.text.clone().ok_or(NotContinued::Field)?;
    if event[delta.start] != b'{' {
        return Err(NotContinued::Field);
    }
    let mut kind = None;
    let mut text = None;
    let mut others = false;
    let scanned = JsonScan::new(event, delta).object(|scan, name| {
        let at = scan.skip()?;
        if name.is("type") {
            kind = Some(at);
        } else if name.is("text") {
            text = Some(at);
        } else {
            others |= !is_nothing(&event[at]);
        }
        Ok(())
    });
    scanned.map_err(|_| NotContinued::Field)?;
    match kind.map_or("", |at| text_at(event, at)) {
        "text_delta" if !others => Ok(text),
        kind => Err(of_kind(kind)),
    }
}

/// A string without escapes; empty if it is none.
fn text_at(event: &[u8], at: Range<usize>) -> &str {
    let inner = event[at].strip_prefix(b"\"").and_then(|rest| rest.strip_suffix(b"\""));
    inner.and_then(|inner| std::str::from_utf8(inner).ok()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn event(value: &Value) -> Vec<u8> {
        format!("event: {}\ndata: {value}\n\n", value["type"].as_str().unwrap()).into_bytes()
    }

    fn stop(form: StreamForm, events: &[Value]) -> Option<Stop> {
        let mut stream = NamedStream::new(form).unwrap();
        events.iter().find_map(|value| stream.read(&event(value)).err())
    }

    fn begun() -> Vec<Value> {
        let message = json!({"id": "m", "usage": {"input_tokens": 3}});
        vec![
            json!({"type": "message_start", "message": message}),
            json!({"type": "ping"}),
            json!({"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}),
            json!({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "a"}}),
        ]
    }

    fn refused(form: StreamForm, begun: &[Value], last: Value) -> NotContinued {
        assert_eq!(stop(form, begun), None);
        match stop(form, &[begun, &[last]].concat()) {
            Some(Stop::NotContinued(why)) => why,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_message_of_anything_but_one_text_says_why() {
        let begun = begun();
        let block = |kind: &str| json!({"type": "content_block_start", "index": 0, "content_block": {"type": kind}});
        let delta = |index: u64, delta: Value| json!({"type": "content_block_delta", "index": index, "delta": delta});
        for (begun, last, why) in [
            (&begun[..1], block("thinking"), NotContinued::Reasoning),
            (&begun[..1], block("tool_use"), NotContinued::Tools),
            (&begun[..1], block("image"), NotContinued::Field),
            (&begun[..], block("tool_use"), NotContinued::Tools),
            (
                &begun[..],
                delta(0, json!({"type": "thinking_delta", "thinking": "x"})),
                NotContinued::Reasoning,
            ),
            (
                &begun[..],
                delta(0, json!({"type": "input_json_delta", "partial_json": "{"})),
                NotContinued::Tools,
            ),
            (
                &begun[..],
                delta(0, json!({"type": "text_delta", "text": "x", "odd": 1})),
                NotContinued::Field,
            ),
            (
                &begun[..],
                delta(1, json!({"type": "text_delta", "text": "x"})),
                NotContinued::Choices,
            ),
            (&begun[..], json!({"type": "message_stop"}), NotContinued::Field),
            (&begun[..0], json!({"type": "content_block_stop", "index": 0}), NotContinued::Field),
            (
                &begun[..1],
                json!({"type": "message_delta", "delta": {"stop_reason": null}}),
                NotContinued::Final,
            ),
        ] {
            assert_eq!(refused(StreamForm::Messages, begun, last.clone()), why, "{last}");
        }
    }

    #[test]
    fn a_response_of_anything_but_one_text_says_why() {
        let numbered = |number: u64, name: &str, mut event: Value| {
            event["type"] = json!(name);
            event["sequence_number"] = json!(number);
            event
        };
        let response = json!({"response": {"id": "r", "status": "in_progress", "output": []}});
        let begun = [
            numbered(0, "response.created", response.clone()),
            numbered(1, "response.in_progress", response),
        ];
        let item = |kind: &str| {
            numbered(
                2,
                "response.output_item.added",
                json!({"output_index": 0, "item": {"type": kind, "id": "i"}}),
            )
        };
        let completed = |status: &str| {
            numbered(2, "response.completed", json!({"response": {"status": status}}))
        };
        for (last, why) in [
            (item("reasoning"), NotContinued::Reasoning),
            (item("function_call"), NotContinued::Tools),
            (
                numbered(2, "response.reasoning_text.delta", json!({"delta": "x"})),
                NotContinued::Reasoning,
            ),
            (numbered(2, "response.output_text.delta", json!({"delta": "x"})), NotContinued::Field),
            (completed("cancelled"), NotContinued::Final),
            (
                json!({"type": "response.completed", "response": {"status": "completed"}}),
                NotContinued::Field,
            ),
        ] {
            assert_eq!(refused(StreamForm::Responses, &begun, last.clone()), why, "{last}");
        }
        let part = json!({"content_index": 0, "part": {"type": "output_text", "text": ""}});
        let opened =
            [&begun[..], &[item("message"), numbered(3, "response.content_part.added", part)]]
                .concat();
        let logprobs =
            numbered(4, "response.output_text.delta", json!({"delta": "x", "logprobs": [{}]}));
        assert_eq!(refused(StreamForm::Responses, &opened, logprobs), NotContinued::Logprobs);
        assert_eq!(
            stop(StreamForm::Responses, &[&begun[..], &[completed("incomplete")]].concat()),
            None
        );
    }

    #[test]
    fn an_error_of_the_engine_is_a_failure_and_one_of_the_request_is_final() {
        let internal = Stop::Failed(EngineFailure::Error(StatusCode::INTERNAL_SERVER_ERROR));
        let last = Stop::NotContinued(NotContinued::Final);
        for (form, event, expected) in [
            (
                StreamForm::Messages,
                json!({"type": "error", "error": {"type": "internal_error"}}),
                internal,
            ),
            (
                StreamForm::Messages,
                json!({"type": "error", "error": {"type": "overloaded_error"}}),
                internal,
            ),
            (
                StreamForm::Messages,
                json!({"type": "error", "error": {"type": "invalid_request_error"}}),
                last,
            ),
            (StreamForm::Responses, json!({"type": "error", "code": "server_error"}), internal),
            (StreamForm::Responses, json!({"type": "error", "error": {"code": 400}}), last),
            (
                StreamForm::Responses,
                json!({"type": "response.failed", "response": {"error": {"code": "server_error"}}}),
                internal,
            ),
            (
                StreamForm::Responses,
                json!({"type": "response.failed", "response": {"error": {"code": "invalid_prompt"}}}),
                last,
            ),
        ] {
            assert_eq!(stop(form, std::slice::from_ref(&event)), Some(expected), "{event}");
        }
    }
}
