//! Who holds how much of each prompt, as a table.

use super::BLOCK_SIZE;
use super::engine::{RecordedEngine, RecordedPrompt};
use std::io::Write;
use wornpath_blocks::HashKey;
use wornpath_index::{Depths, Index, Tier};

const PROMPT_WIDTH: usize = 26;
const ENGINE_WIDTH: usize = 12;

/// One prompt's line.
pub(super) struct Row {
    prompt: &'static str,
    tokens: usize,
    held: Vec<String>,
    best: &'static str,
}

impl Row {
    pub(super) fn of_all(
        prompts: &[RecordedPrompt],
        engines: &[&RecordedEngine],
        index: &Index,
        key: &HashKey,
    ) -> anyhow::Result<Vec<Self>> {
        let mut reader = index.reader();
        let mut answer = Depths::default();
        let mut rows = Vec::new();
        for prompt in prompts {
            let chain = prompt.chain(key);
            reader.lookup(&chain, &mut answer);
            let mut held = Vec::new();
            let mut best: Option<(usize, &'static str)> = None;
            for engine in engines {
                let depth = answer.depth(engine.pod().slot());
                held.push(describe(index, engine, &chain[..depth])?);
                if depth > best.map_or(0, |(deepest, _)| deepest) {
                    best = Some((depth, engine.name));
                }
            }
            rows.push(Self {
                prompt: prompt.name,
                tokens: prompt.tokens.len(),
                held,
                best: best.map_or("any: nobody has it", |(_, name)| name),
            });
        }
        Ok(rows)
    }
}

/// Tokens held and the slowest tier among them, which is what a reuse waits for.
fn describe(
    index: &Index,
    engine: &RecordedEngine,
    blocks: &[wornpath_blocks::BlockHash],
) -> anyhow::Result<String> {
    let mut holdings = Vec::new();
    index.block_locations(engine.pod(), blocks, &mut holdings)?;
    let tier = match holdings.iter().map(|holding| holding.tier).max() {
        None => return Ok("-".to_owned()),
        Some(Tier::Gpu) => "gpu",
        Some(Tier::Host) => "host",
        Some(Tier::Disk) => "disk",
        Some(Tier::Other) => "other",
    };
    Ok(format!("{} {tier}", blocks.len() * BLOCK_SIZE.get()))
}

/// Writes the rows under a title.
pub(super) fn write(
    out: &mut dyn Write,
    title: &str,
    engines: &[&RecordedEngine],
    rows: &[Row],
) -> anyhow::Result<()> {
    writeln!(out, "\n{title}")?;
    write!(out, "   {:PROMPT_WIDTH$} {:>6}", "prompt", "tokens")?;
    for engine in engines {
        write!(out, "  {:>ENGINE_WIDTH$}", engine.name)?;
    }
    writeln!(out, "  send it to")?;
    for row in rows {
        write!(out, "   {:PROMPT_WIDTH$} {:>6}", row.prompt, row.tokens)?;
        for held in &row.held {
            write!(out, "  {held:>ENGINE_WIDTH$}")?;
        }
        writeln!(out, "  {}", row.best)?;
    }
    Ok(())
}
