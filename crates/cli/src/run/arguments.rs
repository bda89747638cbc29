//! The command line of `wornpath run`.

use crate::http::TlsArguments;
use crate::input::PLANNING_MEMORY;
use crate::numbers;
use clap::Args;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Duration;

/// Shown by `--help` after the options.
const MORE: &str = "\
Lines are OpenAI batch lines (custom_id, url, body) or bodies alone (messages, prompt or input). Results are
written in the form of OpenAI's batch output as they complete; lines that failed are in <output>.errors.jsonl.
<output>.progress records which results are valid: with it, --resume runs exactly the rest after an interrupt, a
crash or a power failure.

Exit status: 0 all lines answered, 1 some lines failed, 3 stopped before all lines were done, 130 interrupted.

Examples:
  wornpath run prompts.jsonl -o out.jsonl --pod http://a:8000 --pod http://b:8000
  wornpath run prompts.jsonl -o out.jsonl --pod http://a:8000 --resume --deadline 2h";

/// Run a file of prompts on engines, in the order that computes every shared prefix about once
#[derive(Args)]
#[command(after_long_help = MORE)]
pub(crate) struct RunArguments {
    /// File of prompts, one JSON object a line
    pub(super) prompts: PathBuf,
    /// File to write results to
    #[arg(short, long, value_name = "FILE")]
    pub(super) output: PathBuf,
    /// Address of an engine; may be repeated
    #[arg(long = "pod", value_name = "URL", required = true, num_args = 1..)]
    pub(super) pods: Vec<String>,
    /// Resume a run that was interrupted
    #[arg(long)]
    pub(super) resume: bool,
    /// Stop after this time, like 90s, 30m or 2h; the rest can be resumed. A line may have an
    /// earlier deadline of its own
    #[arg(long, value_name = "TIME", value_parser = numbers::long_duration)]
    pub(super) deadline: Option<Duration>,
    /// Write results in the order of the prompts, once all are complete
    #[arg(long)]
    pub(super) preserve_order: bool,
    /// Compute lines with equal bodies once, if they are deterministic: temperature 0, a seed, or
    /// embeddings
    #[arg(long)]
    pub(super) identical_once: bool,
    /// Limit of requests in flight per engine
    #[arg(long, default_value = "256", value_name = "REQUESTS")]
    pub(super) window: NonZeroUsize,
    /// Engine profile that is assumed for all engines, to balance them
    #[arg(long, default_value = "8b-h200")]
    pub(super) engine: String,
    /// Folder with the model's tokenizer.json; without one, four bytes count as a token
    #[arg(long, value_name = "FOLDER")]
    pub(super) tokenizer: Option<PathBuf>,
    /// Tokens per block of the engines' caches
    #[arg(long, default_value = "16", value_parser = numbers::block_size)]
    pub(super) block_size: NonZeroUsize,
    /// Expected length of an answer in tokens, for lines that set no limit
    #[arg(long, default_value_t = 256)]
    pub(super) output_tokens: usize,
    /// API key for the engines
    #[arg(long, env = "WORNPATH_API_KEY", hide_env_values = true)]
    pub(super) api_key: Option<String>,
    #[command(flatten)]
    pub(super) tls: TlsArguments,
    /// Stop when no engine has been reachable for this time
    #[arg(long, value_name = "TIME", default_value = "10m", value_parser = numbers::long_duration)]
    pub(super) give_up_after: Duration,
    /// Bytes of hashes that planning keeps in memory; the rest is spilled to disk
    #[arg(long, hide = true, value_name = "BYTES", default_value_t = PLANNING_MEMORY)]
    pub(super) planning_memory: usize,
}
