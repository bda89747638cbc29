//! Anthropic's messages API: an answer as one message, or as named events.

use super::{AnswerScript, push_named_event};
use crate::serve::call::FinishReason;
use serde_json::{Value, json};

impl AnswerScript {
    /// The whole answer.
    pub(super) fn message(&self) -> Value {
        let content = match &self.call.tool {
            None => json!({"type": "text", "text": self.text()}),
            Some(name) => {
                json!({"type": "tool_use", "id": self.call_id(), "name": name, "input": self.argument()})
            }
        };
        let mut message = self.empty_message();
        message["content"] = json!([content]);
        message["stop_reason"] = json!(self.stop_reason());
        message["usage"]["output_tokens"] = json!(self.pieces.len());
        message
    }

    /// The events that carry token `index`.
    pub(super) fn message_chunk(&self, index: usize, out: &mut Vec<u8>) {
        if index == 0 {
            let block = match &self.call.tool {
                None => json!({"type": "text", "text": ""}),
                Some(name) => {
                    json!({"type": "tool_use", "id": self.call_id(), "name": name, "input": {}})
                }
            };
            self.message_beginning(out);
            push_named_event(
                &json!({"type": "content_block_start", "index": 0, "content_block": block}),
                out,
            );
        }
        let delta = match &self.call.tool {
            None => json!({"type": "text_delta", "text": self.pieces[index]}),
            Some(_) => {
                json!({"type": "input_json_delta", "partial_json": self.argument_piece(index)})
            }
        };
        push_named_event(&json!({"type": "content_block_delta", "index": 0, "delta": delta}), out);
    }

    /// The first event, before any token.
    pub(in crate::serve) fn message_beginning(&self, out: &mut Vec<u8>) {
        push_named_event(&json!({"type": "message_start", "message": self.empty_message()}), out);
    }

    /// The events after the last token.
    pub(super) fn message_ending(&self, out: &mut Vec<u8>) {
        push_named_event(&json!({"type": "content_block_stop", "index": 0}), out);
        let delta = json!({"stop_reason": self.stop_reason(), "stop_sequence": null});
        let usage = json!({"output_tokens": self.pieces.len()});
        push_named_event(&json!({"type": "message_delta", "delta": delta, "usage": usage}), out);
        push_named_event(&json!({"type": "message_stop"}), out);
    }

    fn empty_message(&self) -> Value {
        json!({
            "id": format!("msg_{}", self.id), "type": "message", "role": "assistant",
            "model": self.call.model, "content": [], "stop_reason": null, "stop_sequence": null,
            "usage": {"input_tokens": self.call.prompt.len(), "output_tokens": 0},
        })
    }

    const fn stop_reason(&self) -> &'static str {
        match (&self.call.tool, self.call.reason) {
            (Some(_), _) => "tool_use",
            (None, FinishReason::Stop) => "end_turn",
            (None, FinishReason::Length) => "max_tokens",
        }
    }
}
