//! `text_blocks`: a chain of hashes over the prompt's text, for models without a tokenizer.
//!
//! Engines report blocks of tokens, so nothing that they report matches these hashes. Only what
//! this router itself sent before matches: use it in a profile with `speculate`, which assumes that
//! a pod caches what it was sent.

use std::sync::Arc;

use serde_json::Value;
use wornpath_blocks::{BlockHash, TextChain, TextHasher};
use wornpath_yaml::{Parameter, Takes};

use crate::messages::{Token, Walk};
use crate::models::Models;
use crate::plugin::{Assembly, AssemblyRefused, Make, Plugin};
use crate::request::Prompt;
use crate::slot::{BlockHashes, Writes};
use crate::stage::{Prepare, Preparing, Rejection};

pub(crate) const PLUGIN: Plugin = Plugin {
    name: "text_blocks",
    summary: "Hashes the prompt's text in chunks, without a tokenizer. Matches only what this router sent before, never \
              what engines report.",
    parameters: &[Parameter::with_default(
        "chunk_bytes",
        Takes::Whole(8, 65_536),
        "512",
        "Bytes per chunk; four bytes count as one token.",
    )],
    needs: &[],
    conflicts: &[],
    example: "text_blocks: {chunk_bytes: 256}",
    make: Make::Prepare(make),
};

const BYTES_PER_TOKEN: usize = 4;
/// Follows every value. A client that puts it into a prompt affects only the match of its own
/// prompt.
const SEPARATOR: u8 = 0x1F;

struct TextBlocks {
    blocks: Writes<BlockHashes>,
    models: Arc<Models>,
    hasher: TextHasher,
}

fn make(assembly: &mut Assembly<'_>) -> Result<Box<dyn Prepare>, AssemblyRefused> {
    let models = assembly.models();
    let chunk: usize = assembly.get("chunk_bytes");
    let Ok(chunk) = chunk.try_into() else {
        return Err(assembly.refuse("chunk_bytes", "a chunk has 0 bytes", "set at least 8"));
    };
    let hasher = TextHasher::new(models.key(), chunk);
    Ok(Box::new(TextBlocks { blocks: assembly.writes(), models, hasher }))
}

impl Prepare for TextBlocks {
    fn prepare(&self, preparing: &mut Preparing<'_>) -> Result<(), Rejection> {
        let request = preparing.request();
        if preparing.untokenized().is_some() {
            return Ok(());
        }
        let root = self.models.root(&request.model, request.salt.as_deref());
        let blocks = preparing.write(&self.blocks);
        let mut text = ChainBuilder { chain: self.hasher.begin(root), out: &mut blocks.chain };
        match &request.prompt {
            Prompt::Text(prompt) => text.push(prompt.as_bytes()),
            Prompt::Tokens(tokens) => {
                tokens.iter().for_each(|token| text.push(&token.to_le_bytes()));
            }
            Prompt::Chat { messages, tools, kwargs } => {
                // Tools first, as in chat templates: so one more message only extends the chain.
                tools.iter().flatten().for_each(|tool| text.value(tool));
                let kwargs = kwargs.iter().flatten();
                kwargs.for_each(|(name, value)| text.field(name, value));
                match messages.written() {
                    Some(json) => text.unparsed(json),
                    None => messages.iter().for_each(|message| text.value(message)),
                }
            }
        }
        blocks.prompt_tokens = text.chain.bytes().div_ceil(BYTES_PER_TOKEN);
        blocks.block_tokens = (self.hasher.chunk_bytes().get() / BYTES_PER_TOKEN).max(1);
        Ok(())
    }
}

/// Hashes a text piece by piece, without a copy of the whole.
struct ChainBuilder<'a> {
    chain: TextChain<'a>,
    out: &'a mut Vec<BlockHash>,
}

impl ChainBuilder<'_> {
    fn push(&mut self, bytes: &[u8]) {
        self.chain.push(bytes, self.out);
    }

    /// Adds the text of a value. Not as JSON: escaping would take longer than all other work here.
    fn value(&mut self, value: &Value) {
        match value {
            Value::String(string) => self.push(string.as_bytes()),
            Value::Array(items) => items.iter().for_each(|item| self.value(item)),
            Value::Object(fields) => {
                fields.iter().for_each(|(name, value)| self.field(name, value));
            }
            other => self.push(other.to_string().as_bytes()),
        }
        self.push(&[SEPARATOR]);
    }

    /// Adds the text of a list's values from their JSON, as [`Self::value`] would after parsing.
    fn unparsed(&mut self, list: &str) {
        let mut walk = Walk::new(list);
        let mut depth = 0_usize;
        while let Some(token) = walk.token() {
            match token {
                Token::Open => {
                    depth += 1;
                    continue;
                }
                // The list itself is not a value.
                Token::Close if depth <= 1 => return,
                Token::Close => depth -= 1,
                Token::Text(written) => written.unescaped(|piece| self.push(piece.as_bytes())),
                Token::Scalar(written) => {
                    let value: Value = serde_json::from_slice(written).unwrap_or_default();
                    self.push(value.to_string().as_bytes());
                }
            }
            self.push(&[SEPARATOR]);
        }
    }

    fn field(&mut self, name: &str, value: &Value) {
        self.push(name.as_bytes());
        self.push(&[SEPARATOR]);
        self.value(value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::messages::Messages;
    use crate::plugins::harness::Harness;
    use serde_json::json;

    fn blocks(prompt: Prompt) -> BlockHashes {
        let mut harness = Harness::of(1);
        harness.request.prompt = prompt;
        harness.prepared(&["text_blocks: {chunk_bytes: 16}"]).unwrap().unwrap()
    }

    fn chat(turns: usize) -> Prompt {
        let message = |turn| json!({"role": "user", "content": format!("question number {turn}")});
        Prompt::Chat { messages: (0..turns).map(message).collect(), tools: None, kwargs: None }
    }

    #[test]
    fn a_longer_conversation_continues_the_chain_of_the_shorter_one() {
        let short = blocks(chat(3));
        let long = blocks(chat(4));
        assert!(short.chain.len() > 4);
        assert_eq!(long.chain[..short.chain.len()], short.chain);
        assert!(long.chain.len() > short.chain.len());
        assert_eq!(short.block_tokens, 4);
        assert!(short.prompt_tokens >= short.chain.len() * 4);
    }

    #[test]
    fn parsed_and_unparsed_messages_have_the_same_chain() {
        let body = r#"{"messages": [ {"role":"user", "content":[{"type":"text","text":"one\ntwo \u00e9\ud83d\ude00 \"three\""}],
            "n": [1e3, -0.5, true, null, {}, []] } , {"role":"assistant","content":"and a longer answer"}]}"#;
        let body = bytes::Bytes::from_static(body.as_bytes());
        let (written, _) = Messages::take_from(&body).unwrap();
        let parsed: Messages = written.to_vec().into();
        assert!(written.written().is_some() && parsed.written().is_none());
        let chain = |messages| blocks(Prompt::Chat { messages, tools: None, kwargs: None });
        let written = chain(written);
        let parsed = chain(parsed);
        assert!(parsed.chain.len() > 5);
        assert_eq!((written.chain, written.prompt_tokens), (parsed.chain, parsed.prompt_tokens));
    }

    #[test]
    fn another_adapter_or_text_has_another_chain() {
        let text = |text: &str| blocks(Prompt::Text(text.repeat(4))).chain;
        assert_eq!(text("0123456789abcdef").len(), 4);
        assert_ne!(text("0123456789abcdef")[0], text("0123456789abcdeF")[0]);
        let mut harness = Harness::of(1);
        harness.request.prompt = Prompt::Text("0123456789abcdef".into());
        let first = |harness: &Harness| {
            let yaml = ["text_blocks: {chunk_bytes: 16}"];
            harness.prepared::<BlockHashes>(&yaml).unwrap().unwrap().chain[0]
        };
        let plain = first(&harness);
        harness.request.model.lora = Some("sql".into());
        assert_ne!(first(&harness), plain);
    }
}
