//! `text_blocks`: a chain of hashes over the prompt's text, for models whose tokenizer is not at hand.
//!
//! Engines report blocks of tokens, so nothing they report is found under these hashes. What is found
//! is what this router itself sent before: use it with a profile that expects a prompt to be cached
//! where it was sent.

use std::sync::Arc;

use serde_json::Value;
use wornpath_blocks::TextHasher;

use crate::assembly::{Assembly, Refused};
use crate::models::Models;
use crate::parameter::{Parameter, Takes};
use crate::plugin::{Make, Plugin};
use crate::request::Prompt;
use crate::slot::Writes;
use crate::stage::{Prepare, Preparing, Rejection};
use crate::values::BlockHashes;

pub(crate) const PLUGIN: Plugin = Plugin {
    name: "text_blocks",
    summary: "Hashes the prompt's text in chunks, without a tokenizer. Finds only what was routed before, \
              never what engines report.",
    parameters: &[Parameter::with_default(
        "chunk_bytes",
        Takes::Whole(8, 65_536),
        "256",
        "How many bytes a chunk has; four are counted as a token.",
    )],
    needs: &[],
    conflicts: &[],
    example: "text_blocks: {chunk_bytes: 512}",
    make: Make::Prepare(make),
};

const BYTES_PER_TOKEN: usize = 4;
/// Stands after every value. Whoever writes it into a prompt only misleads the guess about his own.
const SEPARATOR: u8 = 0x1F;

struct TextBlocks {
    blocks: Writes<BlockHashes>,
    models: Arc<Models>,
    hasher: TextHasher,
}

fn make(assembly: &mut Assembly<'_>) -> Result<Box<dyn Prepare>, Refused> {
    let models = assembly.models();
    let chunk: usize = assembly.get("chunk_bytes");
    let Ok(chunk) = chunk.try_into() else {
        return Err(assembly.refuse("chunk_bytes", "0 bytes are no chunk", "give at least 8"));
    };
    let hasher = TextHasher::new(models.key(), chunk);
    Ok(Box::new(TextBlocks { blocks: assembly.writes(), models, hasher }))
}

impl Prepare for TextBlocks {
    fn prepare(&self, scene: &mut Preparing<'_>) -> Result<(), Rejection> {
        let request = scene.request();
        let root = self.models.root(&request.model, request.salt.as_deref());
        let blocks = scene.write(&self.blocks);
        let mut hash = |text: &[u8]| {
            self.hasher.hash_text(text, root, &mut blocks.chain);
            text.len().div_ceil(BYTES_PER_TOKEN)
        };
        blocks.prompt_tokens = match &request.prompt {
            Prompt::Text(text) => hash(text.as_bytes()),
            Prompt::Tokens(tokens) => {
                let bytes: Vec<u8> = tokens.iter().flat_map(|token| token.to_le_bytes()).collect();
                hash(&bytes)
            }
            Prompt::Chat { messages, tools, kwargs } => {
                // Tools first, as templates have it; so one more message only lengthens the text.
                let mut text = Vec::with_capacity(request.estimated_tokens() as usize * 5);
                tools.iter().flatten().for_each(|tool| spell(tool, &mut text));
                kwargs
                    .iter()
                    .flatten()
                    .for_each(|(name, value)| spell_field(name, value, &mut text));
                messages.iter().for_each(|message| spell(message, &mut text));
                hash(&text)
            }
        };
        blocks.block_tokens = (self.hasher.chunk_bytes().get() / BYTES_PER_TOKEN).max(1);
        Ok(())
    }
}

/// The text of a value. Not JSON: escaping a prompt takes longer than all else that happens to it here.
fn spell(value: &Value, text: &mut Vec<u8>) {
    match value {
        Value::String(string) => text.extend_from_slice(string.as_bytes()),
        Value::Array(items) => items.iter().for_each(|item| spell(item, text)),
        Value::Object(fields) => {
            fields.iter().for_each(|(name, value)| spell_field(name, value, text));
        }
        other => text.extend_from_slice(other.to_string().as_bytes()),
    }
    text.push(SEPARATOR);
}

fn spell_field(name: &str, value: &Value, text: &mut Vec<u8>) {
    text.extend_from_slice(name.as_bytes());
    text.push(SEPARATOR);
    spell(value, text);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plugins::rehearsal::Rehearsal;
    use serde_json::json;

    fn blocks(prompt: Prompt) -> BlockHashes {
        let mut rehearsal = Rehearsal::of(1);
        rehearsal.request.prompt = prompt;
        rehearsal.prepared(&["text_blocks: {chunk_bytes: 16}"]).unwrap().unwrap()
    }

    fn chat(turns: usize) -> Prompt {
        let message = |turn| json!({"role": "user", "content": format!("question number {turn}")});
        Prompt::Chat { messages: (0..turns).map(message).collect(), tools: None, kwargs: None }
    }

    #[test]
    fn a_longer_conversation_continues_the_chain_of_the_shorter_one() {
        let (short, long) = (blocks(chat(3)), blocks(chat(4)));
        assert!(short.chain.len() > 4);
        assert_eq!(long.chain[..short.chain.len()], short.chain);
        assert!(long.chain.len() > short.chain.len());
        assert_eq!(short.block_tokens, 4);
        assert!(short.prompt_tokens >= short.chain.len() * 4);
    }

    #[test]
    fn another_model_adapter_or_text_has_another_chain() {
        let text = |text: &str| blocks(Prompt::Text(text.repeat(4))).chain;
        assert_eq!(text("0123456789abcdef").len(), 4);
        assert_ne!(text("0123456789abcdef")[0], text("0123456789abcdeF")[0]);
        let mut rehearsal = Rehearsal::of(1);
        rehearsal.request.prompt = Prompt::Text("0123456789abcdef".into());
        let first = |rehearsal: &Rehearsal| {
            let yaml = ["text_blocks: {chunk_bytes: 16}"];
            rehearsal.prepared::<BlockHashes>(&yaml).unwrap().unwrap().chain[0]
        };
        let plain = first(&rehearsal);
        rehearsal.request.model.lora = Some("sql".into());
        assert_ne!(first(&rehearsal), plain);
    }
}
