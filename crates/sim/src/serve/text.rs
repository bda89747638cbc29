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
use serde_json::{Map, Value};
use std::path::{Path, PathBuf};
use wornpath_blocks::chat::{ChatTemplate, Conversation, Extent, TokenizerConfig, WallTime};
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
    tokenizer: Tokenizer,
    /// Without one, chats are refused, as engines do.
    template: Option<ChatTemplate>,
    words: Vec<(u32, &'static str)>,
}

/// Generated text.
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
        let config = TokenizerConfig::from_json(&name("tokenizer_config.json"), &config)
            .map_err(|error| unusable(&error))?;
        let words = one_token_words(&tokenizer);
        if words.is_empty() {
            return Err(TextError::NoWords(directory.to_owned()));
        }
        let template = ChatTemplate::from_config(&config).ok();
        Ok(Self::Model(Box::new(ServedText { tokenizer, template, words })))
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
            Self::Bytes => Ok(plain_chat(messages)?.bytes().map(u32::from).collect()),
            Self::Model(model) => model.chat(messages, body),
        }
    }

    /// Generates `length` tokens that depend only on the prompt.
    pub(super) fn generate(&self, prompt: &[u32], length: usize) -> GeneratedText {
        let mut seed = prompt
            .iter()
            .fold(0x9E37_79B9_7F4A_7C15_u64, |seed, token| mix(seed ^ u64::from(*token)));
        let mut generated = GeneratedText {
            tokens: Vec::with_capacity(length),
            pieces: Vec::with_capacity(length),
        };
        let all: Vec<_> = WORDS.split_whitespace().collect();
        while generated.tokens.len() < length {
            seed = mix(seed);
            match self {
                Self::Bytes => {
                    let word = all[(seed % all.len() as u64) as usize];
                    for letter in std::iter::once(' ').chain(word.chars()) {
                        if generated.tokens.len() < length {
                            generated.tokens.push(u32::from(letter));
                            generated.pieces.push(letter.to_string());
                        }
                    }
                }
                Self::Model(model) => {
                    let (token, word) = model.words[(seed % model.words.len() as u64) as usize];
                    generated.tokens.push(token);
                    generated.pieces.push(format!(" {word}"));
                }
            }
        }
        generated
    }
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

/// Renders a chat without a template.
fn plain_chat(messages: &[Value]) -> Result<String, String> {
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
    text.push_str("<|assistant|>\n");
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
            assert_eq!(again, [prompt.clone(), answer.tokens].concat());
            assert_eq!(text.generate(&prompt, 40).pieces, answer.pieces);
        }
    }

    #[test]
    fn a_plain_chat_extends_to_its_next_turn() {
        let user = json!({"role": "user", "content": "hi"});
        let first = plain_chat(std::slice::from_ref(&user)).unwrap();
        let answer = json!({"role": "assistant", "content": [{"type": "text", "text": "ho"}]});
        let second = plain_chat(&[user, answer]).unwrap();
        assert!(second.starts_with(&format!("{first}ho\n")), "{second}");
        assert!(plain_chat(&[json!({"content": "hi"})]).is_err());
    }

    #[test]
    fn a_missing_directory_is_refused_with_the_files_it_needs() {
        let error = TextModel::load(Path::new("nowhere")).err().unwrap().to_string();
        assert!(error.starts_with("nowhere/tokenizer.json: "), "{error}");
        assert!(error.contains("tokenizer_config.json"), "{error}");
    }
}
