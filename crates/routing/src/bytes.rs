//! Tokens without a tokenizer: bytes, as simulated engines take them that have none.

use serde_json::Value;

use crate::models::{Tokenize, TokenizeError};
use crate::request::{Prompt, Request};

/// Every byte of the text is a token, and a chat is lines after `<|role|>`.
#[derive(Clone, Copy, Debug)]
pub struct ByteTokenizer;

impl Tokenize for ByteTokenizer {
    fn tokenize(&self, request: &Request, tokens: &mut Vec<u32>) -> Result<(), TokenizeError> {
        let mut push = |text: &str| tokens.extend(text.bytes().map(u32::from));
        match &request.prompt {
            Prompt::Tokens(ids) => tokens.extend_from_slice(ids),
            Prompt::Text(text) => push(text),
            Prompt::Chat { messages, .. } => {
                for message in messages.iter() {
                    push(&format!("<|{}|>\n", message["role"].as_str().unwrap_or_default()));
                    match &message["content"] {
                        Value::Array(parts) => {
                            parts
                                .iter()
                                .filter_map(|part| part["text"].as_str())
                                .for_each(&mut push);
                        }
                        content => push(content.as_str().unwrap_or_default()),
                    }
                    push("\n");
                }
                push("<|assistant|>\n");
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_chat_is_lines_after_roles_whatever_form_its_content_has() {
        let text = |content: Value| {
            let messages = vec![json!({"role": "user", "content": content})];
            let prompt = Prompt::Chat { messages: messages.into(), tools: None, kwargs: None };
            let mut tokens = Vec::new();
            ByteTokenizer.tokenize(&Request { prompt, ..Request::default() }, &mut tokens).unwrap();
            tokens.into_iter().map(|byte| char::from(byte as u8)).collect::<String>()
        };
        let said = "<|user|>\nhi there\n<|assistant|>\n";
        assert_eq!(text(json!("hi there")), said);
        assert_eq!(text(json!([{"type": "text", "text": "hi "}, {"text": "there"}])), said);
        assert_eq!(text(Value::Null), "<|user|>\n\n<|assistant|>\n");
    }
}
