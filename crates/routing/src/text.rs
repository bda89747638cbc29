//! [`Tokenize`] by the engine's own rules: the chat template and the tokenizer of a model.

use std::borrow::Cow;
use std::cell::RefCell;
use std::sync::Arc;

use serde_json::{Map, Value, json};
use wornpath_blocks::chat::{
    CallOrder, ChatTemplate, ChatTurn, Conversation, Extent, PromptEnding, Rendered, TemplateError,
    WallTime,
};
use wornpath_blocks::{
    EncodeStop, EngineRules, HashKey, SpecialTokens, TokenCache, Tokenizer, TokenizerError,
};

use crate::messages::{Messages, Walk, WrittenSpan};
use crate::models::{Tokenize, TokenizeError, Untokenized};
use crate::request::{Prompt, PromptApi, Request};

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

/// A chat as an engine reads it.
struct Chat<'a> {
    messages: Cow<'a, Messages>,
    tools: Option<Cow<'a, [Value]>>,
    kwargs: Cow<'a, Map<String, Value>>,
    engine: EngineRules,
}

impl TextTokenizer {
    /// From the model's tokenizer and template.
    #[must_use]
    pub fn new(tokenizer: Tokenizer, template: Option<ChatTemplate>) -> Self {
        // Texts are compared in full, so a client that knows the key can at most evict entries.
        let cache = TokenCache::new(Arc::new(tokenizer), &HashKey::DEFAULT, CACHE_BYTES);
        Self { cache, template }
    }

    /// Tokenizes a prompt as an engine does.
    fn encode_for(
        &self,
        request: &Request,
        engine: EngineRules,
        tokens: &mut Vec<u32>,
    ) -> Result<(), TokenizeError> {
        let start = tokens.len();
        let framing = match &request.prompt {
            Prompt::Tokens(ids) => {
                tokens.extend_from_slice(ids);
                SpecialTokens::InText
            }
            Prompt::Text(text) => {
                let framing = framing(request, engine).unwrap_or(SpecialTokens::Added);
                self.cache.encode_within(text, framing, request.encode_limits, tokens)?;
                framing
            }
            Prompt::Chat { messages, tools, .. } => {
                let template = self.template.as_ref().ok_or(TokenizeError::NoTemplate)?;
                if engine == EngineRules::Vllm && template.is_of_harmony() {
                    return Err(TokenizeError::UnknownReading);
                }
                if let Some(ids) = input_ids(request, engine) {
                    tokens.extend(ids);
                    return Ok(());
                }
                let merges = engine == EngineRules::Vllm
                    && request.reading.api == PromptApi::Messages
                    && template.needs_leading_system();
                let chat = Chat {
                    messages: if merges { merge_system(messages) } else { Cow::Borrowed(messages) },
                    tools: request.tools_of(tools.as_deref(), engine),
                    kwargs: request.template_arguments(engine, || template.disabled_effort()),
                    engine,
                };
                // A template writes its special tokens itself.
                let framing = framing(request, engine).unwrap_or(SpecialTokens::InText);
                self.encode_chat(request, &chat, framing, tokens)?;
                framing
            }
        };
        if let Some(truncation) = request.truncation(engine) {
            let mut own = tokens.split_off(start);
            let tokenizer = self.cache.tokenizer();
            let around = match framing {
                SpecialTokens::Added => tokenizer.special_tokens_around(),
                SpecialTokens::InText => (0, 0),
            };
            truncation.apply(&mut own, around.0, around.1);
            tokens.append(&mut own);
        }
        Ok(())
    }

    /// Tokenizes a chat; from the bytes of the body, without parsing the messages, if the template
    /// allows.
    fn encode_chat(
        &self,
        request: &Request,
        chat: &Chat<'_>,
        framing: SpecialTokens,
        tokens: &mut Vec<u32>,
    ) -> Result<(), TokenizeError> {
        let Chat { messages, tools, kwargs, engine } = chat;
        let template = self.template.as_ref().ok_or(TokenizeError::NoTemplate)?;
        let limits = request.encode_limits;
        let ending = ending(request, *engine);
        if tools.is_none()
            && let Some(turns) = turns(messages)
            && may_fill_in(&turns, *engine)
        {
            let mut text = PROMPT.take();
            text.clear();
            let is_known = template.fill_in(&turns, ending, Some(&**kwargs), &mut text);
            let encoded =
                is_known.then(|| self.cache.encode_within(&text, framing, limits, tokens));
            if text.capacity() <= KEPT_BYTES {
                PROMPT.set(text);
            }
            if let Some(encoded) = encoded {
                return Ok(encoded?);
            }
        }
        let conversation = Conversation {
            messages: &messages[..],
            tools: tools.as_deref(),
            ending,
            kwargs: Some(&**kwargs),
            engine: *engine,
            calls: match request.reading.api {
                PromptApi::Responses => CallOrder::Written,
                _ => CallOrder::Engine,
            },
            now: WallTime(i64::try_from(request.wall).unwrap_or_default()),
        };
        let rendered = template.render(&conversation);
        let Rendered { text, extent, continued } =
            rendered.map_err(|error| TokenizeError::NotRendered(template_cause(error)))?;
        match extent {
            Extent::Whole => self.cache.encode_within(&text, framing, limits, tokens)?,
            Extent::BeforePart => {
                self.cache.tokenizer().encode_beginning(&text, framing, limits, tokens)?;
            }
        }
        if let Some(text) = continued {
            self.cache.encode_within(&text, SpecialTokens::InText, limits, tokens)?;
        }
        Ok(())
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

/// The prompt ending that the client sets.
fn ending(request: &Request, engine: EngineRules) -> PromptEnding {
    if request.reading.api != PromptApi::Chat {
        return match request.reading.continues {
            true => PromptEnding::InsideLastMessage,
            false => PromptEnding::GenerationPrompt,
        };
    }
    let flag = |field: &str| request.fields.get(field).and_then(Value::as_bool);
    match (flag("continue_final_message"), flag("add_generation_prompt")) {
        (Some(true), _) => PromptEnding::InsideLastMessage,
        (_, Some(false)) if engine == EngineRules::Vllm => PromptEnding::LastMessage,
        _ => PromptEnding::GenerationPrompt,
    }
}

/// The special tokens around the prompt, if the client or the API sets them.
fn framing(request: &Request, engine: EngineRules) -> Option<SpecialTokens> {
    if engine != EngineRules::Vllm {
        return None;
    }
    match request.reading.api {
        PromptApi::Chat => {}
        // vLLM puts them around a response's prompt although the template writes them too.
        PromptApi::Responses => return Some(SpecialTokens::Added),
        PromptApi::Messages => return None,
    }
    let is_framed = request.fields.get("add_special_tokens")?.as_bool()?;
    Some(if is_framed { SpecialTokens::Added } else { SpecialTokens::InText })
}

/// The tokens that SGLang takes in place of a chat.
fn input_ids(request: &Request, engine: EngineRules) -> Option<Vec<u32>> {
    if engine != EngineRules::Sglang || request.reading.api != PromptApi::Chat {
        return None;
    }
    let ids = request.fields.get("input_ids")?.as_array()?;
    ids.iter().map(|id| u32::try_from(id.as_u64()?).ok()).collect()
}

/// The system messages of a conversation as one message at its start.
fn merge_system(messages: &Messages) -> Cow<'_, Messages> {
    let is_system = |message: &&Value| message["role"] == "system";
    if messages.iter().skip(1).all(|message| !is_system(&message)) {
        return Cow::Borrowed(messages);
    }
    let system = messages.iter().filter(is_system);
    let text: String = system.filter_map(|message| message["content"].as_str()).collect();
    let others = messages.iter().filter(|message| !is_system(message)).cloned();
    let system = json!({"role": "system", "content": text});
    Cow::Owned(std::iter::once(system).chain(others).collect())
}

/// Whether an engine renders these turns alike wherever the text around them is known. SGLang makes
/// the user's what the assistant said last.
fn may_fill_in(turns: &[ChatTurn<'_>], engine: EngineRules) -> bool {
    engine == EngineRules::Vllm || turns.last().is_none_or(|turn| turn.role != "assistant")
}

impl Tokenize for TextTokenizer {
    fn tokenize(&self, request: &Request, tokens: &mut Vec<u32>) -> Result<(), TokenizeError> {
        if request.has_unknown_reading() {
            return Err(TokenizeError::UnknownReading);
        }
        if let Some(engine) = request.reading.engine {
            return self.encode_for(request, engine, tokens);
        }
        // Pods of both kinds: a prompt that they read differently has no tokens of its own.
        let start = tokens.len();
        self.encode_for(request, EngineRules::Vllm, tokens)?;
        let mut other = Vec::new();
        self.encode_for(request, EngineRules::Sglang, &mut other)?;
        if tokens[start..] == other { Ok(()) } else { Err(TokenizeError::UnknownReading) }
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
            let request = Request { fields, ..Request::default() };
            let ending = ending(&request, EngineRules::Vllm);
            let now = WallTime(1_800_000_000);
            let conversation = Conversation { ending, now, ..Conversation::new(&messages) };
            template.render(&conversation).unwrap().text
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
        let set = |fields: Value| {
            let fields = fields.as_object().unwrap().clone();
            framing(&Request { fields, ..Request::default() }, EngineRules::Vllm)
        };
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
