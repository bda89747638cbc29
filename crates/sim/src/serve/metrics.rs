//! The `/metrics` page, with vLLM's metric names.

use crate::engine::EngineLoad;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;

/// Upper bounds of the time to first token, as vLLM has them.
const TTFT_SECONDS: [f64; 14] =
    [0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0];

/// Counters since an engine's start.
#[derive(Clone, Debug, Default)]
pub(super) struct EngineCounters {
    pub(super) prompt_tokens: u64,
    pub(super) generation_tokens: u64,
    ended: BTreeMap<&'static str, u64>,
    /// First tokens by histogram bucket; the last bucket is unbounded.
    first_tokens: [u64; TTFT_SECONDS.len() + 1],
    first_token_seconds: f64,
}

impl EngineCounters {
    pub(super) fn count_end(&mut self, reason: &'static str) {
        *self.ended.entry(reason).or_default() += 1;
    }

    pub(super) fn count_first_token(&mut self, after: Duration) {
        let seconds = after.as_secs_f64();
        let bucket = TTFT_SECONDS.iter().position(|bound| seconds <= *bound);
        self.first_tokens[bucket.unwrap_or(TTFT_SECONDS.len())] += 1;
        self.first_token_seconds += seconds;
    }
}

/// The load and the counters of an engine at one moment.
pub(super) struct EngineReport {
    pub(super) load: EngineLoad,
    pub(super) counters: EngineCounters,
}

/// The constant labels of an engine.
pub(super) struct EngineIdentity<'a> {
    pub(super) model: &'a str,
    pub(super) block_size: usize,
    pub(super) started: f64,
}

/// Renders the page in Prometheus' text format.
pub(super) fn page(identity: &EngineIdentity<'_>, report: &EngineReport) -> String {
    let mut page = EngineMetricsPage {
        text: String::new(),
        labels: format!("engine=\"0\",model_name={:?}", identity.model),
    };
    let load = &report.load;
    let counters = &report.counters;
    let usage = load.used_blocks as f64 / load.total_blocks as f64;
    page.one("gauge", "vllm:num_requests_running", load.running as f64);
    page.one("gauge", "vllm:num_requests_waiting", load.waiting as f64);
    page.one("gauge", "vllm:kv_cache_usage_perc", usage);
    page.one("counter", "vllm:prefix_cache_queries_total", load.prompt_tokens as f64);
    page.one("counter", "vllm:prefix_cache_hits_total", load.hit_tokens as f64);
    page.one("counter", "vllm:num_preemptions_total", load.preemptions as f64);
    page.one("counter", "vllm:prompt_tokens_total", counters.prompt_tokens as f64);
    page.one("counter", "vllm:generation_tokens_total", counters.generation_tokens as f64);
    page.head("counter", "vllm:request_success_total");
    for (reason, count) in &counters.ended {
        let label = format!("finished_reason=\"{reason}\"");
        page.line("vllm:request_success_total", &label, *count as f64);
    }
    page.head("histogram", "vllm:time_to_first_token_seconds");
    let mut total = 0_u64;
    for (bound, count) in TTFT_SECONDS
        .iter()
        .map(f64::to_string)
        .chain(["+Inf".to_owned()])
        .zip(counters.first_tokens)
    {
        total += count;
        page.line(
            "vllm:time_to_first_token_seconds_bucket",
            &format!("le=\"{bound}\""),
            total as f64,
        );
    }
    page.line("vllm:time_to_first_token_seconds_sum", "", counters.first_token_seconds);
    page.line("vllm:time_to_first_token_seconds_count", "", total as f64);
    page.head("gauge", "vllm:cache_config_info");
    let config = format!(
        "block_size=\"{}\",num_gpu_blocks=\"{}\",enable_prefix_caching=\"True\"",
        identity.block_size, load.total_blocks
    );
    page.line("vllm:cache_config_info", &config, 1.0);
    page.head("gauge", "process_start_time_seconds");
    let _ = writeln!(page.text, "process_start_time_seconds {}", identity.started);
    page.text
}

struct EngineMetricsPage {
    text: String,
    labels: String,
}

impl EngineMetricsPage {
    fn head(&mut self, kind: &str, name: &str) {
        // Writing to a string does not fail.
        let _ = writeln!(self.text, "# TYPE {name} {kind}");
    }

    fn line(&mut self, name: &str, label: &str, value: f64) {
        let comma = if label.is_empty() { "" } else { "," };
        let _ = writeln!(self.text, "{name}{{{}{comma}{label}}} {value}", self.labels);
    }

    fn one(&mut self, kind: &str, name: &str, value: f64) {
        self.head(kind, name);
        self.line(name, "", value);
    }
}
