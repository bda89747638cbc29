//! `tokenizer_config.json`: the texts of special tokens, and the chat templates.

use serde_json::{Map, Value};

/// A `tokenizer_config.json` that cannot be used.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ConfigError {
    /// Not JSON at all.
    #[error("{file}: not JSON: {cause}")]
    NotJson {
        /// The file as the caller named it.
        file: String,
        /// The parser's message, with line and column.
        cause: String,
    },
    /// JSON of another shape than Hugging Face writes.
    #[error("{file}: {field} must be {expected}")]
    WrongShape {
        /// The file as the caller named it.
        file: String,
        /// The offending field.
        field: String,
        /// The type that the field must have.
        expected: &'static str,
    },
}

/// The parts of a model's `tokenizer_config.json` that determine prompts.
#[derive(Clone, Debug)]
pub struct TokenizerConfig {
    pub(super) file: String,
    /// `bos_token` and the other special tokens, as templates see them.
    pub(super) special_tokens: Map<String, Value>,
    /// Templates by name; one without a name is `default`.
    pub(super) templates: Vec<(String, String)>,
}

const SPECIAL_TOKENS: [&str; 7] =
    ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];

impl TokenizerConfig {
    /// Reads the bytes of the file, which errors call `file`.
    ///
    /// # Errors
    /// If the bytes are not JSON, or not of the shape that Hugging Face writes.
    pub fn from_json(file: &str, bytes: &[u8]) -> Result<Self, ConfigError> {
        let value: Value = serde_json::from_slice(bytes).map_err(|error| ConfigError::NotJson {
            file: file.to_owned(),
            cause: error.to_string(),
        })?;
        let wrong = |field: &str, expected| ConfigError::WrongShape {
            file: file.to_owned(),
            field: field.to_owned(),
            expected,
        };
        let Value::Object(config) = &value else { return Err(wrong("the file", "an object")) };
        let mut special_tokens = Map::new();
        for name in SPECIAL_TOKENS {
            let text = match config.get(name) {
                None | Some(Value::Null) => continue,
                Some(Value::String(text)) => text.clone(),
                Some(Value::Object(token)) => match token.get("content") {
                    Some(Value::String(text)) => text.clone(),
                    _ => return Err(wrong(&format!("`{name}.content`"), "a string")),
                },
                Some(_) => {
                    return Err(wrong(&format!("`{name}`"), "a string, an object or null"));
                }
            };
            special_tokens.insert(name.to_owned(), Value::String(text));
        }
        let templates = match config.get("chat_template") {
            None | Some(Value::Null) => Vec::new(),
            Some(Value::String(source)) => vec![("default".to_owned(), source.clone())],
            Some(Value::Array(list)) => list
                .iter()
                .map(|entry| match (entry.get("name"), entry.get("template")) {
                    (Some(Value::String(name)), Some(Value::String(source))) => {
                        Ok((name.clone(), source.clone()))
                    }
                    _ => Err(wrong(
                        "`chat_template`",
                        "a list of objects with `name` and `template`",
                    )),
                })
                .collect::<Result<_, _>>()?,
            Some(_) => return Err(wrong("`chat_template`", "a string, a list or null")),
        };
        Ok(Self { file: file.to_owned(), special_tokens, templates })
    }

    /// A model without a `tokenizer_config.json`.
    #[must_use]
    pub fn empty() -> Self {
        Self {
            file: "no tokenizer_config.json".to_owned(),
            special_tokens: Map::new(),
            templates: Vec::new(),
        }
    }
}
