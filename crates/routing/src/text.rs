//! [`Tokenize`] by the engine's own rules: the chat template and the tokenizer of a model.

use std::borrow::Cow;
use std::cell::RefCell;
use std::sync::Arc;

use serde_json::{Map, Value};
use wornpath_blocks::chat::{
    ChatTemplate, ChatTurn, Conversation, Extent, PromptEnding, Rendered, TemplateError, WallTime,
};
use wornpath_blocks::{EncodeStop, HashKey, SpecialTokens, TokenCache, Tokenizer, TokenizerError};

use crate::messages::{Messages, Walk, WrittenSpan};
use crate::models::{Tokenize, TokenizeError, Untokenized};
use crate::request::{Prompt, Request};

/// The size of the token cache: thousands of long prompts.
const CACHE_BYTES: usize = 64 << 20;

/// The largest prompt buffer that is kept for the next prompt.
const KEPT_BYTES: usize = 1 << 20;

thread_local! {
    /// The buffer of rendered prompts, reused because it is still in the processor's caches.
    static PROMPT: RefCell<String> = const { RefCell::new(String::new()) };
}

/// A model's tokenizer and, if it has one, its chat template. Caches tokens, so that the next turn
/// of a conversation costs only its new text.
pub struct TextTokenizer {
    cache: TokenCache,
    template: Option<ChatTemplate>,
}

/// The parts of [`Prompt::Chat`].
#[derive(Clone, Copy)]
struct Chat<'a> {
    messages: &'a Messages,
    tools: Option<&'a [Value]>,
    kwargs: Option<&'a Map<String, Value>>,
}

impl TextTokenizer {
    /// From the model's tokenizer and template.
    #[must_use]
    pub fn new(tokenizer: Tokenizer, template: Option<ChatTemplate>) -> Self {
        // Texts are compared in full, so a client that knows the key can at most evict entries.
        let cache = TokenCache::new(Arc::new(tokenizer), &HashKey::DEFAULT, CACHE_BYTES);
        Self { cache, template }
    }

    /// Tokenizes a chat; from the bytes of the body, without parsing the messages, if the template
    /// allows.
    fn encode_chat(
        &self,
        request: &Request,
        chat: Chat<'_>,
        tokens: &mut Vec<u32>,
    ) -> Result<(), TokenizeError> {
        let Chat { messages, tools, kwargs } = chat;
        let template = self.template.as_ref().ok_or(TokenizeError::NoTemplate)?;
        // A template writes its special tokens itself.
        let framing = framing(&request.fields).unwrap_or(SpecialTokens::InText);
        let limits = request.encode_limits;
        if tools.is_none()
            && let Some(turns) = turns(messages)
        {
            let mut text = PROMPT.take();
            text.clear();
            let is_known = template.fill_in(&turns, ending(&request.fields), kwargs, &mut text);
            let encoded =
                is_known.then(|| self.cache.encode_within(&text, framing, limits, tokens));
            if text.capacity() <= KEPT_BYTES {
                PROMPT.set(text);
            }
            if let Some(encoded) = encoded {
                return Ok(encoded?);
            }
        }
        let conversation = Conversation { tools, kwargs, ..conversation(request, messages) };
        let rendered = template.render(&conversation);
        let Rendered { text, extent } =
            rendered.map_err(|error| TokenizeError::NotRendered(template_cause(error)))?;
        let encoded = match extent {
            Extent::Whole => self.cache.encode_within(&text, framing, limits, tokens),
            Extent::BeforePart => {
                self.cache.tokenizer().encode_beginning(&text, framing, limits, tokens)
            }
        };
        Ok(encoded?)
    }
}

impl From<TokenizerError> for TokenizeError {
    fn from(error: TokenizerError) -> Self {
        use TokenizerError::{Failed, Invalid, NotJson, Stopped};
        match error {
            NotJson { cause, .. } | Invalid { cause, .. } | Failed { cause, .. } => {
                Self::NotTokenized(cause)
            }
            Stopped { why, .. } => Self::Stopped(match why {
                EncodeStop::TooManyTokens(_) => Untokenized::TooLong,
                EncodeStop::NoSplitPoint(_) => Untokenized::NoSplitPoint,
                EncodeStop::Interrupted => Untokenized::Timeout,
            }),
        }
    }
}

/// Why a template failed, without its file: clients get this text, and no path of this machine.
fn template_cause(error: TemplateError) -> String {
    match error {
        TemplateError::Missing { .. } => "it has no `chat_template`".to_owned(),
        TemplateError::Invalid { cause, .. } | TemplateError::Rejected { cause, .. } => cause,
    }
}

/// The conversation at the request's time, with the prompt ending that the request sets.
fn conversation<'a>(request: &Request, messages: &'a [Value]) -> Conversation<'a> {
    let now = WallTime(i64::try_from(request.wall).unwrap_or_default());
    Conversation { ending: ending(&request.fields), now, ..Conversation::new(messages) }
}

/// The prompt ending that the client sets, by the fields of vLLM and SGLang.
fn ending(fields: &Map<String, Value>) -> PromptEnding {
    let flag = |field: &str| fields.get(field).and_then(Value::as_bool);
    match (flag("continue_final_message"), flag("add_generation_prompt")) {
        (Some(true), _) => PromptEnding::InsideLastMessage,
        (_, Some(false)) => PromptEnding::LastMessage,
        _ => PromptEnding::GenerationPrompt,
    }
}

/// The special tokens around the prompt, if the client sets them.
fn framing(fields: &Map<String, Value>) -> Option<SpecialTokens> {
    let is_framed = fields.get("add_special_tokens")?.as_bool()?;
    Some(if is_framed { SpecialTokens::Added } else { SpecialTokens::InText })
}

impl Tokenize for TextTokenizer {
    fn tokenize(&self, request: &Request, tokens: &mut Vec<u32>) -> Result<(), TokenizeError> {
        match &request.prompt {
            Prompt::Tokens(ids) => {
                tokens.extend_from_slice(ids);
                Ok(())
            }
            Prompt::Text(text) => {
                let framing = framing(&request.fields).unwrap_or(SpecialTokens::Added);
                Ok(self.cache.encode_within(text, framing, request.encode_limits, tokens)?)
            }
            Prompt::Chat { messages, tools, kwargs } => {
                let tools = tools.as_deref();
                let kwargs = kwargs.as_ref();
                self.encode_chat(request, Chat { messages, tools, kwargs }, tokens)
            }
        }
    }
}

/// The turns of a conversation of nothing but texts that was taken from a body, without a tree.
fn turns(messages: &Messages) -> Option<Vec<ChatTurn<'_>>> {
    let mut walk = Walk::new(messages.written()?);
    let mut turns = Vec::new();
    while walk.has_member(b']')? {
        turns.push(turn(&mut walk)?);
    }
    Some(turns)
}

fn turn<'a>(walk: &mut Walk<'a>) -> Option<ChatTurn<'a>> {
    if walk.next()? != b'{' {
        return None;
    }
    let mut role = None;
    let mut content = None;
    while walk.has_member(b'}')? {
        let field = match walk.string()?.text {
            "role" => &mut role,
            "content" => &mut content,
            _ => return None,
        };
        walk.expect(b':')?;
        let is_text = walk.next()? == b'"';
        // Of several of one name, a parser takes the last.
        if !is_text || field.replace(walk.string()?).is_some() {
            return None;
        }
    }
    Some(ChatTurn { role: unescaped(role?), content: unescaped(content?) })
}

/// A string's text, copied only if it has escapes.
fn unescaped(written: WrittenSpan<'_>) -> Cow<'_, str> {
    if written.has_escapes { written.text().into() } else { written.text.into() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use proptest::prelude::*;
    use serde_json::json;
    use wornpath_blocks::chat::TokenizerConfig;

    #[test]
    fn a_template_gets_the_requests_time_and_the_ending_that_it_asks_for() {
        let config = TokenizerConfig::from_json("c.json", b"{}").unwrap();
        let source = "{{ strftime_now('%Y') }} {{ messages[0].content }}{% if add_generation_prompt %}>{% endif %}";
        let template = ChatTemplate::from_jinja("t", source, &config).unwrap();
        let messages = [json!({"role": "assistant", "content": "so"})];
        let rendered = |fields: Value| {
            let fields = fields.as_object().unwrap().clone();
            let request = Request { fields, wall: 1_800_000_000, ..Request::default() };
            template.render(&conversation(&request, &messages)).unwrap().text
        };
        assert_eq!(rendered(json!({})), "2027 so>");
        assert_eq!(rendered(json!({"add_generation_prompt": false})), "2027 so");
        assert_eq!(rendered(json!({"continue_final_message": true})), "2027 so");
    }

    #[test]
    fn errors_for_clients_name_no_file_of_this_machine() {
        let json = include_bytes!("../../blocks/tests/models/tiny-llama/tokenizer.json");
        let config = TokenizerConfig::from_json("/srv/m/c.json", b"{}").unwrap();
        let source = "{{ raise_exception('roles must alternate') }}";
        let template = ChatTemplate::from_jinja("/srv/m/t.jinja", source, &config).unwrap();
        let tokenizer = Tokenizer::from_json("/srv/m/tokenizer.json", json).unwrap();
        let tokenizer = TextTokenizer::new(tokenizer, Some(template));
        let messages = vec![json!({"role": "user", "content": "a"})];
        let prompt = Prompt::Chat { messages: messages.into(), tools: None, kwargs: None };
        let request = Request { prompt, ..Request::default() };
        let error = tokenizer.tokenize(&request, &mut Vec::new()).unwrap_err().to_string();
        assert!(error.contains("roles must alternate") && !error.contains("/srv"), "{error}");
        let failed = TokenizerError::Failed { file: "/srv/m".into(), cause: "too long".into() };
        let error = TokenizeError::from(failed).to_string();
        assert_eq!(error, "tokenization failed: too long");
    }

    #[test]
    fn a_chat_has_the_same_tokens_from_its_bytes_as_from_a_tree() {
        let json = include_bytes!("../../blocks/tests/models/tiny-llama/tokenizer.json");
        let source = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}{{ 'ends' if not add_generation_prompt }}\
                      {{ 'thinks' if thinks }}{{ 'tools' if tools }}";
        let config = TokenizerConfig::from_json("c.json", b"{}").unwrap();
        let of = || {
            let template = ChatTemplate::from_jinja("t", source, &config).unwrap();
            TextTokenizer::new(Tokenizer::from_json("t", json).unwrap(), Some(template))
        };
        let tokens = |by: &TextTokenizer, body: &Value, messages: Messages| {
            let fields = body.as_object().unwrap().clone();
            let tools = fields.get("tools").and_then(Value::as_array).cloned();
            let kwargs = fields.get("kwargs").and_then(Value::as_object).cloned();
            let prompt = Prompt::Chat { messages, tools, kwargs };
            let mut tokens = Vec::new();
            let request = Request { fields, prompt, ..Request::default() };
            by.tokenize(&request, &mut tokens).unwrap();
            tokens
        };
        let by_bytes = of();
        for contents in [["one", "two"], ["three", "four"], ["\"five\"", "six\n\u{1f600}"]] {
            let mut seen = Vec::new();
            for more in [
                json!({}),
                json!({"add_generation_prompt": false}),
                json!({"kwargs": {"thinks": true}}),
                json!({"tools": [{}]}),
            ] {
                let [a, b] = contents;
                let mut body = more;
                body["messages"] =
                    json!([{"role": "system", "content": a}, {"role": "user", "content": b}]);
                let bytes = Bytes::from(body.to_string());
                let (written, _) = Messages::take_from(&bytes).unwrap();
                let parsed = Messages::from(written.to_vec());
                let found = tokens(&by_bytes, &body, written);
                assert_eq!(found, tokens(&of(), &body, parsed), "{body}");
                assert!(!seen.contains(&found), "{body}");
                seen.push(found);
            }
        }
        let turn =
            |content: &str| ChatTurn { role: "user".into(), content: content.to_owned().into() };
        let fill_in = |turns: &[ChatTurn<'_>]| {
            let template = by_bytes.template.as_ref().unwrap();
            let mut text = String::new();
            template.fill_in(turns, PromptEnding::GenerationPrompt, None, &mut text)
        };
        let system = ChatTurn { role: "system".into(), content: "a".into() };
        assert!(fill_in(&[system, turn("b")]), "it was not from the bytes");
        assert!(!fill_in(&[turn("b")]));
    }

    #[test]
    fn special_tokens_are_as_the_client_says() {
        let set = |fields: Value| framing(fields.as_object().unwrap());
        assert_eq!(set(json!({})), None);
        assert_eq!(set(json!({"add_special_tokens": null})), None);
        assert_eq!(set(json!({"add_special_tokens": false})), Some(SpecialTokens::InText));
        assert_eq!(set(json!({"add_special_tokens": true})), Some(SpecialTokens::Added));
    }

    fn take(list: &str) -> Option<Messages> {
        let body = format!(r#"{{"messages":{list}}}"#);
        Messages::take_from(&Bytes::from(body)).map(|(messages, _)| messages)
    }

    /// The turns as a parser finds them, which are the messages.
    fn spelled_out(messages: &Messages) -> Option<Vec<Value>> {
        let spell = |turn: ChatTurn<'_>| json!({"role": turn.role, "content": turn.content});
        let turns: Vec<_> = turns(messages)?.into_iter().map(spell).collect();
        assert_eq!(turns, messages[..]);
        Some(turns)
    }

    #[test]
    fn turns_are_what_has_a_role_and_a_text_and_nothing_else() {
        let found = |list: &str| spelled_out(&take(list).unwrap());
        assert_eq!(found("[]"), Some(vec![]));
        let usual =
            r#"[ {"role" : "user", "content" : "a\n\u00e9\"é"} ,{"content":"","role":"b"}]"#;
        assert_eq!(found(usual).unwrap().len(), 2);
        for unusual in [
            "[1]",
            "[[]]",
            "[{}]",
            r#"["role"]"#,
            r#"[{"role":"user"}]"#,
            r#"[{"content":"a"}]"#,
            r#"[{"role":"user","content":null}]"#,
            r#"[{"role":"user","content":["a"]}]"#,
            r#"[{"role":"user","content":"a","name":"b"}]"#,
            r#"[{"role":"user","content":"a","content":"b"}]"#,
            r#"[{"role":"user","content":"a","c\u006fntent":"b"}]"#,
            r#"[{"role":"user","content":"a"},{}]"#,
        ] {
            assert_eq!(found(unusual), None, "{unusual}");
        }
        let parsed: Messages = vec![json!({"role": "user", "content": "a"})].into();
        assert_eq!(turns(&parsed), None);
    }

    proptest! {
        #[test]
        fn turns_are_what_a_parser_finds(
            said in prop::collection::vec((".{0,4}", ".{0,4}"), 0..4),
            damage in prop::option::of((any::<prop::sample::Index>(), any::<char>())),
        ) {
            let turn = |(role, content): (String, String)| json!({"role": role, "content": content});
            let mut list: Vec<char> =
                Value::from_iter(said.into_iter().map(turn)).to_string().chars().collect();
            if let Some((at, character)) = damage {
                let at = at.index(list.len());
                list[at] = character;
            }
            let taken = take(&String::from_iter(list));
            let turns = taken.as_ref().and_then(spelled_out);
            prop_assert!(turns.is_some() || damage.is_some());
        }
    }
}
