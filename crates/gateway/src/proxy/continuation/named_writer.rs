//! Writes the rest of a stream of named events from the chat by which another engine goes on.
//!
//! What the client lacks follows from the events that it has: those of the beginning are written if
//! they are missing, and those of the end say what the stream has said of itself before.

use super::event::Choice;
use super::named_stream::NamedStream;
use super::written_text::decoded;
use serde_json::{Value, json};

/// Why an answer ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum AnswerEnd {
    /// By itself.
    Turn,
    /// With a stop string.
    StopString(String),
    /// At its limit of tokens.
    Limit,
}

/// The token counts of an answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Counts {
    /// Of the request of the client.
    pub(super) prompt: u64,
    pub(super) answer: u64,
    pub(super) cached: Option<u64>,
}

/// Writes the rest of a stream.
#[derive(Debug)]
pub(super) struct NamedWriter {
    stream: NamedStream,
    /// The text of the answer as it is written in JSON, without quotes, where events repeat it.
    text: Vec<u8>,
    end: AnswerEnd,
}

impl NamedWriter {
    /// The writer after the events of a stream with that text; `end` unless the next engine says why
    /// its answer ends.
    pub(super) fn after(stream: &NamedStream, text: &[u8], end: AnswerEnd) -> Self {
        let text = if stream.is_response() { text.to_vec() } else { Vec::new() };
        Self { stream: stream.clone(), text, end }
    }

    /// The prompt's tokens, if an event has said so.
    pub(super) fn prompt_tokens(&self) -> Option<u64> {
        let beginning = self.beginning();
        let usage = &beginning["usage"];
        let parts = ["input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens"];
        let total: u64 = parts.iter().filter_map(|name| usage[*name].as_u64()).sum();
        (total > 0).then_some(total)
    }

    /// A piece of text, with quotes.
    pub(super) fn text(&mut self, text: &[u8], out: &mut Vec<u8>) {
        if text.len() <= 2 {
            return;
        }
        self.open(out);
        if self.stream.is_response() {
            self.text.extend_from_slice(&text[1..text.len() - 1]);
        }
        let Some(piece) = &self.stream.piece else {
            let delta = serde_json::from_slice::<Value>(text).unwrap_or_default();
            let event = if self.stream.is_response() {
                self.in_text(json!({"delta": delta, "logprobs": []}))
            } else {
                json!({"index": 0, "delta": {"type": "text_delta", "text": delta}})
            };
            return self.write(self.stream.order.delta, event, out);
        };
        let number = self.stream.next_number.to_string();
        let mut parts = vec![(piece.text.clone(), text)];
        parts.extend(piece.number.clone().map(|at| (at, number.as_bytes())));
        parts.sort_by_key(|(at, _)| at.start);
        let mut done = 0;
        for (at, value) in parts {
            out.extend_from_slice(&piece.event[done..at.start]);
            out.extend_from_slice(value);
            done = at.end;
        }
        out.extend_from_slice(&piece.event[done..]);
        self.stream.next_number += 1;
    }

    /// The text has ended, as the last event of the chat says.
    pub(super) fn finish(&mut self, event: &[u8], choice: &Choice, out: &mut Vec<u8>) {
        let says = |at: usize| choice.ending[at].clone().map(|at| &event[at]);
        let stop_string = says(1).or_else(|| choice.matched_stop.clone().map(|at| &event[at]));
        let stop_string = stop_string.and_then(|it| serde_json::from_slice::<String>(it).ok());
        self.end = match (says(0), stop_string) {
            (Some(b"\"length\""), _) => AnswerEnd::Limit,
            (_, Some(stop)) => AnswerEnd::StopString(stop),
            _ => AnswerEnd::Turn,
        };
        self.close(out);
    }

    /// The text has ended where it is.
    pub(super) fn close(&mut self, out: &mut Vec<u8>) {
        self.open(out);
        while self.stream.passed < self.stream.order.closing {
            let name = self.stream.order.names[self.stream.passed];
            let text = if self.stream.is_response() { self.whole_text() } else { Value::Null };
            let event = match name {
                "response.output_text.done" => self.in_text(json!({"text": text, "logprobs": []})),
                "response.content_part.done" => self.in_text(json!({"part": part(&text)})),
                "response.output_item.done" => {
                    json!({"output_index": 0, "item": self.item("completed", Some(&text))})
                }
                _ => json!({"index": 0}),
            };
            self.frame(name, event, out);
        }
    }

    /// The last events.
    pub(super) fn counts(&mut self, counts: Counts, out: &mut Vec<u8>) {
        if self.stream.has_counts() {
            return;
        }
        self.close(out);
        let name = self.stream.order.names[self.stream.passed];
        let event = if self.stream.is_response() {
            json!({"response": self.response(counts)})
        } else {
            let mut usage = self.beginning()["usage"].take();
            if self.prompt_tokens().is_none() {
                usage = json!({"input_tokens": counts.prompt});
            }
            usage["output_tokens"] = json!(counts.answer);
            let (reason, stop) = match &self.end {
                AnswerEnd::Turn => ("end_turn", None),
                AnswerEnd::Limit => ("max_tokens", None),
                AnswerEnd::StopString(stop) => ("stop_sequence", Some(stop)),
            };
            json!({"delta": {"stop_reason": reason, "stop_sequence": stop}, "usage": usage})
        };
        self.frame(name, event, out);
        self.done(out);
    }

    /// The last event, after the one with the counts.
    pub(super) fn done(&mut self, out: &mut Vec<u8>) {
        if self.stream.has_counts() && !self.stream.has_ended() {
            self.frame("message_stop", json!({}), out);
        }
    }

    /// Whether all has been written.
    pub(super) const fn has_ended(&self) -> bool {
        self.stream.has_ended()
    }

    /// What begins the text, as far as it is missing.
    fn open(&mut self, out: &mut Vec<u8>) {
        while self.stream.passed < self.stream.order.opening {
            let name = self.stream.order.names[self.stream.passed];
            let event = match name {
                "response.in_progress" => json!({"response": self.beginning()}),
                "response.output_item.added" => {
                    let beginning = self.beginning();
                    let id = beginning["id"].as_str().unwrap_or_default();
                    self.stream.item = format!("msg_{}", id.trim_start_matches("resp_")).into();
                    json!({"output_index": 0, "item": self.item("in_progress", None)})
                }
                "response.content_part.added" => self.in_text(json!({"part": part(&json!(""))})),
                _ => json!({"index": 0, "content_block": {"type": "text", "text": ""}}),
            };
            self.frame(name, event, out);
        }
    }

    fn frame(&mut self, name: &str, event: Value, out: &mut Vec<u8>) {
        self.write(name, event, out);
        self.stream.passed += 1;
    }

    fn write(&mut self, name: &str, mut event: Value, out: &mut Vec<u8>) {
        if self.stream.is_response() {
            event["sequence_number"] = json!(self.stream.next_number);
            self.stream.next_number += 1;
        }
        event["type"] = json!(name);
        out.extend_from_slice(format!("event: {name}\ndata: {event}\n\n").as_bytes());
    }

    fn beginning(&self) -> Value {
        serde_json::from_slice(&self.stream.beginning).unwrap_or_default()
    }

    fn whole_text(&self) -> Value {
        decoded(&self.text).unwrap_or_default().into()
    }

    /// Adds the place of the text.
    fn in_text(&self, mut event: Value) -> Value {
        event["item_id"] = json!(self.stream.item);
        event["output_index"] = json!(0);
        event["content_index"] = json!(0);
        event
    }

    fn item(&self, status: &str, text: Option<&Value>) -> Value {
        let content: Vec<_> = text.map(part).into_iter().collect();
        json!({
            "id": self.stream.item, "type": "message", "role": "assistant", "status": status,
            "content": content,
        })
    }

    /// The response at its end.
    fn response(&self, counts: Counts) -> Value {
        let mut response = self.beginning();
        let is_whole = self.end != AnswerEnd::Limit;
        response["status"] = json!(if is_whole { "completed" } else { "incomplete" });
        if !is_whole {
            response["incomplete_details"] = json!({"reason": "max_output_tokens"});
        }
        response["output"] = json!([self.item("completed", Some(&self.whole_text()))]);
        response["usage"] = json!({
            "input_tokens": counts.prompt,
            "input_tokens_details": {"cached_tokens": counts.cached.unwrap_or(0)},
            "output_tokens": counts.answer,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": counts.prompt + counts.answer,
        });
        response
    }
}

fn part(text: &Value) -> Value {
    json!({"type": "output_text", "text": text, "annotations": []})
}
