//! Renders chat messages with the model's own template, as Hugging Face and vLLM do.
//!
//! The template determines every byte of the prompt, so it runs under Jinja2's rules as Hugging
//! Face configures them: block trimming, `raise_exception`, `strftime_now` (the time is an
//! argument), `tojson` like `json.dumps`, Python's string methods, loop controls.
//!
//! Limit: only the engine knows what a part that is not text (an image) turns into, so the known
//! text ends before the first one.

mod calendar;
mod config;
mod content_form;
mod json;
mod messages;
mod numbers;
mod probes;
mod python;
mod sglang;
mod skeleton_cache;
mod template_analysis;
mod tools;

use std::borrow::Cow;
use std::panic::{AssertUnwindSafe, catch_unwind};

use minijinja::{
    Environment, Error, ErrorKind, UndefinedBehavior, Value as Jinja, syntax::SyntaxConfig,
    value::Kwargs,
};
use serde_json::{Map, Value};

pub use calendar::WallTime;
pub use config::{ConfigError, TokenizerConfig};
pub use messages::{CallOrder, ContentForm};
pub use numbers::{Grammar, exact_numbers};
use probes::Probes;
pub use skeleton_cache::ChatTurn;
use skeleton_cache::{SkeletonCache, SkeletonQuery};

use crate::engine_rules::EngineRules;

/// The instruction limit of one rendering: far beyond any prompt, and no template runs forever.
const FUEL: u64 = 5_000_000;

/// A template that cannot be used, or that rejects a conversation.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum TemplateError {
    /// The model has no template.
    #[error("{file}: no `chat_template`; add one, or put a `chat_template.jinja` beside the file")]
    Missing {
        /// The file as the caller named it.
        file: String,
    },
    /// The template is not valid Jinja.
    #[error("{file}: invalid chat template: {cause}")]
    Invalid {
        /// The file as the caller named it.
        file: String,
        /// The parser's message, with the line.
        cause: String,
    },
    /// The template failed on this conversation, or rejected it by `raise_exception`.
    #[error("{file}: chat template rejected the conversation: {cause}")]
    Rejected {
        /// The file as the caller named it.
        file: String,
        /// The template's message.
        cause: String,
    },
}

/// How the prompt ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum PromptEnding {
    /// With the start of the assistant's answer (`add_generation_prompt`), the usual one.
    #[default]
    GenerationPrompt,
    /// With the last message.
    LastMessage,
    /// Inside the last message, to be continued (`continue_final_message`).
    InsideLastMessage,
}

/// A conversation to be rendered.
#[derive(Clone, Copy, Debug)]
pub struct Conversation<'a> {
    /// `messages` of the request.
    pub messages: &'a [Value],
    /// `tools` of the request, if it has any.
    pub tools: Option<&'a [Value]>,
    /// How the prompt ends.
    pub ending: PromptEnding,
    /// Arguments of the template, such as `enable_thinking`.
    pub kwargs: Option<&'a Map<String, Value>>,
    /// Whose rules apply.
    pub engine: EngineRules,
    /// The order of the fields of calls, by vLLM's rules.
    pub calls: CallOrder,
    /// The engine's wall-clock time, for templates that print the date.
    pub now: WallTime,
}

impl<'a> Conversation<'a> {
    /// The messages alone, at time zero, with a generation prompt.
    #[must_use]
    pub const fn new(messages: &'a [Value]) -> Self {
        Self {
            messages,
            tools: None,
            ending: PromptEnding::GenerationPrompt,
            kwargs: None,
            engine: EngineRules::Vllm,
            calls: CallOrder::Engine,
            now: WallTime(0),
        }
    }
}

/// The known text of a rendered prompt.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Rendered {
    /// The prompt's text.
    pub text: String,
    /// Whether the text is the whole prompt.
    pub extent: Extent,
    /// A text that follows and is tokenized on its own.
    pub continued: Option<String>,
}

/// How much of a prompt the rendered text covers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Extent {
    /// The whole prompt.
    Whole,
    /// The text before the first part that is not text; the rest is unknown.
    BeforePart,
}

/// A model's chat template, ready to render.
pub struct ChatTemplate {
    file: String,
    environment: Environment<'static>,
    default: Variant,
    tool_use: Option<Variant>,
    /// The text around the contents of conversations without tools.
    skeletons: Option<SkeletonCache>,
    probes: Probes,
}

struct Variant {
    name: &'static str,
    source: String,
    has_generation_tags: bool,
    vllm_form: ContentForm,
    sglang_form: ContentForm,
    keeps_developer: bool,
}

impl ChatTemplate {
    /// The template that `tokenizer_config.json` holds.
    ///
    /// # Errors
    /// If there is none, or it is not valid Jinja.
    pub fn from_config(config: &TokenizerConfig) -> Result<Self, TemplateError> {
        let find = |name| config.templates.iter().find(|(other, _)| other == name);
        let missing = || TemplateError::Missing { file: config.file.clone() };
        let (_, default) = find("default").ok_or_else(missing)?;
        let tool_use = find("tool_use").map(|(_, source)| source.as_str());
        Self::compile(&config.file, default, tool_use, config)
    }

    /// A template from its own file (`chat_template.jinja`), which errors call `file`.
    ///
    /// # Errors
    /// If the source is not valid Jinja.
    pub fn from_jinja(
        file: &str,
        source: &str,
        config: &TokenizerConfig,
    ) -> Result<Self, TemplateError> {
        Self::compile(file, source, None, config)
    }

    fn compile(
        file: &str,
        default: &str,
        tool_use: Option<&str>,
        config: &TokenizerConfig,
    ) -> Result<Self, TemplateError> {
        let invalid = |error: Error| TemplateError::Invalid {
            file: file.to_owned(),
            cause: describe(&error),
        };
        let mut template = Self {
            file: file.to_owned(),
            environment: environment(),
            default: Variant::of("default", default),
            tool_use: tool_use.map(|source| Variant::of("tool_use", source)),
            skeletons: None,
            probes: Probes::default(),
        };
        for (name, token) in &config.special_tokens {
            template.environment.add_global(name.clone(), json::to_template(token));
        }
        for variant in [Some(&template.default), template.tool_use.as_ref()].into_iter().flatten() {
            let source = variant.source.clone();
            template.environment.add_template_owned(variant.name, source).map_err(invalid)?;
        }
        if template.form() == ContentForm::Text {
            template.skeletons = SkeletonCache::of(&template.default.source, syntax());
        }
        Ok(template)
    }

    /// The form of content that the template expects in conversations without tools.
    #[must_use]
    pub const fn form(&self) -> ContentForm {
        self.default.form(EngineRules::Vllm)
    }

    /// Appends the result of [`Self::render`] for a conversation of these turns without tools, if
    /// the skeleton of such a conversation is cached; `false` otherwise.
    #[must_use]
    pub fn fill_in(
        &self,
        turns: &[ChatTurn<'_>],
        ending: PromptEnding,
        kwargs: Option<&Map<String, Value>>,
        text: &mut String,
    ) -> bool {
        let turns = turns.iter().map(|ChatTurn { role, content }| Some((&**role, &**content)));
        let skeletons = self.skeletons.as_ref();
        let query = skeletons.and_then(|skeletons| skeletons.query_turns(turns, ending, kwargs));
        query.is_some_and(|query| query.fill_in(text))
    }

    /// Renders the prompt of a conversation.
    ///
    /// # Errors
    /// If the template fails on the conversation or rejects it.
    pub fn render(&self, conversation: &Conversation<'_>) -> Result<Rendered, TemplateError> {
        let conversation = &conversation.as_engine_reads_it();
        let query = self.skeletons.as_ref().and_then(|all| all.query(conversation));
        let mut text = String::new();
        if query.as_ref().is_some_and(|query| query.fill_in(&mut text)) {
            return Ok(Rendered::whole(text));
        }
        let variant = match (&self.tool_use, conversation.tools) {
            (Some(variant), Some(_)) => variant,
            _ => &self.default,
        };
        match conversation.engine {
            EngineRules::Vllm => self.render_for_vllm(variant, conversation, query),
            EngineRules::Sglang => self.render_for_sglang(variant, conversation, query),
        }
    }

    fn render_for_vllm(
        &self,
        variant: &Variant,
        conversation: &Conversation<'_>,
        query: Option<SkeletonQuery<'_>>,
    ) -> Result<Rendered, TemplateError> {
        let form = variant.form(conversation.engine);
        let calls = conversation.calls;
        let mut messages =
            messages::prepare(conversation.messages, form, variant.keeps_developer, calls);
        let continued = match conversation.ending {
            PromptEnding::InsideLastMessage => {
                let last =
                    messages.last_mut().and_then(|message| message.to_mut().get_mut("content"));
                Some(mark_end(last).ok_or_else(|| {
                    self.rejected("the last message has no text to continue".to_owned())
                })?)
            }
            PromptEnding::GenerationPrompt | PromptEnding::LastMessage => None,
        };
        let tools = conversation.tools.map(|all| tools::prepare(all, conversation.engine));
        let mut text = self
            .render_raw(variant, &messages, tools.as_deref(), conversation)
            .map_err(|error| self.rejected(describe(&error)))?;
        if let Some(last) = continued {
            let cut = continuation(&text, &last).ok_or_else(|| {
                self.rejected(
                    "the last message, which is to be continued, does not appear in the prompt"
                        .to_owned(),
                )
            })?;
            text.truncate(cut);
        }
        self.learn(query, variant, &text, conversation);
        if !messages::has_media(conversation.messages) {
            return Ok(Rendered::whole(text));
        }
        Ok(Rendered::before_part(text))
    }

    fn render_for_sglang(
        &self,
        variant: &Variant,
        conversation: &Conversation<'_>,
        query: Option<SkeletonQuery<'_>>,
    ) -> Result<Rendered, TemplateError> {
        let form = variant.form(conversation.engine);
        let sglang::Prepared { messages, continued, has_media } =
            sglang::prepare(conversation.messages, form, conversation.ending)
                .ok_or_else(|| self.rejected("the engine refuses its messages".to_owned()))?;
        let tools = conversation.tools.map(|all| tools::prepare(all, conversation.engine));
        let render =
            |tools: Option<&[Value]>| self.render_raw(variant, &messages, tools, conversation);
        let rendered = render(tools.as_deref()).or_else(|error| match &tools {
            Some(all) => render(Some(&tools::functions(all))),
            None => Err(error),
        });
        let text = rendered.map_err(|error| self.rejected(describe(&error)))?;
        self.learn(query, variant, &text, conversation);
        if has_media {
            return Ok(Rendered::before_part(text));
        }
        Ok(Rendered { continued, ..Rendered::whole(text) })
    }

    /// Caches the text around contents, if a query for it has missed.
    fn learn(
        &self,
        query: Option<SkeletonQuery<'_>>,
        variant: &Variant,
        text: &str,
        conversation: &Conversation<'_>,
    ) {
        let Some(query) = query else { return };
        query.learn(text, |messages: &[Cow<'_, Value>]| {
            self.render_raw(variant, messages, None, conversation).ok()
        });
    }

    fn rejected(&self, cause: String) -> TemplateError {
        TemplateError::Rejected { file: self.file.clone(), cause }
    }

    fn render_raw(
        &self,
        variant: &Variant,
        messages: &[Cow<'_, Value>],
        tools: Option<&[Value]>,
        conversation: &Conversation<'_>,
    ) -> Result<String, Error> {
        let now = conversation.now;
        let tools = tools.map_or_else(|| Jinja::from(()), json::items_to_template);
        let messages = messages.iter().map(|message| json::to_template(message));
        let own: [(&str, Jinja); 5] = [
            ("messages", messages.collect()),
            ("tools", tools),
            ("documents", Jinja::from(())),
            ("add_generation_prompt", Jinja::from(conversation.begins_answer())),
            ("strftime_now", Jinja::from_function(move |format: &str| now.format(format))),
        ];
        let kwargs = conversation.kwargs.into_iter().flatten();
        let kwargs = kwargs.map(|(name, value)| (name.as_str(), json::to_template(value)));
        let context = Jinja::from_pairs(own.into_iter().chain(kwargs));
        let template = self.environment.get_template(variant.name)?;
        // The template engine panics on a backward slice of nothing, such as `messages[::-1]`
        // without messages; by that a client must not be able to end more than its own request.
        catch_unwind(AssertUnwindSafe(|| template.render(context))).unwrap_or_else(|_| {
            Err(Error::new(ErrorKind::InvalidOperation, "the template engine panicked"))
        })
    }
}

impl<'a> Conversation<'a> {
    /// With the ending that the engine makes of it: SGLang always begins an answer, unless the last
    /// message is one.
    fn as_engine_reads_it(&self) -> Self {
        let ending = match (self.engine, self.ending) {
            (EngineRules::Sglang, PromptEnding::LastMessage) => PromptEnding::GenerationPrompt,
            (_, ending) => ending,
        };
        Self { ending, ..*self }
    }

    /// Whether the template writes the start of an answer. SGLang appends an answer to be continued
    /// after that.
    fn begins_answer(&self) -> bool {
        self.engine == EngineRules::Sglang || self.ending == PromptEnding::GenerationPrompt
    }
}

impl Rendered {
    const fn whole(text: String) -> Self {
        Self { text, extent: Extent::Whole, continued: None }
    }

    /// The text before the first part that is not text. A template that drops the part may have
    /// written anything instead.
    fn before_part(mut text: String) -> Self {
        text.truncate(text.find(messages::PART_MARK).unwrap_or(0));
        Self { text, extent: Extent::BeforePart, continued: None }
    }
}

impl std::fmt::Debug for ChatTemplate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ChatTemplate").field("file", &self.file).finish_non_exhaustive()
    }
}

impl Variant {
    fn of(name: &'static str, source: &str) -> Self {
        let keeps_developer = source.contains("\"developer\"") || source.contains("'developer'");
        let written = source;
        let source = without_generation_tags(written);
        let has_generation_tags = source != written;
        let form = |engine| content_form::content_form(&source, syntax(), engine);
        let vllm_form = form(EngineRules::Vllm);
        let sglang_form = form(EngineRules::Sglang);
        Self { name, source, has_generation_tags, vllm_form, sglang_form, keeps_developer }
    }

    const fn form(&self, engine: EngineRules) -> ContentForm {
        match engine {
            EngineRules::Vllm => self.vllm_form,
            EngineRules::Sglang => self.sglang_form,
        }
    }
}

fn syntax() -> SyntaxConfig {
    SyntaxConfig::builder()
        .trim_blocks(true)
        .lstrip_blocks(true)
        .build()
        .expect("only whitespace rules differ from the default syntax")
}

fn environment() -> Environment<'static> {
    let mut environment = Environment::new();
    environment.set_syntax(syntax());
    environment.set_undefined_behavior(UndefinedBehavior::Lenient);
    environment.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
    environment.set_unknown_method_callback(python::method);
    environment.set_fuel(Some(FUEL));
    environment.set_formatter(|out, _, value| {
        if let Some(text) = value.as_str() {
            return out.write_str(text).map_err(Error::from);
        }
        let mut text = String::new();
        python::str(value, &mut text);
        out.write_str(&text).map_err(Error::from)
    });
    environment.add_filter("tojson", |value: Jinja, kwargs: Kwargs| json::tojson(&value, &kwargs));
    environment.add_filter("string", |value: Jinja| {
        let mut text = String::new();
        python::str(&value, &mut text);
        text
    });
    environment.add_test("number", numbers::is_number);
    environment.add_test("integer", numbers::is_integer);
    environment.add_function("raise_exception", |message: String| -> Result<Jinja, Error> {
        Err(Error::new(ErrorKind::InvalidOperation, message))
    });
    environment
}

/// `{% generation %}` marks the text that a trainer learns from; it does not change the prompt.
fn without_generation_tags(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(start) = rest.find("{%") {
        let (before, tag) = rest.split_at(start);
        out.push_str(before);
        let end = tag.find("%}").map_or(tag.len(), |end| end + 2);
        let (tag, after) = tag.split_at(end);
        let word =
            tag.trim_start_matches("{%").trim_end_matches("%}").trim_matches(['-', '+']).trim();
        match word {
            "generation" => out.push_str(&tag.replace("generation", "if true")),
            "endgeneration" => out.push_str(&tag.replace("endgeneration", "endif")),
            _ => out.push_str(tag),
        }
        rest = after;
    }
    out + rest
}

/// The mark that Hugging Face appends to the last message, to find its end again.
const END_MARK: &str = "CONTINUE_FINAL_MESSAGE_TAG ";

/// Appends the mark to the last message's last text; returns that text.
fn mark_end(content: Option<&mut Value>) -> Option<String> {
    let text = match content? {
        Value::String(text) => text,
        Value::Array(parts) => {
            match parts.iter_mut().rev().find_map(|part| part.get_mut("text"))? {
                Value::String(text) => text,
                _ => return None,
            }
        }
        _ => return None,
    };
    let before = text.clone();
    text.push_str(END_MARK);
    Some(before)
}

/// Where the marked message ends; without trailing spaces if the template trimmed it.
fn continuation(text: &str, last: &str) -> Option<usize> {
    let cut = text.rfind(END_MARK.trim_end())?;
    if !text.contains(last.trim()) {
        return None;
    }
    Some(if text[cut..].starts_with(END_MARK) { cut } else { text[..cut].trim_end().len() })
}

/// The error's message with its line and its causes.
fn describe(error: &Error) -> String {
    let mut text = error.detail().map_or_else(|| error.kind().to_string(), str::to_owned);
    if let Some(line) = error.line() {
        text = format!("line {line}: {text}");
    }
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}
