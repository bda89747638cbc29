//! `wornpath trace`: live traffic as a trace that can be replayed.

use crate::batch::Service;
use crate::replay::duration;
use crate::server::{CertificateArguments, Server};
use anyhow::{Context, ensure};
use clap::{Args, Subcommand};
use serde::Deserialize;
use serde_json::json;
use std::collections::HashMap;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How often the gateway is asked.
const LOOK: Duration = Duration::from_millis(250);

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
    /// Of a prompt only its length is written, and a number for each of its blocks, the same where prompts begin alike:
    /// no text, and no hash that could be compared with one. Requests are written as they end; what has no whole answer
    /// is left out and counted. The profile that routes them must hash prompts, as all do that look at caches.
    Record(RecordArguments),
}

#[derive(Args)]
struct RecordArguments {
    /// Where to write it; must not exist
    file: PathBuf,
    /// The gateway's admin plane (`admin` of its `listen`, or `serve --admin`)
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:8081")]
    admin: String,
    /// The token of the admin plane, if it has one
    #[arg(long, env = "WORNPATH_ADMIN_TOKEN", hide_env_values = true)]
    token: Option<String>,
    #[command(flatten)]
    certificates: CertificateArguments,
    /// End after so long, like 90s; else at ctrl-C
    #[arg(long = "for", value_name = "TIME", value_parser = duration)]
    time: Option<Duration>,
    /// End after so many requests
    #[arg(long, value_name = "COUNT")]
    requests: Option<u64>,
    /// Only requests for this model
    #[arg(long)]
    model: Option<String>,
}

/// What the admin plane answers.
#[derive(Deserialize)]
struct RecordingEvent {
    now_us: u64,
    next: u64,
    missed: u64,
    requests: Vec<RecordingPart>,
}

#[derive(Deserialize)]
struct RecordingPart {
    arrived_us: u64,
    model: String,
    block_tokens: usize,
    prompt_tokens: usize,
    output_tokens: Option<usize>,
    blocks: Vec<String>,
}

/// Records.
pub(crate) fn run(arguments: &TraceArguments, out: &mut impl Write) -> anyhow::Result<()> {
    let TraceCommand::Record(arguments) = &arguments.command;
    let named = ("--admin", arguments.admin.as_str());
    let server = Server::at("the admin plane", named, &arguments.certificates)?;
    let service = Service::of(server, arguments.token.as_deref());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        // Asked once before the file is made: a gateway that cannot be reached leaves none behind.
        let first = ask(&service, None).await?;
        let mut tape = Recording::create(&arguments.file, first.now_us)?;
        tape.model.clone_from(&arguments.model);
        writeln!(out, "recording to {}; ctrl-C ends it", arguments.file.display())?;
        out.flush()?;
        let ended = record(&service, first.next, arguments, &mut tape).await;
        // What was recorded until then is kept, whatever went wrong.
        let finished = tape.finish(&arguments.file, out);
        ended.and(finished)
    })
}

async fn record(
    service: &Service,
    mut next: u64,
    arguments: &RecordArguments,
    tape: &mut Recording,
) -> anyhow::Result<()> {
    let end = tokio::time::sleep(arguments.time.unwrap_or(Duration::MAX));
    // One listener for the whole time: a signal that comes while the gateway is asked is not lost.
    let interrupted = wornpath_gateway::shutdown_signal();
    tokio::pin!(end, interrupted);
    let is_full = |tape: &Recording| arguments.requests.is_some_and(|most| tape.written >= most);
    let mut is_over = false;
    while !is_over && !is_full(tape) {
        is_over = tokio::select! {
            () = tokio::time::sleep(LOOK) => false,
            () = &mut end => true,
            ended = &mut interrupted => { ended?; true }
        };
        // More at once than one answer holds: asked again until there is nothing new.
        loop {
            let heard = tokio::select! {
                heard = ask(service, Some(next)) => heard?,
                ended = &mut interrupted, if !is_over => { ended?; return Ok(()) }
            };
            tape.missed += heard.missed;
            let is_last = heard.next == next;
            next = heard.next;
            for taken in &heard.requests {
                if !is_full(tape) {
                    tape.write(taken)?;
                }
            }
            if is_last || is_full(tape) {
                break;
            }
        }
        tape.file.flush()?;
    }
    Ok(())
}

async fn ask(service: &Service, after: Option<u64>) -> anyhow::Result<RecordingEvent> {
    let query = after.map_or_else(String::new, |after| format!("?after={after}"));
    let heard = service.get(&format!("/traffic{query}")).await?;
    serde_json::from_value(heard).context("the answer of the admin plane cannot be read")
}

/// The file, and what it needs to be written.
struct Recording {
    file: BufWriter<File>,
    model: Option<String>,
    /// The number of each block so far.
    numbers: HashMap<String, usize>,
    /// When it began, by the gateway's clock.
    zero: u64,
    /// Tokens per block, of all.
    block_tokens: Option<usize>,
    written: u64,
    unanswered: u64,
    missed: u64,
    /// Requests whose blocks have another size.
    other_blocks: u64,
}

impl Recording {
    fn create(path: &Path, zero: u64) -> anyhow::Result<Self> {
        let file = File::create_new(path)
            .with_context(|| format!("cannot make {}; name a new file", path.display()))?;
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

    fn write(&mut self, taken: &RecordingPart) -> anyhow::Result<()> {
        if self.model.as_ref().is_some_and(|model| *model != taken.model) {
            return Ok(());
        }
        let Some(output_tokens) = taken.output_tokens else {
            self.unanswered += 1;
            return Ok(());
        };
        if taken.block_tokens != *self.block_tokens.get_or_insert(taken.block_tokens) {
            self.other_blocks += 1;
            return Ok(());
        }
        let numbers = &mut self.numbers;
        let mut number = |block: &String| {
            let next = numbers.len();
            *numbers.entry(block.clone()).or_insert(next)
        };
        let ids: Vec<usize> = taken.blocks.iter().map(&mut number).collect();
        let line = json!({
            "timestamp": taken.arrived_us.saturating_sub(self.zero) as f64 / 1e3,
            "input_length": taken.prompt_tokens,
            "output_length": output_tokens,
            "hash_ids": ids,
        });
        writeln!(self.file, "{line}")?;
        self.written += 1;
        Ok(())
    }

    fn finish(mut self, path: &Path, out: &mut impl Write) -> anyhow::Result<()> {
        self.file.flush()?;
        let Self { written, unanswered, missed, other_blocks, .. } = self;
        writeln!(
            out,
            "{written} requests recorded; left out: {unanswered} without a whole answer, {missed} missed"
        )?;
        if other_blocks > 0 {
            writeln!(
                out,
                "{other_blocks} more have blocks of another size; record one model with --model"
            )?;
        }
        if written == 0 {
            // Nobody can use it, and it would stand in the way of the next try.
            std::fs::remove_file(path)
                .with_context(|| format!("cannot remove {}", path.display()))?;
        }
        ensure!(
            written > 0,
            "nothing was recorded; do requests come, with a profile that hashes their prompts?"
        );
        let block_tokens = self.block_tokens.unwrap_or_default();
        let path = path.display();
        writeln!(out, "wornpath replay {path} --block-size {block_tokens} --profile PROFILE.yaml")?;
        Ok(())
    }
}
