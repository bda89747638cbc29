//! Tokenization of prompts, and generation of text without a model.
//!
//! With a model's tokenizer directory, prompts become exactly the tokens that an engine with that
//! model sees. Without one, every byte of text is a token and a chat is rendered as `<|role|>`
//! lines: no real model does that, but prefixes behave the same.
//!
//! Generated text consists of plain words, chosen by a hash of the prompt, so equal prompts get
//! equal answers. Every word is one token, so that an answer sent back as part of the next prompt
//! gives the same tokens again.

use super::clock::unix_seconds;
use serde_json::{Map, Value, json};
use std::path::{Path, PathBuf};
use wornpath_blocks::chat::{
    ChatTemplate, Conversation, Extent, PromptEnding, TokenizerConfig, WallTime,
};
use wornpath_blocks::{SpecialTokens, Tokenizer};

const WORDS: &str = "the of and to in is that for it was on are as with they at be this have from or one \
    had by word but not what all were we when your can said there use an each which she do how their if";

/// Why a tokenizer directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TextError {
    /// A file cannot be read.
    #[error("{}: {cause}; a tokenizer directory holds tokenizer.json and tokenizer_config.json", file.display())]
    File {
        /// The path of the file.
        file: PathBuf,
        /// The error of the operating system.
        cause: std::io::Error,
    },
    /// A file has invalid content.
    #[error("{0}")]
    Unusable(String),
    /// The tokenizer has no token for any common word, so no text can be generated.
    #[error("{}: no common English word is a single token; use another tokenizer", .0.display())]
    NoWords(PathBuf),
}

/// The tokenizer and the text generator of an engine.
pub(super) enum TextModel {
    /// A token is a byte.
    Bytes,
    /// A model's own tokenizer.
    Model(Box<ServedText>),
}

pub(super) struct ServedText {
    /// `tokenizer_config.json`, with the chat template in force.
    info: Value,
    tokenizer: Tokenizer,
    /// Without one, chats are refused, as engines do.
    template: Option<ChatTemplate>,
    words: Vec<(u32, &'static str)>,
}

/// Generated text.
#[derive(Default)]
pub(super) struct GeneratedText {
    pub(super) tokens: Vec<u32>,
    /// The text of each token.
    pub(super) pieces: Vec<String>,
}

impl TextModel {
    /// Loads a model's tokenizer directory.
    pub(super) fn load(directory: &Path) -> Result<Self, TextError> {
        let read = |name: &str| {
            let file = directory.join(name);
            std::fs::read(&file).map_err(|cause| TextError::File { file, cause })
        };
        let unusable = |error: &dyn std::error::Error| TextError::Unusable(error.to_string());
        let name = |file: &str| directory.join(file).display().to_string();
        let tokenizer = Tokenizer::from_json(&name("tokenizer.json"), &read("tokenizer.json")?)
            .map_err(|error| unusable(&error))?;
        let config = read("tokenizer_config.json")?;
        let mut info: Value = serde_json::from_slice(&config).unwrap_or_default();
        let config = TokenizerConfig::from_json(&name("tokenizer_config.json"), &config)
            .map_err(|error| unusable(&error))?;
        let words = one_token_words(&tokenizer);
        if words.is_empty() {
            return Err(TextError::NoWords(directory.to_owned()));
        }
        let template = match read("chat_template.jinja") {
            Err(_) => ChatTemplate::from_config(&config),
            Ok(source) => {
                let source = String::from_utf8_lossy(&source).into_owned();
                info["chat_template"] = source.as_str().into();
                ChatTemplate::from_jinja(&name("chat_template.jinja"), &source, &config)
            }
        };
        let template = template.ok();
        Ok(Self::Model(Box::new(ServedText { info, tokenizer, template, words })))
    }

    /// What vLLM answers at `/tokenizer_info`, as far as prompts depend on it.
    pub(super) fn info(&self) -> Value {
        match self {
            Self::Bytes => json!({"tokenizer_class": "ByteTokenizer"}),
            Self::Model(model) => model.info.clone(),
        }
    }

    /// The tokens of a completion prompt.
    pub(super) fn prompt(&self, text: &str) -> Result<Vec<u32>, String> {
        match self {
            Self::Bytes => Ok(text.bytes().map(u32::from).collect()),
            Self::Model(model) => model.encode(text, SpecialTokens::Added),
        }
    }

    /// The tokens of a chat.
    pub(super) fn chat(&self, body: &Map<String, Value>) -> Result<Vec<u32>, String> {
        let messages = body.get("messages").and_then(Value::as_array);
        let messages = messages.ok_or("`messages` must be an array of messages")?;
        match self {
            Self::Bytes => {
                let text = plain_chat(messages, continues(body))?;
                Ok(text.bytes().map(u32::from).collect())
            }
            Self::Model(model) => model.chat(messages, body),
        }
    }

    /// The tokens of the answer that a chat has already, if it is to be continued.
    pub(super) fn answered(&self, body: &Map<String, Value>) -> Result<usize, String> {
        let last = body.get("messages").and_then(Value::as_array).and_then(|all| all.last());
        let content = last.filter(|_| continues(body)).and_then(|last| last["content"].as_str());
        match (self, content) {
            (_, None) => Ok(0),
            (Self::Bytes, Some(content)) => Ok(content.len()),
            (Self::Model(model), Some(content)) => {
                Ok(model.encode(content, SpecialTokens::InText)?.len())
            }
        }
    }

    /// Generates `length` tokens. Each depends on all tokens before it and on nothing else, so that an
    /// answer may be continued by another engine.
    pub(super) fn generate(&self, prompt: &[u32], length: usize) -> GeneratedText {
        let mut generated = GeneratedText {
            tokens: Vec::with_capacity(length),
            pieces: Vec::with_capacity(length),
        };
        let mut state = TextState::default();
        prompt.iter().for_each(|token| state.push(*token));
        let words: Vec<_> = WORDS.split_whitespace().collect();
        while generated.tokens.len() < length {
            let (token, piece) = match self {
                Self::Bytes => {
                    let letter = state.next_letter(&words);
                    (u32::from(letter), char::from(letter).to_string())
                }
                Self::Model(model) => {
                    let at = mix(state.seed) % model.words.len() as u64;
                    let (token, word) = model.words[at as usize];
                    (token, format!(" {word}"))
                }
            };
            state.push(token);
            generated.tokens.push(token);
            generated.pieces.push(piece);
        }
        generated
    }
}

/// What the next token depends on.
#[derive(Debug)]
struct TextState {
    /// The hash of all tokens.
    seed: u64,
    /// The hash of those up to the last space.
    word_seed: u64,
    /// The letters since then; more than any word has are not kept.
    letters: Vec<u32>,
}

impl Default for TextState {
    fn default() -> Self {
        let seed = 0x9E37_79B9_7F4A_7C15;
        Self { seed, word_seed: seed, letters: Vec::new() }
    }
}

impl TextState {
    const SPACE: u8 = b' ';
    const MOST_LETTERS: usize = 16;

    fn push(&mut self, token: u32) {
        self.seed = mix(self.seed ^ u64::from(token));
        if token == u32::from(Self::SPACE) {
            self.word_seed = self.seed;
            self.letters.clear();
        } else if self.letters.len() < Self::MOST_LETTERS {
            self.letters.push(token);
        }
    }

    /// The next letter of the word that follows the last space, or a space after it.
    fn next_letter(&self, words: &[&str]) -> u8 {
        let word = words[(mix(self.word_seed) % words.len() as u64) as usize].as_bytes();
        let begun = word.iter().map(|letter| u32::from(*letter)).take(self.letters.len());
        match word.get(self.letters.len()) {
            Some(next) if begun.eq(self.letters.iter().copied()) => *next,
            _ => Self::SPACE,
        }
    }
}

impl GeneratedText {
    /// Ends the text at the first stop string, and holds back what may begin one, as vLLM does.
    /// Returns whether one was found.
    pub(super) fn stop_at(&mut self, stops: &StopStrings) -> bool {
        let Some(longest) = stops.all.iter().map(|stop| stop.chars().count()).max() else {
            return false;
        };
        let longest_bytes = stops.all.iter().map(String::len).max().unwrap_or(0);
        let held = if stops.are_included { 0 } else { longest.saturating_sub(1) };
        let mut text = String::new();
        let mut shown = 0;
        for at in 0..self.pieces.len() {
            let from = text.floor_char_boundary(text.len().saturating_sub(longest_bytes));
            text.push_str(&self.pieces[at]);
            let found = stops.all.iter().filter_map(|stop| {
                let start = from + text[from..].find(stop.as_str())?;
                Some((start, start + stop.len()))
            });
            if let Some((start, end)) = found.min() {
                let end = if stops.are_included { end } else { start };
                self.pieces[at] = text[shown.min(end)..end].to_owned();
                self.pieces.truncate(at + 1);
                self.tokens.truncate(at + 1);
                return true;
            }
            let is_last = at + 1 == self.pieces.len();
            let back = if is_last { 0 } else { held };
            let end = match back.checked_sub(1) {
                None => text.len(),
                Some(last) => text.char_indices().rev().nth(last).map_or(0, |(at, _)| at),
            };
            self.pieces[at] = text[shown..end].to_owned();
            shown = end;
        }
        false
    }
}

/// The stop strings of a request.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct StopStrings {
    pub(super) all: Vec<String>,
    /// Whether the text ends with the one that is found.
    pub(super) are_included: bool,
}

impl ServedText {
    fn encode(&self, text: &str, framing: SpecialTokens) -> Result<Vec<u32>, String> {
        let mut tokens = Vec::new();
        self.tokenizer.encode(text, framing, &mut tokens).map_err(|error| error.to_string())?;
        Ok(tokens)
    }

    fn chat(&self, messages: &[Value], body: &Map<String, Value>) -> Result<Vec<u32>, String> {
        let template = self.template.as_ref();
        let template = template.ok_or("this model has no chat template; send /v1/completions")?;
        let conversation = Conversation {
            tools: body.get("tools").and_then(Value::as_array).map(Vec::as_slice),
            kwargs: body.get("chat_template_kwargs").and_then(Value::as_object),
            now: WallTime(unix_seconds() as i64),
            ending: if continues(body) {
                PromptEnding::InsideLastMessage
            } else {
                PromptEnding::GenerationPrompt
            },
            ..Conversation::new(messages)
        };
        let rendered = template.render(&conversation).map_err(|error| error.to_string())?;
        match rendered.extent {
            Extent::Whole => self.encode(&rendered.text, SpecialTokens::InText),
            Extent::BeforePart => {
                Err("this engine accepts text only; a message has a part of another type"
                    .to_owned())
            }
        }
    }
}

/// Whether the answer goes on with the last message.
fn continues(body: &Map<String, Value>) -> bool {
    body.get("continue_final_message").and_then(Value::as_bool).unwrap_or(false)
}

/// Renders a chat without a template; if it `continues`, its last message has no end.
fn plain_chat(messages: &[Value], continues: bool) -> Result<String, String> {
    let mut text = String::new();
    for message in messages {
        let role = message["role"].as_str().ok_or("every message needs a `role`")?;
        text.push_str(&format!("<|{role}|>\n"));
        match &message["content"] {
            Value::String(content) => text.push_str(content),
            Value::Null => {}
            Value::Array(parts) => {
                for part in parts {
                    let part = part["text"].as_str();
                    text.push_str(part.ok_or(
                        "this engine accepts text only; a message has a part of another type",
                    )?);
                }
            }
            _ => return Err("`content` must be a string, an array of parts or null".to_owned()),
        }
        text.push('\n');
    }
    if continues {
        text.pop();
    } else {
        text.push_str("<|assistant|>\n");
    }
    Ok(text)
}

fn one_token_words(tokenizer: &Tokenizer) -> Vec<(u32, &'static str)> {
    let one = |word| {
        let mut tokens = Vec::new();
        tokenizer.encode(&format!(" {word}"), SpecialTokens::InText, &mut tokens).ok()?;
        <[u32; 1]>::try_from(tokens).ok().map(|[token]| (token, word))
    };
    WORDS.split_whitespace().filter_map(one).collect()
}

/// SplitMix64.
pub(super) fn mix(seed: u64) -> u64 {
    let mut z = seed.wrapping_add(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn an_answer_sent_back_continues_the_prompts_tokens() {
        let tiny = Path::new(env!("CARGO_MANIFEST_DIR")).join("../blocks/tests/models/tiny-llama");
        for text in [TextModel::Bytes, TextModel::load(&tiny).unwrap()] {
            let prompt = text.prompt("once upon a time").unwrap();
            let answer = text.generate(&prompt, 40);
            assert_eq!((answer.tokens.len(), answer.pieces.len()), (40, 40));
            let again =
                text.prompt(&format!("once upon a time{}", answer.pieces.concat())).unwrap();
            assert_eq!(again, [&prompt[..], &answer.tokens].concat());
            assert_eq!(text.generate(&prompt, 40).pieces, answer.pieces);
            let all = [&prompt[..], &answer.tokens].concat();
            for sent in 0..40 {
                let rest = text.generate(&all[..prompt.len() + sent], 40 - sent);
                assert_eq!(rest.tokens, answer.tokens[sent..], "continued after {sent}");
            }
        }
    }

    #[test]
    fn a_stop_string_ends_the_text_and_its_beginning_is_held_back() {
        let pieces = |text: &str, stop: &str, are_included| {
            let pieces: Vec<_> = text.chars().map(String::from).collect();
            let mut text = GeneratedText { tokens: vec![0; pieces.len()], pieces };
            let stops = StopStrings { all: vec![stop.to_owned()], are_included };
            let found = text.stop_at(&stops);
            (text.pieces.join("|"), found)
        };
        assert_eq!(pieces("abcdef", "cd", false), ("|a|b|".to_owned(), true));
        assert_eq!(pieces("abcdef", "cd", true), ("a|b|c|d".to_owned(), true));
        assert_eq!(pieces("abcdef", "xyz", false), ("||a|b|c|def".to_owned(), false));
        assert_eq!(pieces("abc", "c", false), ("a|b|".to_owned(), true));
    }

    #[test]
    fn a_plain_chat_extends_to_its_next_turn() {
        let user = json!({"role": "user", "content": "hi"});
        let first = plain_chat(std::slice::from_ref(&user), false).unwrap();
        let answer = json!({"role": "assistant", "content": [{"type": "text", "text": "ho"}]});
        let second = plain_chat(&[user.clone(), answer.clone()], false).unwrap();
        assert!(second.starts_with(&format!("{first}ho\n")), "{second}");
        assert_eq!(plain_chat(&[user, answer], true).unwrap(), format!("{first}ho"));
        assert!(plain_chat(&[json!({"content": "hi"})], false).is_err());
    }

    #[test]
    fn a_missing_directory_is_refused_with_the_files_it_needs() {
        let error = TextModel::load(Path::new("nowhere")).err().unwrap().to_string();
        assert!(error.starts_with("nowhere/tokenizer.json: "), "{error}");
        assert!(error.contains("tokenizer_config.json"), "{error}");
    }
}
