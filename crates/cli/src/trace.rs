//! `wornpath trace`: records live traffic as a trace for `wornpath replay`.

use crate::http::{Endpoint, HttpClient, TlsArguments};
use crate::numbers::duration;
use anyhow::{Context, ensure};
use clap::{Args, Subcommand};
use serde::Deserialize;
use serde_json::json;
use std::collections::HashMap;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How often the admin plane is polled for new requests.
const POLL_INTERVAL: Duration = Duration::from_millis(250);

/// Record the traffic of a running gateway
#[derive(Args)]
pub(crate) struct TraceArguments {
    #[command(subcommand)]
    command: TraceCommand,
}

#[derive(Subcommand)]
enum TraceCommand {
    /// Write the requests that a gateway answers as a trace for `wornpath replay`
    ///
    /// Of a prompt, only its length and a number for each of its blocks are written; prompts with a
    /// common prefix have the same first numbers. The trace holds no text, and no hash that could
    /// be compared with one. A request is written when it ends; requests without a complete answer
    /// are skipped and counted. The profile that routes the requests must hash prompts, as all
    /// cache-aware profiles do.
    Record(RecordArguments),
}

#[derive(Args)]
struct RecordArguments {
    /// File to write the trace to; must not exist
    file: PathBuf,
    /// Address of the gateway's admin plane (`listen.admin` of its configuration, or `serve
    /// --admin`)
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:8081")]
    admin: String,
    /// Token of the admin plane, if it requires one
    #[arg(long, env = "WORNPATH_ADMIN_TOKEN", hide_env_values = true)]
    token: Option<String>,
    #[command(flatten)]
    tls: TlsArguments,
    /// Stop after this time, like 90s; without it, at ctrl-C
    #[arg(long = "for", value_name = "TIME", value_parser = duration)]
    time: Option<Duration>,
    /// Stop after this many requests
    #[arg(long, value_name = "COUNT")]
    requests: Option<u64>,
    /// Record only requests for this model
    #[arg(long)]
    model: Option<String>,
}

/// A page of `/traffic` of the admin plane.
#[derive(Deserialize)]
struct TrafficPage {
    now_us: u64,
    next: u64,
    missed: u64,
    requests: Vec<TrafficEntry>,
}

#[derive(Deserialize)]
struct TrafficEntry {
    arrived_us: u64,
    model: String,
    block_tokens: usize,
    prompt_tokens: usize,
    output_tokens: Option<usize>,
    blocks: Vec<String>,
}

pub(crate) fn run(arguments: &TraceArguments, out: &mut impl Write) -> anyhow::Result<()> {
    let TraceCommand::Record(arguments) = &arguments.command;
    let endpoint = Endpoint::new("the admin plane", "--admin", &arguments.admin, &arguments.tls)?;
    let admin = HttpClient::new(endpoint, arguments.token.as_deref())?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        // Polled once before the file is created: an unreachable gateway leaves none behind.
        let first = poll(&admin, None).await?;
        let mut recording = Recording::create(&arguments.file, first.now_us)?;
        recording.model.clone_from(&arguments.model);
        writeln!(out, "recording to {}; ctrl-C stops it", arguments.file.display())?;
        out.flush()?;
        let ended = record(&admin, first.next, arguments, &mut recording).await;
        // What was recorded before an error is kept.
        let finished = recording.finish(&arguments.file, out);
        ended.and(finished)
    })
}

async fn record(
    admin: &HttpClient,
    mut next: u64,
    arguments: &RecordArguments,
    recording: &mut Recording,
) -> anyhow::Result<()> {
    let end = tokio::time::sleep(arguments.time.unwrap_or(Duration::MAX));
    // One listener for the whole time, so that no signal is lost during a poll.
    let interrupted = wornpath_gateway::shutdown_signal();
    tokio::pin!(end, interrupted);
    let is_full =
        |recording: &Recording| arguments.requests.is_some_and(|most| recording.written >= most);
    let cannot_write = || format!("cannot write {}", arguments.file.display());
    let mut is_over = false;
    while !is_over && !is_full(recording) {
        is_over = tokio::select! {
            () = tokio::time::sleep(POLL_INTERVAL) => false,
            () = &mut end => true,
            ended = &mut interrupted => { ended?; true }
        };
        // A page may not hold everything: polled until there is nothing new.
        loop {
            let page = tokio::select! {
                page = poll(admin, Some(next)) => page?,
                ended = &mut interrupted, if !is_over => { ended?; return Ok(()) }
            };
            recording.missed += page.missed;
            let is_last = page.next == next;
            next = page.next;
            for entry in &page.requests {
                if !is_full(recording) {
                    recording.write(entry).with_context(cannot_write)?;
                }
            }
            if is_last || is_full(recording) {
                break;
            }
        }
        recording.file.flush().with_context(cannot_write)?;
    }
    Ok(())
}

async fn poll(admin: &HttpClient, after: Option<u64>) -> anyhow::Result<TrafficPage> {
    let query = after.map_or_else(String::new, |after| format!("?after={after}"));
    let page = admin.get(&format!("/traffic{query}")).await?;
    serde_json::from_value(page).context("the admin plane answered with unexpected JSON")
}

/// A trace file that is being written.
struct Recording {
    file: BufWriter<File>,
    model: Option<String>,
    /// The number given to each block, by its hash.
    numbers: HashMap<String, usize>,
    /// Start of the recording, in microseconds of the gateway's clock.
    zero: u64,
    /// Tokens per block of all requests in the file.
    block_tokens: Option<usize>,
    written: u64,
    unanswered: u64,
    missed: u64,
    /// Requests left out because their blocks have another size.
    other_blocks: u64,
}

impl Recording {
    fn create(path: &Path, zero: u64) -> anyhow::Result<Self> {
        let mut options = File::options();
        let file = options.write(true).create_new(true).mode(0o600).open(path);
        let file =
            file.with_context(|| format!("cannot create {}; name a new file", path.display()))?;
        Ok(Self {
            file: BufWriter::new(file),
            model: None,
            numbers: HashMap::new(),
            zero,
            block_tokens: None,
            written: 0,
            unanswered: 0,
            missed: 0,
            other_blocks: 0,
        })
    }

    fn write(&mut self, entry: &TrafficEntry) -> anyhow::Result<()> {
        if self.model.as_ref().is_some_and(|model| *model != entry.model) {
            return Ok(());
        }
        let Some(output_tokens) = entry.output_tokens else {
            self.unanswered += 1;
            return Ok(());
        };
        if entry.block_tokens != *self.block_tokens.get_or_insert(entry.block_tokens) {
            self.other_blocks += 1;
            return Ok(());
        }
        let numbers = &mut self.numbers;
        let mut number = |block: &String| {
            let next = numbers.len();
            *numbers.entry(block.clone()).or_insert(next)
        };
        let ids: Vec<usize> = entry.blocks.iter().map(&mut number).collect();
        let line = json!({
            "timestamp": entry.arrived_us.saturating_sub(self.zero) as f64 / 1e3,
            "input_length": entry.prompt_tokens,
            "output_length": output_tokens,
            "hash_ids": ids,
        });
        writeln!(self.file, "{line}")?;
        self.written += 1;
        Ok(())
    }

    fn finish(mut self, path: &Path, out: &mut impl Write) -> anyhow::Result<()> {
        self.file.flush().with_context(|| format!("cannot write {}", path.display()))?;
        let Self { written, unanswered, missed, other_blocks, .. } = self;
        writeln!(
            out,
            "{written} requests recorded; skipped: {unanswered} without a complete answer, {missed} missed"
        )?;
        if other_blocks > 0 {
            writeln!(
                out,
                "{other_blocks} more skipped: blocks of another size; record one model with --model"
            )?;
        }
        if written == 0 {
            // An empty file would only block the next attempt.
            std::fs::remove_file(path)
                .with_context(|| format!("cannot remove {}", path.display()))?;
        }
        ensure!(
            written > 0,
            "nothing was recorded; does the gateway receive requests, and does its profile hash prompts?"
        );
        let block_tokens = self.block_tokens.unwrap_or_default();
        let path = path.display();
        writeln!(out, "wornpath replay {path} --block-size {block_tokens} --profile PROFILE.yaml")?;
        Ok(())
    }
}
