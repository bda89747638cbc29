//! Reads a file of prompts: batch lines, request bodies or trace lines.

use super::arguments::PlanArguments;
use crate::fleet::tokenizer;
use crate::input;
use anyhow::ensure;
use serde_json::Value;
use std::fs::File;
use std::io::{BufRead, BufReader, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::time::Duration;
use wornpath_blocks::{BlockHash, HashKey};
use wornpath_jobs::{ExternalSort, Interface, PromptHasher, SortScratch, rendered};
use wornpath_planner::{Forest, Job, Queue};
use wornpath_sim::replay::{Trace, TraceStart, TraceTurn};

const BYTE_ORDER_MARK: char = '\u{feff}';
/// Invalid lines that the error lists.
const LISTED_LINES: usize = 10;
/// Limit of linted prompts, which are spread evenly over the file.
const LINTED: usize = 4_096;
/// Bytes of a prompt that are linted: early divergences are in there.
const LINTED_BYTES: usize = 16 << 10;
/// Bytes of all prompts that are linted.
const ALL_LINTED_BYTES: usize = 32 << 20;
/// Limits of requests that are simulated, the first of a file, and of their blocks.
const SIMULATED: usize = 100_000;
const SIMULATED_BLOCKS: usize = 2 << 20;

/// The requests of a file. It may be larger than memory: of each line only its chain of hashes is
/// kept, on disk if there are too many.
pub(super) struct Prompts {
    /// All requests, for planning.
    pub(super) queue: Queue,
    /// The first requests, for simulation; all arrive at the start.
    pub(super) trace: Trace,
    /// Texts for the linter, each with its line; none for traces.
    pub(super) sample: Vec<(usize, String)>,
    positions: Vec<LinePosition>,
    /// Whether tokens are counted with the model's tokenizer.
    pub(super) exact: bool,
    path: PathBuf,
    spill: ExternalSort,
    /// Blocks of all requests so far.
    blocks: usize,
    /// Bytes of the sample.
    linted_bytes: usize,
}

#[derive(Clone, Copy)]
struct LinePosition {
    /// Counted from 1.
    line: u32,
    /// Offset of the first byte of the line.
    offset: u64,
}

struct PromptReader<'a> {
    arguments: &'a PlanArguments,
    hasher: PromptHasher,
}

impl Prompts {
    pub(super) fn read(arguments: &PlanArguments) -> anyhow::Result<Self> {
        let path = &arguments.prompts;
        let tokenizer = match &arguments.tokenizer {
            Some(folder) => Some(tokenizer(Path::new(""), &folder.to_string_lossy())?),
            None => None,
        };
        let hasher = PromptHasher::new(&HashKey::DEFAULT, arguments.block_size, tokenizer);
        let reader = PromptReader { arguments, hasher };
        let mut prompts = Self {
            queue: Queue::new(arguments.block_size),
            trace: Trace { block_size: arguments.block_size, turns: Vec::new() },
            sample: Vec::new(),
            positions: Vec::new(),
            exact: reader.hasher.is_exact(),
            path: path.clone(),
            spill: ExternalSort::to(scratch(arguments.planning_memory)),
            blocks: 0,
            linted_bytes: 0,
        };
        let mut file = input::open_lines(path)?;
        let mut line = String::new();
        let mut offset = 0;
        let mut step = 1;
        let mut invalid = 0;
        let mut listed = Vec::new();
        for number in 1_u32.. {
            let mut bytes = input::read_line(&mut file, path, number as usize, &mut line)? as u64;
            if bytes == 0 {
                break;
            }
            if number == 1 && line.starts_with(BYTE_ORDER_MARK) {
                line.remove(0);
                offset = BYTE_ORDER_MARK.len_utf8() as u64;
                bytes -= offset;
            }
            if !line.trim().is_empty()
                && let Err(problem) =
                    prompts.add(&reader, &line, LinePosition { line: number, offset }, &mut step)
            {
                invalid += 1;
                if listed.len() < LISTED_LINES {
                    listed.push(format!("  line {number}: {problem}"));
                }
            }
            prompts.spill.relieve(&mut prompts.queue)?;
            offset += bytes;
        }
        let name = path.display();
        ensure!(invalid == 0, "{name}: {invalid} invalid lines\n{}", listed.join("\n"));
        ensure!(!prompts.positions.is_empty(), "{name}: no requests; write one JSON object a line");
        prompts.spill.finish(&mut prompts.queue)?;
        // A trace has the numbers of tokens.
        prompts.exact |= prompts.sample.is_empty();
        Ok(prompts)
    }

    /// Adds the request of a line; every `step`th prompt is linted.
    fn add(
        &mut self,
        reader: &PromptReader<'_>,
        line: &str,
        position: LinePosition,
        step: &mut usize,
    ) -> Result<(), String> {
        let (turn, mut text) = reader.request(line)?;
        let chain: Vec<_> =
            turn.full_blocks(self.trace.block_size).iter().copied().map(BlockHash).collect();
        let job = Job {
            chain: &chain,
            prompt_tokens: turn.prompt_tokens,
            output_tokens: turn.output_tokens,
            identity: None,
        };
        self.queue.push(&job).map_err(|error| error.to_string())?;
        if self.positions.len().is_multiple_of(*step) && !text.is_empty() {
            text.truncate(text.floor_char_boundary(LINTED_BYTES));
            text.shrink_to_fit();
            self.linted_bytes += text.len();
            self.sample.push((position.line as usize, text));
        }
        if self.sample.len() > 2 * LINTED || self.linted_bytes > ALL_LINTED_BYTES {
            // Every other prompt is dropped, and from here on half as many are added.
            let mut keep = false;
            self.sample.retain(|_| {
                keep = !keep;
                keep
            });
            self.linted_bytes = self.sample.iter().map(|(_, text)| text.len()).sum();
            *step *= 2;
        }
        // Only the first requests are simulated: once one exceeds a limit, so do all later ones.
        self.blocks += turn.blocks.len();
        if self.positions.len() < SIMULATED
            && (self.blocks <= SIMULATED_BLOCKS || self.positions.is_empty())
        {
            self.trace.turns.push(turn);
        }
        self.positions.push(position);
        Ok(())
    }

    /// The forest of all requests.
    pub(super) fn forest(&self) -> anyhow::Result<Forest> {
        Ok(self.spill.forest(&self.queue, |_| true)?)
    }

    /// The line of a request, counted from 1.
    pub(super) fn line(&self, request: usize) -> usize {
        self.positions[request].line as usize
    }

    /// The prompt of a request, read from the file again; empty for a trace.
    pub(super) fn text(&self, request: usize) -> String {
        let read = || {
            let mut file = File::open(&self.path).ok()?;
            file.seek(SeekFrom::Start(self.positions[request].offset)).ok()?;
            let mut line = String::new();
            BufReader::new(file).read_line(&mut line).ok()?;
            let line: Value = serde_json::from_str(&line).ok()?;
            rendered(if line["body"].is_object() { &line["body"] } else { &line }).ok()
        };
        read().unwrap_or_default()
    }
}

/// Where hashes are spilled to: `TMPDIR`, or a folder for temporary files that is on a disk.
fn scratch(memory: usize) -> SortScratch {
    let on_disk = || Some(PathBuf::from("/var/tmp")).filter(|folder| folder.is_dir());
    let folder = std::env::var_os("TMPDIR").map(PathBuf::from).or_else(on_disk);
    let name = format!("wornpath-{}.spill", std::process::id());
    let path = folder.unwrap_or_else(std::env::temp_dir).join(name);
    SortScratch { path, cure: "set TMPDIR to a folder with more space", memory }
}

impl PromptReader<'_> {
    fn request(&self, line: &str) -> Result<(TraceTurn, String), String> {
        let line: Value = serde_json::from_str(line).map_err(|error| error.to_string())?;
        if !line["hash_ids"].is_null() {
            return Ok((TraceTurn::queued(&line, self.arguments.block_size)?, String::new()));
        }
        let body = if line["body"].is_object() { &line["body"] } else { &line };
        let text = rendered(body)?;
        let mut chain = Vec::new();
        let lengths = self.hasher.hash_prompt(body, &text, &mut chain)?;
        if Interface::of_line(&line).is_some_and(|interface| !interface.reuses_prefixes()) {
            chain.clear();
        }
        let traced = line["output_length"].as_u64().map(|tokens| tokens as usize);
        let output_tokens = lengths.output.or(traced).unwrap_or(self.arguments.output_tokens);
        let prompt_tokens = lengths.prompt;
        let blocks = chain.iter().map(|hash: &BlockHash| hash.0).collect();
        let start = TraceStart::At(Duration::ZERO);
        let turn =
            TraceTurn { start, prompt_tokens, output_tokens, blocks, session: None, tenant: None };
        Ok((turn, text))
    }
}
