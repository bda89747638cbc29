//! OpenAI's `/v1/chat/completions`, and the functions that the dialects converted to chats share.

use super::Dialect;
use bytes::Bytes;
use serde_json::{Map, Value};
use wornpath_routing::{Messages, Prompt};

/// OpenAI's chat API.
pub(super) struct Chat;

impl Dialect for Chat {
    fn name(&self) -> &'static str {
        "chat"
    }

    fn paths(&self) -> &'static [&'static str] {
        &["/v1/chat/completions"]
    }

    fn generates(&self) -> bool {
        true
    }

    fn reports_usage_on_request(&self) -> bool {
        true
    }

    fn renders_numbers(&self) -> bool {
        true
    }

    fn take_messages(&self, body: &Bytes) -> Option<(Messages, Map<String, Value>)> {
        Messages::take_from(body)
    }

    fn prompt(&self, fields: &mut Map<String, Value>) -> Prompt {
        conversation(Vec::new(), fields)
    }
}

/// A chat of the messages in `before`, followed by those in the body.
pub(super) fn conversation(mut before: Vec<Value>, fields: &mut Map<String, Value>) -> Prompt {
    if let Some(Value::Array(messages)) = fields.remove("messages") {
        if before.is_empty() {
            before = messages;
        } else {
            before.extend(messages);
        }
    }
    prompt(before.into(), fields)
}

/// A chat of these messages, with the tools and template arguments of the body.
pub(crate) fn prompt(messages: Messages, fields: &mut Map<String, Value>) -> Prompt {
    let tools = match fields.remove("tools") {
        Some(Value::Array(tools)) => Some(tools),
        _ => None,
    };
    let kwargs = match fields.remove("chat_template_kwargs") {
        Some(Value::Object(kwargs)) => Some(kwargs),
        _ => None,
    };
    Prompt::Chat { messages, tools, kwargs }
}
