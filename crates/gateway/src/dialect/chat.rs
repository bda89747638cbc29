//! OpenAI's `/v1/chat/completions`, and the functions that the dialects converted to chats share.

use super::Dialect;
use bytes::Bytes;
use serde_json::{Map, Value};
use wornpath_routing::{Messages, Prompt, PromptReading};

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

    fn prompt(&self, fields: &mut Map<String, Value>, _: &mut PromptReading) -> Prompt {
        let messages = match fields.remove("messages") {
            Some(Value::Array(messages)) => messages,
            _ => Vec::new(),
        };
        prompt(messages.into(), fields)
    }
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
