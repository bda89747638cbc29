//! Parses the body of an inference request as far as an engine without a model needs it.

use super::text::{StopStrings, TextModel};
use crate::request::PromptSource;
use hyper::StatusCode;
use serde_json::{Map, Value, json};

/// Default `max_tokens` of a completion, as in OpenAI's API.
const COMPLETION_TOKENS: u64 = 16;

/// The API of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum CallKind {
    Chat,
    Completion,
    /// Anthropic's messages.
    Messages,
    /// OpenAI's responses.
    Responses,
}

/// How the answer is delivered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum CallDelivery {
    Whole,
    Stream,
    StreamWithUsage,
}

/// Why generation ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum FinishReason {
    Stop,
    Length,
}

impl FinishReason {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Length => "length",
        }
    }
}

/// The phases that this engine computes of a request under prefill/decode disaggregation.
#[derive(Clone, PartialEq, Debug)]
pub(super) enum CallPhase {
    /// Prefill and decode.
    Both,
    /// Prefill; it keeps the blocks for another engine.
    Prefill,
    /// Decode; it fetches the blocks from another engine.
    Decode(Remote),
}

/// The prefill engine that computed a prompt.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Remote {
    pub(super) host: String,
    pub(super) port: u16,
    /// Its engine id, if the request has one: another engine may have its address by now.
    pub(super) engine: Option<String>,
    pub(super) request: String,
}

/// A parsed inference request.
#[derive(Clone, Debug)]
pub(super) struct EngineCall {
    pub(super) kind: CallKind,
    pub(super) model: String,
    pub(super) prompt: Vec<u32>,
    pub(super) output_tokens: usize,
    pub(super) reason: FinishReason,
    pub(super) delivery: CallDelivery,
    pub(super) salt: Option<String>,
    pub(super) phase: CallPhase,
    /// The tool that must be called.
    pub(super) tool: Option<String>,
    pub(super) stops: StopStrings,
    /// Whether the ids of tokens are streamed.
    pub(super) returns_ids: bool,
}

impl EngineCall {
    pub(super) fn source(&self) -> PromptSource {
        match self.phase {
            CallPhase::Decode(_) => PromptSource::Transferred,
            CallPhase::Both | CallPhase::Prefill => PromptSource::Computed,
        }
    }
}

/// The error response to a request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct CallRefusal {
    pub(super) status: StatusCode,
    pub(super) message: String,
}

impl CallRefusal {
    pub(super) fn bad(message: impl Into<String>) -> Self {
        Self { status: StatusCode::BAD_REQUEST, message: message.into() }
    }

    /// The response body in vLLM's format.
    pub(super) fn body(&self) -> Value {
        let kind = match self.status.as_u16() {
            404 => "NotFoundError",
            400..500 => "BadRequestError",
            _ => "InternalServerError",
        };
        let code = self.status.as_u16();
        json!({"error": {"message": self.message, "type": kind, "param": null, "code": code}})
    }
}

/// Parses requests for one engine.
pub(super) struct CallReader<'a> {
    pub(super) text: &'a TextModel,
    /// The model, then its adapters.
    pub(super) models: &'a [String],
    /// Output tokens of a request that sets no limit.
    pub(super) answer_tokens: usize,
}

impl CallReader<'_> {
    pub(super) fn object(body: &[u8]) -> Result<Map<String, Value>, CallRefusal> {
        match serde_json::from_slice(body) {
            Ok(Value::Object(object)) => Ok(object),
            Ok(_) => Err(CallRefusal::bad("the body must be a JSON object")),
            Err(error) => Err(CallRefusal::bad(format!("the body is not JSON: {error}"))),
        }
    }

    pub(super) fn call(
        &self,
        kind: CallKind,
        body: &Map<String, Value>,
    ) -> Result<EngineCall, CallRefusal> {
        let model = self.model(body)?;
        if count(body, "n")?.is_some_and(|n| n != 1) {
            return Err(CallRefusal::bad(
                "this engine generates one choice; omit `n` or set it to 1",
            ));
        }
        let prompt = self.tokens(kind, body)?;
        let answered = self.text.answered(body).map_err(CallRefusal::bad)?;
        let (output_tokens, reason) = self.length(kind, body, answered)?;
        let usage = body.get("stream_options").and_then(|options| options.get("include_usage"));
        let delivery = match (flag(body, "stream")?, usage.and_then(Value::as_bool)) {
            (true, Some(true)) => CallDelivery::StreamWithUsage,
            (true, _) => CallDelivery::Stream,
            (false, _) => CallDelivery::Whole,
        };
        let salt = match body.get("cache_salt") {
            None | Some(Value::Null) => None,
            Some(Value::String(salt)) if !salt.is_empty() => Some(salt.clone()),
            Some(_) => {
                return Err(CallRefusal::bad("`cache_salt` must be a string that is not empty"));
            }
        };
        Ok(EngineCall {
            kind,
            model,
            prompt,
            output_tokens,
            reason,
            delivery,
            salt,
            phase: phase(body)?,
            tool: forced_tool(kind, body),
            stops: stop_strings(body),
            returns_ids: flag(body, "return_token_ids")?,
        })
    }

    /// The model or adapter that a request names; without a name, the model.
    pub(super) fn model(&self, body: &Map<String, Value>) -> Result<String, CallRefusal> {
        match body.get("model") {
            None | Some(Value::Null) => Ok(self.models[0].clone()),
            Some(Value::String(name)) if self.models.contains(name) => Ok(name.clone()),
            Some(other) => Err(CallRefusal {
                status: StatusCode::NOT_FOUND,
                message: format!(
                    "the model {other} does not exist; available: {}",
                    self.models.join(", ")
                ),
            }),
        }
    }

    /// The tokens of a request's prompt.
    pub(super) fn tokens(
        &self,
        kind: CallKind,
        body: &Map<String, Value>,
    ) -> Result<Vec<u32>, CallRefusal> {
        let tokens = match kind {
            CallKind::Chat => self.text.chat(body).map_err(CallRefusal::bad)?,
            CallKind::Messages | CallKind::Responses => {
                self.text.chat(&as_chat(kind, body)).map_err(CallRefusal::bad)?
            }
            CallKind::Completion => {
                let prompts = self.inputs(body.get("prompt").unwrap_or(&Value::Null), "prompt")?;
                let Ok([tokens]) = <[Vec<u32>; 1]>::try_from(prompts) else {
                    return Err(CallRefusal::bad("this engine accepts one prompt per request"));
                };
                tokens
            }
        };
        if tokens.is_empty() {
            return Err(CallRefusal::bad("the prompt has no tokens; send at least one"));
        }
        Ok(tokens)
    }

    /// The tokens of `prompt` or `input`: one or several texts or token lists.
    pub(super) fn inputs(&self, value: &Value, field: &str) -> Result<Vec<Vec<u32>>, CallRefusal> {
        let wrong = || {
            CallRefusal::bad(format!(
                "`{field}` must be a string, an array of strings, an array of token ids or an array of such arrays"
            ))
        };
        match value {
            Value::String(text) => Ok(vec![self.text.prompt(text).map_err(CallRefusal::bad)?]),
            Value::Array(items) if items.iter().all(Value::is_u64) && !items.is_empty() => {
                let token = |item: &Value| item.as_u64().and_then(|id| u32::try_from(id).ok());
                let tokens: Option<Vec<u32>> = items.iter().map(token).collect();
                Ok(vec![tokens.ok_or_else(wrong)?])
            }
            Value::Array(items) if !items.is_empty() => {
                let mut all = Vec::new();
                for item in items {
                    if !item.is_string()
                        && !item.as_array().is_some_and(|ids| ids.iter().all(Value::is_u64))
                    {
                        return Err(wrong());
                    }
                    all.extend(self.inputs(item, field)?);
                }
                Ok(all)
            }
            _ => Err(wrong()),
        }
    }

    /// The number of tokens to generate after `answered` ones, and why generation ends there.
    fn length(
        &self,
        kind: CallKind,
        body: &Map<String, Value>,
        answered: usize,
    ) -> Result<(usize, FinishReason), CallRefusal> {
        let mut limit = None;
        for name in ["max_completion_tokens", "max_output_tokens", "max_tokens"] {
            limit = limit.or(count(body, name)?);
        }
        let most = match (limit, kind) {
            (Some(0), _) => {
                return Err(CallRefusal::bad("`max_tokens` is 0; it must be at least 1"));
            }
            (Some(most), _) => most,
            // As in vLLM, `null` is no limit.
            (None, CallKind::Completion) if !body.contains_key("max_tokens") => COMPLETION_TOKENS,
            (None, _) => u64::MAX,
        };
        let least = count(body, "min_tokens")?.unwrap_or(0);
        let wanted = if flag(body, "ignore_eos")? && most < u64::MAX {
            most
        } else {
            least.max(self.answer_tokens.saturating_sub(answered).max(1) as u64)
        };
        let reason = if wanted < most { FinishReason::Stop } else { FinishReason::Length };
        Ok((usize::try_from(wanted.min(most)).unwrap_or(usize::MAX), reason))
    }
}

fn phase(body: &Map<String, Value>) -> Result<CallPhase, CallRefusal> {
    let Some(Value::Object(fields)) = body.get("kv_transfer_params") else {
        return Ok(CallPhase::Both);
    };
    if flag(fields, "do_remote_decode")? {
        return Ok(CallPhase::Prefill);
    }
    if !flag(fields, "do_remote_prefill")? {
        return Ok(CallPhase::Both);
    }
    let text = |name: &str| {
        let value = fields.get(name).and_then(Value::as_str);
        value.map(str::to_owned).ok_or_else(|| {
            CallRefusal::bad(format!(
                "`kv_transfer_params.{name}` must be the string that the prefill engine returned"
            ))
        })
    };
    let port = count(fields, "remote_port")?.and_then(|port| u16::try_from(port).ok());
    let port =
        port.ok_or_else(|| CallRefusal::bad("`kv_transfer_params.remote_port` must be a port"))?;
    Ok(CallPhase::Decode(Remote {
        host: text("remote_host")?,
        port,
        engine: text("remote_engine_id").ok(),
        request: text("remote_request_id")?,
    }))
}

/// The tool that the request forces: `required`, `any`, or one by name.
fn forced_tool(kind: CallKind, body: &Map<String, Value>) -> Option<String> {
    let choice = body.get("tool_choice")?;
    let named = match kind {
        CallKind::Messages => &choice["name"],
        _ => &choice["function"]["name"],
    };
    if let Some(name) = named.as_str() {
        return Some(name.to_owned());
    }
    let is_forced = choice == "required" || choice["type"] == "any";
    let first = body.get("tools")?.get(0)?;
    let name = if kind == CallKind::Messages { &first["name"] } else { &first["function"]["name"] };
    name.as_str().filter(|_| is_forced).map(str::to_owned)
}

/// The stop strings of a request, of either name.
fn stop_strings(body: &Map<String, Value>) -> StopStrings {
    let all = match body.get("stop").or_else(|| body.get("stop_sequences")) {
        Some(Value::String(stop)) => vec![stop.clone()],
        Some(Value::Array(stops)) => {
            stops.iter().filter_map(Value::as_str).map(str::to_owned).collect()
        }
        _ => Vec::new(),
    };
    let are_included =
        body.get("include_stop_str_in_output").and_then(Value::as_bool).unwrap_or(false);
    StopStrings { all: all.into_iter().filter(|stop| !stop.is_empty()).collect(), are_included }
}

/// The body of another API as a chat completion's.
fn as_chat(kind: CallKind, body: &Map<String, Value>) -> Map<String, Value> {
    let mut chat = body.clone();
    let (system, rest) = match kind {
        CallKind::Responses => ("instructions", "input"),
        _ => ("system", "messages"),
    };
    let mut messages = Vec::new();
    if let Some(content) = chat.remove(system).filter(|content| !content.is_null()) {
        messages.push(json!({"role": "system", "content": content}));
    }
    match chat.remove(rest) {
        Some(Value::Array(all)) => messages.extend(all),
        Some(text) => messages.push(json!({"role": "user", "content": text})),
        None => {}
    }
    chat.remove("tools");
    chat.insert("messages".to_owned(), messages.into());
    chat
}

fn count(body: &Map<String, Value>, name: &str) -> Result<Option<u64>, CallRefusal> {
    match body.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(value) => match value.as_u64() {
            Some(count) => Ok(Some(count)),
            None => {
                Err(CallRefusal::bad(format!("`{name}` is {value}; it must be a whole number")))
            }
        },
    }
}

fn flag(body: &Map<String, Value>, name: &str) -> Result<bool, CallRefusal> {
    match body.get(name) {
        None | Some(Value::Null) => Ok(false),
        Some(Value::Bool(flag)) => Ok(*flag),
        Some(other) => {
            Err(CallRefusal::bad(format!("`{name}` is {other}; it must be true or false")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(kind: CallKind, body: &Value) -> Result<EngineCall, CallRefusal> {
        let models = ["base".to_owned(), "tuned".to_owned()];
        let reader = CallReader { text: &TextModel::Bytes, models: &models, answer_tokens: 50 };
        reader.call(kind, body.as_object().unwrap())
    }

    #[test]
    fn generation_ends_by_itself_or_at_the_requested_length() {
        let length = |body: Value| {
            let call = read(CallKind::Completion, &body).unwrap();
            (call.output_tokens, call.reason)
        };
        assert_eq!(length(json!({"prompt": "a"})), (16, FinishReason::Length));
        assert_eq!(length(json!({"prompt": "a", "max_tokens": 80})), (50, FinishReason::Stop));
        let exact = json!({"prompt": "a", "max_tokens": 80, "ignore_eos": true});
        assert_eq!(length(exact), (80, FinishReason::Length));
        let chat = json!({"messages": [{"role": "user", "content": "a"}]});
        assert_eq!(read(CallKind::Chat, &chat).unwrap().output_tokens, 50);
    }

    #[test]
    fn a_prompt_is_a_text_or_a_list_of_tokens() {
        let prompt =
            |value: Value| read(CallKind::Completion, &json!({"prompt": value})).map(|c| c.prompt);
        assert_eq!(prompt(json!("ab")), Ok(vec![97, 98]));
        assert_eq!(prompt(json!([97, 98])), Ok(vec![97, 98]));
        assert_eq!(prompt(json!(["ab"])), Ok(vec![97, 98]));
        assert_eq!(prompt(json!([[97, 98]])), Ok(vec![97, 98]));
        for wrong in
            [json!(7), json!([]), json!([1, "a"]), json!([[[1]]]), json!(["a", "b"]), json!([-1])]
        {
            assert_eq!(
                prompt(wrong.clone()).unwrap_err().status,
                StatusCode::BAD_REQUEST,
                "{wrong}"
            );
        }
    }

    #[test]
    fn an_error_names_the_wrong_field_and_its_value() {
        let message = |body: Value| read(CallKind::Completion, &body).unwrap_err().message;
        assert!(
            message(json!({"prompt": "a", "model": "other"}))
                .contains("\"other\" does not exist; available: base, tuned")
        );
        assert!(message(json!({"prompt": "a", "stream": "yes"})).contains("`stream` is \"yes\""));
        assert!(message(json!({"prompt": "a", "max_tokens": 0})).contains("`max_tokens` is 0"));
        let params = json!({"do_remote_prefill": true, "remote_host": "h", "remote_port": 1});
        assert!(
            message(json!({"prompt": "a", "kv_transfer_params": params}))
                .contains("remote_request_id")
        );
    }
}
