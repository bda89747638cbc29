//! Scrape parsing: the load and the block size of an engine, from its Prometheus page.
//!
//! Each engine names the same metrics differently, and the names found tell which engine wrote the
//! page. A page has thousands of lines; a line that does not begin with a wanted name is skipped
//! without being parsed. An engine with several data-parallel ranks labels each metric with the
//! rank.

use std::num::NonZeroUsize;

/// The load of one rank, or of a whole engine.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct EngineMetrics {
    /// Requests queued inside the engine.
    pub waiting: u32,
    /// Requests being computed.
    pub running: u32,
    /// Share of its KV cache in use, from 0 to 1.
    pub kv_usage: f64,
}

/// The names of one engine's metrics.
struct MetricNames {
    waiting: &'static str,
    running: &'static str,
    usage: KvUsageGauge,
    /// The label that holds the rank.
    rank: &'static str,
    /// Where the block size is found; the first match counts.
    block_size: &'static [EngineReport],
}

/// Where a constant of the engine is found.
enum EngineReport {
    /// The value of a metric.
    Value(&'static str),
    /// A label of a metric.
    Label(&'static str, &'static str),
}

enum KvUsageGauge {
    /// One gauge with the share.
    Share(&'static str),
    /// Two gauges: used and total.
    Of(&'static str, &'static str),
}

const DIALECTS: [MetricNames; 4] = [
    MetricNames {
        waiting: "vllm:num_requests_waiting",
        running: "vllm:num_requests_running",
        usage: KvUsageGauge::Share("vllm:kv_cache_usage_perc"),
        rank: "engine",
        // For a hybrid model `block_size` is the smallest block of all cache groups; events are
        // about full attention.
        block_size: &[
            EngineReport::Label("vllm:cache_config_info", "effective_attention_block_size"),
            EngineReport::Label("vllm:cache_config_info", "block_size"),
        ],
    },
    MetricNames {
        waiting: "sglang:num_queue_reqs",
        running: "sglang:num_running_reqs",
        usage: KvUsageGauge::Share("sglang:token_usage"),
        rank: "dp_rank",
        // A separate metric since 0.5.11.
        block_size: &[
            EngineReport::Value("sglang:page_size"),
            EngineReport::Label("sglang:cache_config_info", "page_size"),
        ],
    },
    MetricNames {
        waiting: "trtllm_num_requests_waiting",
        running: "trtllm_num_requests_running",
        usage: KvUsageGauge::Share("trtllm_kv_cache_utilization"),
        rank: "rank",
        block_size: &[EngineReport::Value("trtllm_kv_cache_tokens_per_block")],
    },
    MetricNames {
        waiting: "maxserve_num_requests_queued",
        running: "maxserve_num_requests_running",
        usage: KvUsageGauge::Of(
            "maxserve_cache_num_used_blocks",
            "maxserve_cache_num_total_blocks",
        ),
        rank: "rank",
        block_size: &[],
    },
];

/// The load of a rank, or of the whole engine; none if no known engine wrote `page`.
#[must_use]
pub fn read(page: &str, rank: Option<u32>) -> Option<EngineMetrics> {
    DIALECTS.iter().find_map(|dialect| dialect.read(page, rank))
}

/// A larger number is not a block size.
const MAX_BLOCK_TOKENS: usize = 1 << 16;

/// Tokens per block of the engine's cache, the same for all its ranks; none if `page` does not
/// contain it.
#[must_use]
pub fn block_size(page: &str) -> Option<NonZeroUsize> {
    let reports = DIALECTS.iter().flat_map(|dialect| dialect.block_size);
    let size = |report: &EngineReport| match *report {
        EngineReport::Value(name) => {
            let value = |line: &str| value(line.strip_prefix(name)?).map(|(_, value)| value);
            let whole = page.lines().find_map(value).filter(|value| value.fract() == 0.0);
            whole.map(|value| value as usize)
        }
        EngineReport::Label(name, label) => {
            labels(page, name).find_map(|labels| label_of(labels, label)?.parse().ok())
        }
    };
    let size = reports.filter_map(size).find(|size| (1..=MAX_BLOCK_TOKENS).contains(size));
    size.and_then(NonZeroUsize::new)
}

/// Tokens that the cache of one rank of vLLM holds; none for a hybrid model, whose groups share it.
#[must_use]
pub fn kv_tokens(page: &str) -> Option<u64> {
    let labels = labels(page, VLLM_CACHE).next()?;
    let number = |label| label_of(labels, label)?.parse::<u64>().ok();
    let size = number("block_size")?;
    let is_hybrid = number("effective_attention_block_size").is_some_and(|other| other != size);
    let tokens = number("num_gpu_blocks")?.checked_mul(size)?;
    (!is_hybrid && tokens > 0).then_some(tokens)
}

/// The hash algorithm of vLLM's blocks.
#[must_use]
pub fn hash_algorithm(page: &str) -> Option<String> {
    labels(page, VLLM_CACHE)
        .find_map(|labels| label_of(labels, "prefix_caching_hash_algo"))
        .map(str::to_owned)
}

/// The labels of every line of a metric.
fn labels<'p>(page: &'p str, name: &str) -> impl Iterator<Item = &'p str> {
    page.lines().filter_map(move |line| line.strip_prefix(name)?.strip_prefix('{'))
}

const VLLM_CACHE: &str = "vllm:cache_config_info";

/// The raw value of a label. Values may contain any character, and one name may be the suffix of
/// another.
fn label_of<'l>(labels: &'l str, wanted: &str) -> Option<&'l str> {
    let mut rest = labels;
    loop {
        let (name, value) = rest.split_once("=\"")?;
        let is_end = |(at, _): &(usize, &str)| {
            let before = value.as_bytes()[..*at].iter().rev();
            before.take_while(|byte| **byte == b'\\').count() % 2 == 0
        };
        let (end, _) = value.match_indices('"').find(is_end)?;
        if name.trim_start_matches([',', ' ']) == wanted {
            return Some(&value[..end]);
        }
        rest = &value[end + 1..];
        if rest.starts_with('}') {
            return None;
        }
    }
}

impl MetricNames {
    fn read(&self, page: &str, rank: Option<u32>) -> Option<EngineMetrics> {
        let rank = rank.map(|rank| format!("{}=\"{rank}\"", self.rank));
        let all = |name: &str| -> Vec<f64> {
            let lines = page.lines().filter_map(|line| value(line.strip_prefix(name)?));
            let of_rank = |labels: &str| rank.as_ref().is_none_or(|rank| has_label(labels, rank));
            lines.filter(|(labels, _)| of_rank(labels)).map(|(_, value)| value).collect()
        };
        let waiting = all(self.waiting);
        if waiting.is_empty() {
            return None;
        }
        let sum = |values: &[f64]| values.iter().sum::<f64>();
        let kv_usage = match self.usage {
            // Each rank has its own cache: the fullest counts.
            KvUsageGauge::Share(name) => all(name).into_iter().fold(0.0, f64::max),
            KvUsageGauge::Of(used, total) => match sum(&all(total)) {
                total if total > 0.0 => sum(&all(used)) / total,
                _ => 0.0,
            },
        };
        Some(EngineMetrics {
            waiting: sum(&waiting) as u32,
            running: sum(&all(self.running)) as u32,
            // NaN if both sums overflow.
            kv_usage: if kv_usage.is_nan() { 0.0 } else { kv_usage.clamp(0.0, 1.0) },
        })
    }
}

/// The labels and the value after a metric's name; none if the name is longer.
fn value(rest: &str) -> Option<(&str, f64)> {
    let (labels, rest) = match rest.strip_prefix('{') {
        Some(rest) => rest.split_once('}')?,
        None => ("", rest.strip_prefix(' ')?),
    };
    let number = rest.trim_start().split(' ').next()?.parse().ok()?;
    let number: f64 = number;
    (number.is_finite() && number >= 0.0).then_some((labels, number))
}

fn has_label(labels: &str, wanted: &str) -> bool {
    labels.match_indices(wanted).any(|(at, _)| at == 0 || labels.as_bytes()[at - 1] == b',')
}

#[cfg(test)]
mod tests {
    use super::*;

    const VLLM: &str = "\
# HELP vllm:num_requests_waiting Number of requests waiting to be processed.
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine=\"0\",model_name=\"m\"} 3.0
vllm:num_requests_waiting{engine=\"1\",model_name=\"m\"} 4.0
vllm:num_requests_waiting_by_reason{engine=\"0\",reason=\"capacity\"} 9.0
vllm:num_requests_running{engine=\"0\",model_name=\"m\"} 1.0
vllm:num_requests_running{engine=\"1\",model_name=\"m\"} 2.0
vllm:kv_cache_usage_perc{engine=\"0\",model_name=\"m\"} 0.25
vllm:kv_cache_usage_perc{engine=\"1\",model_name=\"m\"} 0.75
";

    fn reported(waiting: u32, running: u32, kv_usage: f64) -> Option<EngineMetrics> {
        Some(EngineMetrics { waiting, running, kv_usage })
    }

    #[test]
    fn ranks_are_distinguished_and_the_whole_engine_is_their_sum() {
        assert_eq!(read(VLLM, Some(1)), reported(4, 2, 0.75));
        assert_eq!(read(VLLM, None), reported(7, 3, 0.75));
        assert_eq!(read(VLLM, Some(2)), None, "no such rank");
    }

    #[test]
    fn every_engines_names_are_known() {
        let sglang = "sglang:num_queue_reqs{model_name=\"m\"} 5\nsglang:num_running_reqs 2\nsglang:token_usage 0.5 1700000000\n";
        assert_eq!(read(sglang, None), reported(5, 2, 0.5));
        let trtllm = "trtllm_num_requests_waiting 1\ntrtllm_num_requests_running 2\ntrtllm_kv_cache_utilization 0.1\n";
        assert_eq!(read(trtllm, None), reported(1, 2, 0.1));
        let max = "maxserve_num_requests_queued 1\nmaxserve_num_requests_running 2\nmaxserve_cache_num_used_blocks 30\nmaxserve_cache_num_total_blocks 40\n";
        assert_eq!(read(max, None), reported(1, 2, 0.75));
    }

    #[test]
    fn every_engine_reports_its_block_size_in_its_own_way() {
        let size = |page: &str| block_size(page).map(NonZeroUsize::get);
        for (page, expected) in [
            ("vllm:cache_config_info{block_size=\"32\",engine=\"0\"} 1.0\n", 32),
            ("sglang:cache_config_info{page_size=\"64\",num_pages=\"9\"} 1.0\n", 64),
            ("# TYPE sglang:page_size gauge\nsglang:page_size{tp_rank=\"0\"} 1.0\n", 1),
            ("trtllm_kv_cache_tokens_per_block 32\n", 32),
        ] {
            assert_eq!(size(&format!("other 1\n{page}")), Some(expected), "{page}");
        }
    }

    #[test]
    fn a_hybrid_engine_counts_by_its_full_attention_blocks() {
        let size = |page: &str| block_size(page).map(NonZeroUsize::get);
        let vllm = |labels: &str| format!("vllm:cache_config_info{{{labels}}} 1.0\n");
        let before = "_block_size_resolved=\"True\",";
        let hybrid =
            "block_size=\"4\",effective_attention_block_size=\"256\",mamba_block_size=\"528\"";
        assert_eq!(size(&vllm(&format!("{before}{hybrid}"))), Some(256));
        let unresolved =
            "effective_attention_block_size=\"None\",mamba_block_size=\"528\",block_size=\"16\"";
        assert_eq!(size(&vllm(&format!("{before}{unresolved}"))), Some(16));
        assert_eq!(size(&vllm("mamba_block_size=\"528\"")), None, "another label that ends so");
    }

    #[test]
    fn malformed_or_out_of_range_block_sizes_are_ignored() {
        for page in [
            "",
            "vllm:cache_config_info{block_size=\"16",
            "vllm:cache_config_info{block_size=\"0\"} 1\n",
            "vllm:cache_config_info{block_size=\"65537\"} 1\n",
            "vllm:cache_config_info{block_size=\"None\"} 1\n",
            "vllm:cache_config_info{a=\"\\\",block_size=\\\"16\",b=\"\"} 1\n",
            "vllm:cache_config_info{a=\"\"} 1 block_size=\"16\"\n",
            "vllm:cache_config_information{block_size=\"16\"} 1\n",
            "trtllm_kv_cache_tokens_per_block 16.5\n",
            "sglang:page_size NaN\n",
        ] {
            assert_eq!(block_size(page), None, "{page}");
        }
        let braces = "vllm:cache_config_info{a=\"{}, \\\"x\\\"\",block_size=\"16\"} 1\n";
        assert_eq!(block_size(braces).map(NonZeroUsize::get), Some(16));
    }

    #[test]
    fn invalid_numbers_and_unknown_pages_give_no_report() {
        for page in [
            "",
            "<html>",
            "vllm:num_requests_waiting NaN\n",
            "vllm:num_requests_waiting -1\n",
            "vllm:num_requests_waiting{engine=\"0\" 3\n",
        ] {
            assert_eq!(read(page, None), None, "{page}");
        }
        let overflowing = "maxserve_num_requests_queued 1\nmaxserve_cache_num_used_blocks 1e308\nmaxserve_cache_num_used_blocks 1e308\nmaxserve_cache_num_total_blocks 1e308\nmaxserve_cache_num_total_blocks 1e308\n";
        assert_eq!(read(overflowing, None), reported(1, 0, 0.0));
        let no_total = "maxserve_num_requests_queued 1\nmaxserve_cache_num_used_blocks 3\n";
        assert_eq!(read(no_total, None), reported(1, 0, 0.0));
    }
}
