//! The command line of `wornpath plan`.

use crate::http::TlsArguments;
use crate::input::PLANNING_MEMORY;
use crate::numbers;
use clap::Args;
use std::num::NonZeroUsize;
use std::path::PathBuf;

/// Predict what planning a file of prompts would gain
///
/// Reads one JSON object a line: an OpenAI batch line (custom_id, url, body), a body alone
/// (messages, prompt or input), or a line of a trace (hash_ids, input_length, output_length).
/// Simulates the file on engines in three ways: in file order, through the online router, and
/// planned. No prompt is sent anywhere; with --pod, only the metrics of the engines are read. Of a
/// file with more than 100000 requests, the first 100000 are simulated.
#[derive(Args)]
pub(crate) struct PlanArguments {
    /// File of prompts
    pub(super) prompts: PathBuf,
    /// Number of engines
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=256))]
    pub(super) pods: u16,
    /// Address of an engine to plan for, whose metrics tell its KV cache size; may be repeated
    #[arg(long = "pod", value_name = "URL", conflicts_with_all = ["pods", "kv_tokens"])]
    pub(super) pod: Vec<String>,
    #[command(flatten)]
    pub(super) tls: TlsArguments,
    /// Engine profile: a built-in name or the path of a JSON file
    #[arg(long, default_value = "8b-h200")]
    pub(super) engine: String,
    /// Tokens that each engine's KV cache holds; default: as in its profile
    #[arg(long, value_parser = numbers::tokens)]
    pub(super) kv_tokens: Option<usize>,
    /// Folder with the model's tokenizer.json; without one, four bytes count as a token
    #[arg(long, value_name = "FOLDER")]
    pub(super) tokenizer: Option<PathBuf>,
    /// Tokens per block; traces have 512
    #[arg(long, default_value = "16", value_parser = numbers::block_size)]
    pub(super) block_size: NonZeroUsize,
    /// Expected length of an answer in tokens, for lines that set no limit
    #[arg(long, default_value_t = 256)]
    pub(super) output_tokens: usize,
    /// Price of an engine per hour, to show costs
    #[arg(long, allow_negative_numbers = true, value_parser = numbers::price)]
    pub(super) price_per_hour: Option<f64>,
    /// Print JSON
    #[arg(long)]
    pub(super) json: bool,
    /// Also write an HTML page with a drawing of the prefix forest
    #[arg(long, value_name = "FILE")]
    pub(super) html: Option<PathBuf>,
    /// Only plan, without a simulation: write the planned order to this file, one JSON object a line
    /// with the number of a line of the input, its pod, and the tokens it shares with the one before
    #[arg(long, value_name = "FILE", conflicts_with_all = ["html", "json", "price_per_hour"])]
    pub(super) order: Option<PathBuf>,
    /// Bytes of hashes that planning keeps in memory; the rest is spilled to disk
    #[arg(long, hide = true, value_name = "BYTES", default_value_t = PLANNING_MEMORY)]
    pub(super) planning_memory: usize,
}
