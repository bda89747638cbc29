//! OpenAI's responses API: an answer as one object, or as numbered events.

use super::{AnswerScript, push_named_event};
use crate::serve::call::FinishReason;
use serde_json::{Value, json};

/// Events before the first piece of text.
const OPENING: usize = 4;

impl AnswerScript {
    /// The whole answer.
    pub(super) fn response(&self, cached_tokens: usize) -> Value {
        let prompt = self.call.prompt.len();
        let output = self.pieces.len();
        let is_whole = self.call.reason == FinishReason::Stop;
        let mut response = self.empty_response(if is_whole { "completed" } else { "incomplete" });
        if !is_whole {
            response["incomplete_details"] = json!({"reason": "max_output_tokens"});
        }
        response["output"] = json!([self.response_item("completed", &[self.response_text()])]);
        response["usage"] = json!({
            "input_tokens": prompt,
            "input_tokens_details": {"cached_tokens": self.reported_cached_tokens(cached_tokens)},
            "output_tokens": output, "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": prompt + output,
        });
        response
    }

    /// The events that carry token `index`.
    pub(super) fn response_chunk(&self, index: usize, out: &mut Vec<u8>) {
        if index == 0 {
            self.response_beginning(out);
            let item = self.response_item("in_progress", &[]);
            let part = self.response_part("");
            let opening = [
                ("response.output_item.added", json!({"output_index": 0, "item": item})),
                ("response.content_part.added", self.in_text(json!({"part": part}))),
            ];
            push_numbered(OPENING - opening.len(), opening, out);
        }
        let delta = self.in_text(json!({"delta": self.pieces[index], "logprobs": []}));
        push_numbered(OPENING + index, [("response.output_text.delta", delta)], out);
    }

    /// The events before any work is done.
    pub(in crate::serve) fn response_beginning(&self, out: &mut Vec<u8>) {
        let begun = json!({"response": self.empty_response("in_progress")});
        let all = [("response.created", begun.clone()), ("response.in_progress", begun)];
        push_numbered(0, all, out);
    }

    /// The events after the last token.
    pub(super) fn response_ending(&self, cached_tokens: usize, out: &mut Vec<u8>) {
        let part = self.response_text();
        let text = self.text();
        let item = self.response_item("completed", std::slice::from_ref(&part));
        let ending = [
            ("response.output_text.done", self.in_text(json!({"text": text, "logprobs": []}))),
            ("response.content_part.done", self.in_text(json!({"part": part}))),
            ("response.output_item.done", json!({"output_index": 0, "item": item})),
            ("response.completed", json!({"response": self.response(cached_tokens)})),
        ];
        push_numbered(OPENING + self.pieces.len(), ending, out);
    }

    fn empty_response(&self, status: &str) -> Value {
        json!({
            "id": format!("resp_{}", self.id), "object": "response", "created_at": self.created,
            "status": status, "incomplete_details": null, "model": self.call.model, "output": [],
            "parallel_tool_calls": false, "tool_choice": "auto", "tools": [], "usage": null,
        })
    }

    fn response_item(&self, status: &str, content: &[Value]) -> Value {
        json!({
            "type": "message", "id": self.item_id(), "status": status, "role": "assistant",
            "content": content,
        })
    }

    fn response_text(&self) -> Value {
        self.response_part(&self.text())
    }

    fn response_part(&self, text: &str) -> Value {
        json!({"type": "output_text", "text": text, "annotations": []})
    }

    /// Adds the position of the only part of the only item.
    fn in_text(&self, mut event: Value) -> Value {
        event["item_id"] = json!(self.item_id());
        event["output_index"] = json!(0);
        event["content_index"] = json!(0);
        event
    }

    fn item_id(&self) -> String {
        format!("msg_{}", self.id)
    }
}

/// Appends events with their names and consecutive sequence numbers.
fn push_numbered<const N: usize>(first: usize, events: [(&str, Value); N], out: &mut Vec<u8>) {
    for (number, (name, mut event)) in (first..).zip(events) {
        event["type"] = json!(name);
        event["sequence_number"] = json!(number);
        push_named_event(&event, out);
    }
}
