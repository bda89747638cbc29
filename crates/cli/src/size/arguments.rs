//! The command line of `wornpath size`.

use crate::numbers;
use clap::Args;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Duration;
use wornpath_sim::sizing::Objective;

/// Shown by `--help` after the options.
const MORE: &str = "\
An objective is a percentile, a latency and a limit: `p95 ttft 500ms` is met if at least 95 of 100 requests have
their first token within 500 ms. Latencies: ttft (time to first token), tpot (time per token after the first), e2e
(time to the last token), all from the arrival at the router. A request that fails is later than any limit.

The counts are found by bisection, and every smaller count is tried too, because more pods are not always better:
requests that share a prefix may be spread over more caches. The KV cache is searched in sixteenths of the engine's.

Exit status: 0 a fleet was found, 1 none up to --max-pods meets the objectives, 78 the profile is invalid.

Examples:
  wornpath size traffic.jsonl --slo 'p95 ttft 500ms' --price-per-hour 4
  wornpath size traffic.jsonl --slo 'p95 ttft 500ms' --slo 'p99 tpot 40ms' --speed 2 --html size.html";

/// Find how many pods a trace needs to meet latency objectives, and how much KV cache
///
/// Replays the trace in virtual time with one fleet after the other, with the routing and index
/// code of the live server. Prints the smallest fleet that meets all objectives, a curve over the
/// counts, what one pod more or less would do, and the cost. The form of traces is described in
/// `wornpath replay --help`.
#[derive(Args)]
#[command(after_long_help = MORE)]
pub(crate) struct SizeArguments {
    /// Trace of the traffic
    pub(super) trace: PathBuf,
    /// Objective to meet, like 'p95 ttft 500ms'; may be repeated, and then all must be met
    #[arg(long = "slo", value_name = "OBJECTIVE", required = true)]
    pub(super) objectives: Vec<Objective>,
    /// Routing profile: a file, or the name of a built-in profile
    #[arg(long, default_value = "cache-aware")]
    pub(super) profile: PathBuf,
    /// Engine profile: a built-in name or the path of a JSON file
    #[arg(long, default_value = "8b-h200")]
    pub(super) engine: String,
    /// Largest number of pods to try
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..=256))]
    pub(super) max_pods: u16,
    /// Tokens that each engine's KV cache holds at most; default: as in its profile
    #[arg(long, value_parser = numbers::tokens)]
    pub(super) kv_tokens: Option<usize>,
    /// Price of a pod per hour, to show costs
    #[arg(long, allow_negative_numbers = true, value_parser = numbers::price)]
    pub(super) price_per_hour: Option<f64>,
    /// Factor by which arrivals are more frequent; for sessions, their starts
    #[arg(long, default_value_t = 1.0)]
    pub(super) speed: f64,
    /// Number of runs that must all meet the objectives, each with its own jitter
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    pub(super) seeds: u64,
    /// Random shift of arrivals, applied before --speed
    #[arg(long, default_value = "1s", value_parser = numbers::duration)]
    pub(super) jitter: Duration,
    /// Number of copies of every session, each with its own blocks and start
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) copies: u32,
    /// Tokens per block of the trace; default: inferred, or 512 for texts
    #[arg(long, value_parser = numbers::block_size)]
    pub(super) block_size: Option<NonZeroUsize>,
    /// Print JSON
    #[arg(long)]
    pub(super) json: bool,
    /// Also write an HTML page with the curve
    #[arg(long, value_name = "FILE")]
    pub(super) html: Option<PathBuf>,
}
