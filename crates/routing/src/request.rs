//! A request as routing sees it.
//!
//! The gateway extracts what routing needs from the body and the headers, and keeps the body. Names
//! that clients choose stay text: only a profile gives them a meaning.

use core::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use serde_json::{Map, Value};
use wornpath_blocks::{EncodeLimits, EngineRules};
use wornpath_index::{Moment, PodId};

use crate::fleet::FleetPod;
use crate::messages::Messages;
use crate::name::Name;
use crate::wait_queue::Priority;

/// One request, from arrival to the end of its response.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Request {
    /// The requested model, with aliases resolved.
    pub model: ModelChoice,
    /// The prompt to complete.
    pub prompt: Prompt,
    /// Whether it has further prompts, all for one engine.
    pub has_prompt_list: bool,
    /// How its prompt is read.
    pub reading: PromptReading,
    /// How far its prompt is tokenized. A prompt beyond these limits is routed without its tokens.
    pub encode_limits: EncodeLimits,
    /// The limit of generated tokens, if it sets one.
    pub output_tokens: Option<u32>,
    /// Header names in lower case, with their values.
    pub headers: Vec<(String, String)>,
    /// The body's other top-level fields.
    pub fields: Map<String, Value>,
    /// The tenant that sent it.
    pub tenant: Option<Name>,
    /// The salt that keeps the tenant's blocks apart.
    pub salt: Option<String>,
    /// Its priority in the wait queue.
    pub priority: Priority,
    /// Its tenant's share in the wait queue; zero counts as one.
    pub weight: u32,
    /// The pod that an offline plan assigned it to. Never set by a client.
    pub planned: Option<PodId>,
    /// The pods that may serve it, if what is in front of the router allows only some. Never set by
    /// a client.
    pub allowed: Option<AllowedPods>,
    /// Whose share of the wait queue it takes from, where it has no tenant.
    pub fairness: Option<Name>,
    /// When it arrived.
    pub arrival: Moment,
    /// The wall-clock time of arrival, in seconds since 1970: some chat templates print the date.
    pub wall: u64,
}

/// The pods that may serve a request. Asked in every decision: pods come and go while it waits.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum AllowedPods {
    /// These.
    These(Arc<[PodId]>),
    /// Those that have an address.
    Addressed,
    /// Those at one of these addresses.
    At(Arc<[PodAddress]>),
}

/// An address of pods.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PodAddress {
    /// Of one pod, or of the ranks of one engine.
    Port(SocketAddr),
    /// Of all pods of a host.
    Host(IpAddr),
}

impl AllowedPods {
    /// Whether no pod can ever be one of them.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        matches!(self, Self::At(addresses) if addresses.is_empty())
    }

    pub(crate) fn has(&self, pod: &FleetPod) -> bool {
        let address = pod.facts().address;
        match self {
            Self::These(all) => all.contains(&pod.id()),
            Self::Addressed => address.is_some(),
            Self::At(all) => address.is_some_and(|address| all.iter().any(|one| one.has(address))),
        }
    }
}

impl PodAddress {
    /// Whether a pod at this address has it.
    #[must_use]
    pub fn has(self, address: SocketAddr) -> bool {
        match self {
            Self::Port(port) => port == address,
            Self::Host(host) => host == address.ip(),
        }
    }
}

/// A base model, and the adapter on it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ModelChoice {
    /// The base model.
    pub base: Name,
    /// The LoRA adapter, if one was asked for.
    pub lora: Option<Name>,
}

impl Default for ModelChoice {
    fn default() -> Self {
        Self { base: Name::from(""), lora: None }
    }
}

/// What the engine is to complete.
#[derive(Clone, PartialEq, Debug)]
pub enum Prompt {
    /// Token ids.
    Tokens(Vec<u32>),
    /// Text, to be tokenized as it is.
    Text(String),
    /// A conversation, to be rendered by the model's template.
    Chat {
        /// `messages` of the body.
        messages: Messages,
        /// `tools` of the body.
        tools: Option<Vec<Value>>,
        /// `chat_template_kwargs` of the body.
        kwargs: Option<Map<String, Value>>,
    },
}

impl Default for Prompt {
    fn default() -> Self {
        Self::Tokens(Vec::new())
    }
}

/// The client API by whose rules a prompt is read.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum PromptApi {
    /// OpenAI's chats, and completions.
    #[default]
    Chat,
    /// OpenAI's responses.
    Responses,
    /// Anthropic's messages.
    Messages,
}

/// How the prompt of a request is read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PromptReading {
    /// Whose rules apply; none if the pods of the model follow different ones.
    pub engine: Option<EngineRules>,
    /// The API.
    pub api: PromptApi,
    /// Whether the last message is to be continued, for APIs in which it says so itself.
    pub continues: bool,
    /// Whether all engines convert it to the same chat, for APIs that engines convert to chats.
    pub is_plain: bool,
    /// Whether it has something whose effect on the prompt is not known.
    pub is_unknown: bool,
}

impl Default for PromptReading {
    fn default() -> Self {
        Self {
            engine: Some(EngineRules::default()),
            api: PromptApi::default(),
            continues: false,
            is_plain: false,
            is_unknown: false,
        }
    }
}

/// A body that no engine could answer.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum RequestError {
    /// Not JSON.
    #[error("the body is not JSON: {cause}")]
    NotJson {
        /// What the parser says, with line and column.
        cause: String,
    },
    /// JSON, but not an object.
    #[error("the body is {found}, not a JSON object")]
    NotAnObject {
        /// What it is instead.
        found: &'static str,
    },
    /// A field has the wrong type.
    #[error("`{field}` is {found}; it must be {expected}")]
    WrongType {
        /// The field.
        field: &'static str,
        /// What it is.
        found: &'static str,
        /// What it should be.
        expected: &'static str,
    },
    /// Neither `messages` nor `prompt`.
    #[error("the body has neither `messages` nor `prompt`; give one of them")]
    NoPrompt,
}

impl Request {
    /// Whether the response is streamed.
    #[must_use]
    pub fn is_streamed(&self) -> bool {
        self.fields.get("stream").and_then(Value::as_bool).unwrap_or(false)
    }

    /// Reads an OpenAI body: `messages` for a chat, `prompt` (text or token ids) for a completion.
    ///
    /// # Errors
    /// If it is not a JSON object with one of the two, or a field has the wrong type.
    pub fn from_json(body: &[u8]) -> Result<Self, RequestError> {
        let value: Value = serde_json::from_slice(body)
            .map_err(|error| RequestError::NotJson { cause: error.to_string() })?;
        let Value::Object(mut fields) = value else {
            return Err(RequestError::NotAnObject { found: kind(&value) });
        };
        let model = match fields.get("model") {
            None => String::new(),
            Some(Value::String(model)) => model.clone(),
            Some(other) => return Err(wrong("model", other, "a string")),
        };
        let output_tokens = ["max_completion_tokens", "max_tokens"]
            .into_iter()
            .find_map(|field| fields.get(field).and_then(Value::as_u64))
            .map(|tokens| u32::try_from(tokens).unwrap_or(u32::MAX));
        let salt = fields.get("cache_salt").and_then(Value::as_str).map(str::to_owned);
        let prompt = prompt(&mut fields)?;
        let model = ModelChoice { base: model.into(), lora: None };
        Ok(Self { model, prompt, output_tokens, fields, salt, ..Self::default() })
    }

    /// The first value of a header; `name` in lower case.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// The estimated length of a prompt that is not tokenized: about four bytes of text per token.
    #[must_use]
    pub fn estimated_tokens(&self) -> u64 {
        let bytes = match &self.prompt {
            Prompt::Tokens(tokens) => return tokens.len() as u64,
            Prompt::Text(text) => text.len(),
            Prompt::Chat { messages, .. } => match messages.written() {
                Some(written) => written.len(),
                None => messages.iter().map(text_bytes).sum(),
            },
        };
        bytes.div_ceil(4) as u64
    }
}

fn prompt(fields: &mut Map<String, Value>) -> Result<Prompt, RequestError> {
    if let Some(messages) = fields.remove("messages") {
        let Value::Array(messages) = messages else {
            return Err(wrong("messages", &messages, "a list"));
        };
        let tools = match fields.remove("tools") {
            None | Some(Value::Null) => None,
            Some(Value::Array(tools)) => Some(tools),
            Some(other) => return Err(wrong("tools", &other, "a list")),
        };
        let kwargs = match fields.remove("chat_template_kwargs") {
            None | Some(Value::Null) => None,
            Some(Value::Object(kwargs)) => Some(kwargs),
            Some(other) => return Err(wrong("chat_template_kwargs", &other, "an object")),
        };
        return Ok(Prompt::Chat { messages: messages.into(), tools, kwargs });
    }
    match fields.remove("prompt") {
        None => Err(RequestError::NoPrompt),
        Some(Value::String(text)) => Ok(Prompt::Text(text)),
        Some(Value::Array(items)) => {
            let id = |item: &Value| item.as_u64().and_then(|id| u32::try_from(id).ok());
            let tokens: Option<Vec<u32>> = items.iter().map(id).collect();
            tokens.map(Prompt::Tokens).ok_or(RequestError::WrongType {
                field: "prompt",
                found: "a list of something else",
                expected: "a string or token ids",
            })
        }
        Some(other) => Err(wrong("prompt", &other, "a string or token ids")),
    }
}

/// The text in a message: strings at any depth, names of fields aside.
fn text_bytes(value: &Value) -> usize {
    match value {
        Value::String(text) => text.len(),
        Value::Array(items) => items.iter().map(text_bytes).sum(),
        Value::Object(fields) => fields.values().map(text_bytes).sum(),
        _ => 0,
    }
}

fn wrong(field: &'static str, found: &Value, expected: &'static str) -> RequestError {
    RequestError::WrongType { field, found: kind(found), expected }
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chat_a_text_and_token_ids_are_prompts() {
        let chat = Request::from_json(br#"{"model":"m","messages":[{"role":"user","content":"12345678"}],"max_tokens":9,"user":"u"}"#).unwrap();
        assert!(matches!(chat.prompt, Prompt::Chat { .. }));
        assert_eq!((chat.output_tokens, chat.estimated_tokens()), (Some(9), 3));
        assert_eq!(chat.fields["user"], "u");
        let text = Request::from_json(br#"{"prompt":"abc"}"#).unwrap();
        assert_eq!(text.prompt, Prompt::Text("abc".into()));
        let ids = Request::from_json(br#"{"prompt":[1,2,3]}"#).unwrap();
        assert_eq!(ids.prompt, Prompt::Tokens(vec![1, 2, 3]));
    }

    #[test]
    fn a_malformed_body_is_named_in_the_error() {
        let says = |body: &str| Request::from_json(body.as_bytes()).unwrap_err().to_string();
        assert!(says("{").starts_with("the body is not JSON: EOF"));
        assert_eq!(says("3"), "the body is a number, not a JSON object");
        assert_eq!(says("[1]"), "the body is a list, not a JSON object");
        assert_eq!(says(r#"{"model":3}"#), "`model` is a number; it must be a string");
        assert_eq!(
            says(r#"{"prompt":["a"]}"#),
            "`prompt` is a list of something else; it must be a string or token ids"
        );
        assert_eq!(says("{}"), "the body has neither `messages` nor `prompt`; give one of them");
    }
}
