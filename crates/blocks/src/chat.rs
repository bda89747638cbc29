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
mod json;
mod messages;
mod numbers;
mod python;
mod skeleton_cache;
mod template_analysis;

use std::borrow::Cow;
use std::panic::{AssertUnwindSafe, catch_unwind};

use minijinja::{
    Environment, Error, ErrorKind, UndefinedBehavior, Value as Jinja, syntax::SyntaxConfig,
    value::Kwargs,
};
use serde_json::{Map, Value, json};

pub use calendar::WallTime;
pub use config::{ConfigError, TokenizerConfig};
pub use messages::ContentForm;
pub use numbers::{Grammar, exact_numbers};
pub use skeleton_cache::ChatTurn;
use skeleton_cache::SkeletonCache;

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
    /// `chat_template_kwargs` of the request, such as `enable_thinking`.
    pub kwargs: Option<&'a Map<String, Value>>,
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
}

struct Variant {
    name: &'static str,
    form: ContentForm,
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
        };
        for (name, token) in &config.special_tokens {
            template.environment.add_global(name.clone(), json::to_template(token));
        }
        for (name, source) in [("default", Some(default)), ("tool_use", tool_use)] {
            if let Some(source) = source {
                let source = without_generation_tags(source);
                template.environment.add_template_owned(name, source).map_err(invalid)?;
            }
        }
        template.default.form = template.content_form("default");
        if template.default.form == ContentForm::Text {
            template.skeletons = SkeletonCache::of(&without_generation_tags(default), syntax());
        }
        if template.tool_use.is_some() {
            let form = template.content_form("tool_use");
            template.tool_use = template.tool_use.map(|variant| Variant { form, ..variant });
        }
        Ok(template)
    }

    /// The form of content that the template expects in conversations without tools.
    #[must_use]
    pub const fn form(&self) -> ContentForm {
        self.default.form
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
        let rejected = |cause| TemplateError::Rejected { file: self.file.clone(), cause };
        let skeletons = self.skeletons.as_ref();
        let query = skeletons.and_then(|skeletons| skeletons.query(conversation));
        let mut text = String::new();
        if query.as_ref().is_some_and(|query| query.fill_in(&mut text)) {
            return Ok(Rendered { text, extent: Extent::Whole });
        }
        let variant = match (&self.tool_use, conversation.tools) {
            (Some(variant), Some(_)) => variant,
            _ => &self.default,
        };
        let mut messages =
            messages::prepare(conversation.messages, variant.form, variant.keeps_developer);
        let continued = match conversation.ending {
            PromptEnding::InsideLastMessage => {
                let last =
                    messages.last_mut().and_then(|message| message.to_mut().get_mut("content"));
                Some(mark_end(last).ok_or_else(|| {
                    rejected("the last message has no text to continue".to_owned())
                })?)
            }
            PromptEnding::GenerationPrompt | PromptEnding::LastMessage => None,
        };
        let mut text = self
            .render_raw(variant.name, &messages, conversation)
            .map_err(|error| rejected(describe(&error)))?;
        if let Some(last) = continued {
            let cut = continuation(&text, &last).ok_or_else(|| {
                rejected(
                    "the last message, which is to be continued, does not appear in the prompt"
                        .to_owned(),
                )
            })?;
            text.truncate(cut);
        }
        if let Some(query) = query {
            let render_placeholders = |messages: &[Cow<'_, Value>]| {
                self.render_raw(variant.name, messages, conversation).ok()
            };
            query.learn(&text, render_placeholders);
        }
        if !messages::has_media(conversation.messages) {
            return Ok(Rendered { text, extent: Extent::Whole });
        }
        // A template that drops the part may have written anything instead.
        text.truncate(text.find(messages::PART_MARK).unwrap_or(0));
        Ok(Rendered { text, extent: Extent::BeforePart })
    }

    fn render_raw(
        &self,
        name: &str,
        messages: &[Cow<'_, Value>],
        conversation: &Conversation<'_>,
    ) -> Result<String, Error> {
        let now = conversation.now;
        let tools = conversation.tools.map(messages::prepare_tools);
        let tools = tools.map_or_else(|| Jinja::from(()), |tools| json::items_to_template(&tools));
        let messages = messages.iter().map(|message| json::to_template(message));
        let own: [(&str, Jinja); 5] = [
            ("messages", messages.collect()),
            ("tools", tools),
            ("documents", Jinja::from(())),
            (
                "add_generation_prompt",
                Jinja::from(conversation.ending == PromptEnding::GenerationPrompt),
            ),
            ("strftime_now", Jinja::from_function(move |format: &str| now.format(format))),
        ];
        let kwargs = conversation.kwargs.into_iter().flatten();
        let kwargs = kwargs.map(|(name, value)| (name.as_str(), json::to_template(value)));
        let context = Jinja::from_pairs(own.into_iter().chain(kwargs));
        let template = self.environment.get_template(name)?;
        // The template engine panics on a backward slice of nothing, such as `messages[::-1]`
        // without messages; by that a client must not be able to end more than its own request.
        catch_unwind(AssertUnwindSafe(|| template.render(context))).unwrap_or_else(|_| {
            Err(Error::new(ErrorKind::InvalidOperation, "the template engine panicked"))
        })
    }

    /// A template that prints the text of a part, but not the part itself, iterates over parts; any
    /// other gets text.
    fn content_form(&self, name: &str) -> ContentForm {
        const PROBE: &str = "probe-of-the-content-form";
        let message = json!({"role": "user", "content": [{"type": "text", "text": PROBE}]});
        let messages = [Cow::Owned(message)];
        let conversation = Conversation::new(&[]);
        match self.render_raw(name, &messages, &conversation) {
            Ok(text)
                if text.contains(PROBE)
                    && !text.contains("'type'")
                    && !text.contains("\"type\"") =>
            {
                ContentForm::Parts
            }
            _ => ContentForm::Text,
        }
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
        Self { name, form: ContentForm::Text, keeps_developer }
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
