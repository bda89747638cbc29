//! Lines of prompts, in the forms that people have them in.

use super::PlanArguments;
use crate::fleet::tokenizer;
use crate::input;
use anyhow::{Context, ensure};
use serde_json::Value;
use std::fs::File;
use std::io::{BufRead, BufReader, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::time::Duration;
use wornpath_blocks::{BlockHash, HashKey};
use wornpath_jobs::{ExternalSort, PromptHasher, SortScratch, rendered};
use wornpath_planner::{Forest, Job, Queue};
use wornpath_sim::replay::{Trace, TraceStart, TraceTurn};

/// What some programs write before the first line.
const BYTE_ORDER_MARK: char = '\u{feff}';
/// How many bad lines are named.
const NAMED_LINES: usize = 10;
/// Prompts that are linted at most, spread evenly over the file.
const LINTED: usize = 4_096;
/// Bytes of a prompt that are linted: what diverges early, diverges here.
const LINTED_BYTES: usize = 16 << 10;
/// Bytes of all prompts that are linted.
const ALL_LINTED_BYTES: usize = 32 << 20;
/// Requests that are simulated at most, the first ones of a file, and blocks of those.
const SIMULATED: usize = 100_000;
const SIMULATED_BLOCKS: usize = 2 << 20;

/// What a file of prompts holds. It may be larger than memory: of each line its chain of hashes is kept, on disk if there
/// are too many.
pub(super) struct Prompts {
    /// All of its requests, as far as planning needs them.
    pub(super) queue: Queue,
    /// The first of its requests, to be simulated, all there from the start.
    pub(super) trace: Trace,
    /// Texts for the linter, each with its line; none for traces.
    pub(super) sample: Vec<(usize, String)>,
    /// Where each request stands: its line, counted from 1, and its first byte.
    places: Vec<(u32, u64)>,
    /// Whether tokens are the model's own.
    pub(super) exact: bool,
    path: PathBuf,
    spill: ExternalSort,
    /// Blocks of all requests so far, and bytes of the sample.
    blocks: usize,
    linted_bytes: usize,
}

struct PromptReader<'a> {
    arguments: &'a PlanArguments,
    sketcher: PromptHasher,
}

impl Prompts {
    pub(super) fn read(arguments: &PlanArguments) -> anyhow::Result<Self> {
        let path = &arguments.prompts;
        let cannot = || format!("cannot read {}", path.display());
        let tokenizer = match &arguments.tokenizer {
            Some(folder) => Some(tokenizer(Path::new(""), &folder.to_string_lossy())?),
            None => None,
        };
        let sketcher = PromptHasher::new(&HashKey::DEFAULT, arguments.block_size, tokenizer);
        let reader = PromptReader { arguments, sketcher };
        let mut prompts = Self {
            queue: Queue::new(arguments.block_size),
            trace: Trace { block_size: arguments.block_size, turns: Vec::new() },
            sample: Vec::new(),
            places: Vec::new(),
            exact: reader.sketcher.is_exact(),
            path: path.clone(),
            spill: ExternalSort::to(scratch(arguments.planning_memory)),
            blocks: 0,
            linted_bytes: 0,
        };
        input::refuse_packed(path)?;
        let mut file = BufReader::with_capacity(1 << 20, File::open(path).with_context(cannot)?);
        let (mut line, mut offset, mut step) = (String::new(), 0, 1);
        let (mut bad, mut named) = (0, Vec::new());
        for number in 1_u32.. {
            line.clear();
            let mut bytes = file.read_line(&mut line).with_context(cannot)? as u64;
            if bytes == 0 {
                break;
            }
            if number == 1 && line.starts_with(BYTE_ORDER_MARK) {
                line.remove(0);
                offset = BYTE_ORDER_MARK.len_utf8() as u64;
                bytes -= offset;
            }
            if !line.trim().is_empty()
                && let Err(problem) = prompts.take(&reader, &line, (number, offset), &mut step)
            {
                bad += 1;
                if named.len() < NAMED_LINES {
                    named.push(format!("  line {number}: {problem}"));
                }
            }
            prompts.spill.relieve(&mut prompts.queue)?;
            offset += bytes;
        }
        let name = path.display();
        ensure!(bad == 0, "{name}: {bad} of its lines cannot be planned\n{}", named.join("\n"));
        ensure!(
            !prompts.places.is_empty(),
            "{name}: no requests; it must have one JSON object a line"
        );
        prompts.spill.finish(&mut prompts.queue)?;
        // A trace says how many tokens there are.
        prompts.exact |= prompts.sample.is_empty();
        Ok(prompts)
    }

    /// Takes a line in.
    fn take(
        &mut self,
        reader: &PromptReader<'_>,
        line: &str,
        place: (u32, u64),
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
        if self.places.len().is_multiple_of(*step) && !text.is_empty() {
            text.truncate(text.floor_char_boundary(LINTED_BYTES));
            text.shrink_to_fit();
            self.linted_bytes += text.len();
            self.sample.push((place.0 as usize, text));
        }
        if self.sample.len() > 2 * LINTED || self.linted_bytes > ALL_LINTED_BYTES {
            // Every other one goes, and from here on so many fewer come.
            let mut keep = false;
            self.sample.retain(|_| {
                keep = !keep;
                keep
            });
            self.linted_bytes = self.sample.iter().map(|(_, text)| text.len()).sum();
            *step *= 2;
        }
        // Only the first ones are simulated: once one has no room, no other has.
        self.blocks += turn.blocks.len();
        if self.places.len() < SIMULATED
            && (self.blocks <= SIMULATED_BLOCKS || self.places.is_empty())
        {
            self.trace.turns.push(turn);
        }
        self.places.push(place);
        Ok(())
    }

    /// The forest of all requests.
    pub(super) fn forest(&self) -> anyhow::Result<Forest> {
        Ok(self.spill.forest(&self.queue, |_| true)?)
    }

    /// The line of a request, counted from 1.
    pub(super) fn line(&self, request: usize) -> usize {
        self.places[request].0 as usize
    }

    /// The prompt of a request, read again; empty for a trace.
    pub(super) fn text(&self, request: usize) -> String {
        let read = || {
            let mut file = File::open(&self.path).ok()?;
            file.seek(SeekFrom::Start(self.places[request].1)).ok()?;
            let mut line = String::new();
            BufReader::new(file).read_line(&mut line).ok()?;
            let line: Value = serde_json::from_str(&line).ok()?;
            rendered(if line["body"].is_object() { &line["body"] } else { &line }).ok()
        };
        read().unwrap_or_default()
    }
}

/// Where hashes go that have no room in memory: the folder for that, or the one for temporary files that is on a disk.
fn scratch(memory: usize) -> SortScratch {
    let on_disk = || Some(PathBuf::from("/var/tmp")).filter(|folder| folder.is_dir());
    let folder = std::env::var_os("TMPDIR").map(PathBuf::from).or_else(on_disk);
    let name = format!("wornpath-{}.spill", std::process::id());
    let path = folder.unwrap_or_else(std::env::temp_dir).join(name);
    SortScratch { path, cure: "set TMPDIR to a folder with more", memory }
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
        let lengths = self.sketcher.hash_prompt(body, &text, &mut chain)?;
        let traced = line["output_length"].as_u64().map(|tokens| tokens as usize);
        let output_tokens = lengths.output.or(traced).unwrap_or(self.arguments.output_tokens);
        let prompt_tokens = lengths.prompt;
        let blocks = chain.iter().map(|hash: &BlockHash| hash.0).collect();
        let start = TraceStart::At(Duration::ZERO);
        Ok((TraceTurn { start, prompt_tokens, output_tokens, blocks, session: None }, text))
    }
}
