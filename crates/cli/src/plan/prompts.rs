//! Lines of prompts, in the forms that people have them in.

use super::PlanArguments;
use crate::fleet::tokenizer;
use anyhow::{Context, bail};
use serde_json::Value;
use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use wornpath_blocks::{BlockHash, BlockHasher, HashKey, Scope, TextHasher};
use wornpath_routing::{Prompt, Request, Tokenize};
use wornpath_sim::replay::{Start, Trace, Turn};

/// How many bad lines are named.
const NAMED_LINES: usize = 10;

/// Bytes that count as a token where there is no tokenizer.
const BYTES_PER_TOKEN: usize = 4;

/// What a file of prompts holds.
pub(super) struct Prompts {
    /// Its requests, all there from the start.
    pub(super) trace: Trace,
    /// The text of each, for the linter; empty for traces.
    pub(super) texts: Vec<String>,
    /// The line of each, counted from 1.
    pub(super) lines: Vec<usize>,
    /// Whether tokens are the model's own.
    pub(super) exact: bool,
}

struct Reader<'a> {
    arguments: &'a PlanArguments,
    tokenizer: Option<Arc<dyn Tokenize>>,
    hasher: BlockHasher,
    texts: TextHasher,
}

impl Prompts {
    pub(super) fn read(arguments: &PlanArguments) -> anyhow::Result<Self> {
        let path = &arguments.prompts;
        let text = std::fs::read_to_string(path)
            .with_context(|| format!("cannot read {}", path.display()))?;
        let chunk = NonZeroUsize::new(BYTES_PER_TOKEN).context("four is not zero")?;
        let reader = Reader {
            arguments,
            tokenizer: match &arguments.tokenizer {
                Some(folder) => Some(tokenizer(Path::new(""), &folder.to_string_lossy())?),
                None => None,
            },
            hasher: BlockHasher::new(&HashKey::DEFAULT, arguments.block_size),
            texts: TextHasher::new(&HashKey::DEFAULT, arguments.block_size.saturating_mul(chunk)),
        };
        let exact = reader.tokenizer.is_some();
        let trace = Trace { block_size: arguments.block_size, turns: Vec::new() };
        let mut prompts = Self { trace, texts: Vec::new(), lines: Vec::new(), exact };
        let mut bad = Vec::new();
        for (number, line) in (1..).zip(text.lines()).filter(|(_, line)| !line.trim().is_empty()) {
            match reader.request(line) {
                Ok((turn, text)) => {
                    prompts.trace.turns.push(turn);
                    prompts.texts.push(text);
                    prompts.lines.push(number);
                }
                Err(problem) => bad.push(format!("  line {number}: {problem}")),
            }
        }
        if !bad.is_empty() {
            let (count, file) = (bad.len(), path.display());
            bad.truncate(NAMED_LINES);
            bail!("{file}: {count} of its lines cannot be planned\n{}", bad.join("\n"));
        }
        if prompts.lines.is_empty() {
            bail!("{}: no requests; it must have one JSON object a line", path.display());
        }
        // A trace says how many tokens there are.
        prompts.exact |= prompts.texts.iter().all(String::is_empty);
        Ok(prompts)
    }
}

impl Reader<'_> {
    fn request(&self, line: &str) -> Result<(Turn, String), String> {
        let line: Value = serde_json::from_str(line).map_err(|error| error.to_string())?;
        if !line["hash_ids"].is_null() {
            return Ok((self.traced(&line)?, String::new()));
        }
        let body = if line["body"].is_object() { &line["body"] } else { &line };
        let output = ["max_completion_tokens", "max_tokens", "max_output_tokens", "output_length"]
            .iter()
            .find_map(|field| body[*field].as_u64().or(line[*field].as_u64()));
        let output_tokens = output.map_or(self.arguments.output_tokens, |tokens| tokens as usize);
        let text = rendered(body)?;
        let root = HashKey::DEFAULT.root(&Scope {
            model: body["model"].as_str().unwrap_or_default(),
            lora: None,
            salt: body["cache_salt"].as_str(),
        });
        let mut chain = Vec::new();
        let prompt_tokens = match &self.tokenizer {
            Some(tokenizer) => {
                let tokens = tokens_of(tokenizer.as_ref(), body, &text)?;
                self.hasher.hash_tokens(&tokens, root, &mut chain);
                tokens.len()
            }
            None => {
                self.texts.hash_text(text.as_bytes(), root, &mut chain);
                text.len().div_ceil(BYTES_PER_TOKEN)
            }
        };
        if prompt_tokens == 0 {
            return Err("the prompt is empty; it must have at least one token".to_owned());
        }
        let blocks = chain.iter().map(|hash: &BlockHash| hash.0).collect();
        let start = Start::At(Duration::ZERO);
        Ok((Turn { start, prompt_tokens, output_tokens, blocks, session: None }, text))
    }

    fn traced(&self, line: &Value) -> Result<Turn, String> {
        let number = |field: &str| {
            let value = line[field].as_u64().ok_or(format!("no `{field}`, or not a number"))?;
            Ok::<_, String>(value as usize)
        };
        let (prompt_tokens, output_tokens) = (number("input_length")?, number("output_length")?);
        let ids = line["hash_ids"].as_array().ok_or("`hash_ids` is not a list")?;
        let (full, size) = (prompt_tokens / self.arguments.block_size, self.arguments.block_size);
        if prompt_tokens == 0 || ids.len() < full || ids.len() > full + 1 {
            return Err(format!(
                "`input_length` is {prompt_tokens} and there are {} `hash_ids`; there is one per {size} tokens, see --block-size",
                ids.len()
            ));
        }
        let id = |id: &Value| id.as_u64().ok_or_else(|| format!("`{id}` in `hash_ids` is no id"));
        let blocks = ids.iter().map(id).collect::<Result<Vec<_>, _>>()?.into();
        let start = Start::At(Duration::ZERO);
        Ok(Turn { start, prompt_tokens, output_tokens, blocks, session: None })
    }
}

/// The prompt as text: what is compared, and near enough to what an engine sees to order by.
fn rendered(body: &Value) -> Result<String, String> {
    let mut text = match &body["tools"] {
        Value::Null => String::new(),
        tools => format!("{tools}\n"),
    };
    for field in ["system", "prompt", "messages", "input"] {
        match &body[field] {
            Value::String(prompt) => text.push_str(prompt),
            Value::Array(parts) => parts.iter().for_each(|part| render_part(part, &mut text)),
            _ => {}
        }
    }
    match body["prompt"].is_null() && body["messages"].is_null() && body["input"].is_null() {
        true => Err("none of `messages`, `prompt`, `input` and `hash_ids`".to_owned()),
        false => Ok(text),
    }
}

fn render_part(part: &Value, text: &mut String) {
    if let Some(role) = part["role"].as_str() {
        text.push_str(role);
        text.push('\n');
    }
    match (part, &part["content"]) {
        (Value::String(own), _) | (_, Value::String(own)) => text.push_str(own),
        (_, Value::Array(parts)) => parts.iter().for_each(|part| render_part(part, text)),
        _ => match part["text"].as_str() {
            Some(own) => text.push_str(own),
            None => text.push_str(&part.to_string()),
        },
    }
    text.push('\n');
}

fn tokens_of(tokenizer: &dyn Tokenize, body: &Value, text: &str) -> Result<Vec<u32>, String> {
    let prompt = match body["messages"].as_array() {
        Some(messages) => Prompt::Chat {
            messages: messages.clone(),
            tools: body["tools"].as_array().cloned(),
            kwargs: body["chat_template_kwargs"].as_object().cloned(),
        },
        None => Prompt::Text(text.to_owned()),
    };
    let mut tokens = Vec::new();
    tokenizer.tokenize(&Request { prompt, ..Request::default() }, &mut tokens)?;
    Ok(tokens)
}
