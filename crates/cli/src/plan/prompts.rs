//! Lines of prompts, in the forms that people have them in.

use super::PlanArguments;
use crate::fleet::tokenizer;
use anyhow::{Context, bail};
use serde_json::Value;
use std::path::Path;
use std::time::Duration;
use wornpath_blocks::{BlockHash, HashKey};
use wornpath_jobs::{Sketcher, rendered};
use wornpath_sim::replay::{Start, Trace, Turn};

/// How many bad lines are named.
const NAMED_LINES: usize = 10;

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
    sketcher: Sketcher,
}

impl Prompts {
    pub(super) fn read(arguments: &PlanArguments) -> anyhow::Result<Self> {
        let path = &arguments.prompts;
        let text = std::fs::read_to_string(path)
            .with_context(|| format!("cannot read {}", path.display()))?;
        let tokenizer = match &arguments.tokenizer {
            Some(folder) => Some(tokenizer(Path::new(""), &folder.to_string_lossy())?),
            None => None,
        };
        let sketcher = Sketcher::new(&HashKey::DEFAULT, arguments.block_size, tokenizer);
        let reader = Reader { arguments, sketcher };
        let exact = reader.sketcher.is_exact();
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
        let text = rendered(body)?;
        let mut chain = Vec::new();
        let lengths = self.sketcher.sketch(body, &text, &mut chain)?;
        let traced = line["output_length"].as_u64().map(|tokens| tokens as usize);
        let output_tokens = lengths.output.or(traced).unwrap_or(self.arguments.output_tokens);
        let prompt_tokens = lengths.prompt;
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
