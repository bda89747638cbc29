//! What engines say of their own load, out of a page of metrics of which little is wanted.
//!
//! Engines have names of their own for the same things. A page has thousands of lines; those that do not
//! begin with a wanted name are passed over without being parsed, and which engine it is shows by the names
//! that are found. An engine with several data-parallel ranks tells each rank's figures under a label.

/// What an engine reports of one rank, or of all of them.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Reported {
    /// Requests that wait inside the engine.
    pub waiting: u32,
    /// Requests that it works on.
    pub running: u32,
    /// Share of its KV cache in use, from 0 to 1.
    pub kv_usage: f64,
}

/// The names of one engine's metrics.
struct Dialect {
    waiting: &'static str,
    running: &'static str,
    usage: Usage,
    /// The label that tells a rank.
    rank: &'static str,
}

enum Usage {
    /// Told as a share.
    Share(&'static str),
    /// Told as used and total.
    Of(&'static str, &'static str),
}

const DIALECTS: [Dialect; 4] = [
    Dialect {
        waiting: "vllm:num_requests_waiting",
        running: "vllm:num_requests_running",
        usage: Usage::Share("vllm:kv_cache_usage_perc"),
        rank: "engine",
    },
    Dialect {
        waiting: "sglang:num_queue_reqs",
        running: "sglang:num_running_reqs",
        usage: Usage::Share("sglang:token_usage"),
        rank: "dp_rank",
    },
    Dialect {
        waiting: "trtllm_num_requests_waiting",
        running: "trtllm_num_requests_running",
        usage: Usage::Share("trtllm_kv_cache_utilization"),
        rank: "rank",
    },
    Dialect {
        waiting: "maxserve_num_requests_queued",
        running: "maxserve_num_requests_running",
        usage: Usage::Of("maxserve_cache_num_used_blocks", "maxserve_cache_num_total_blocks"),
        rank: "rank",
    },
];

/// What `page` says of a rank, or of the whole engine. None if no known engine wrote it.
#[must_use]
pub fn read(page: &str, rank: Option<u32>) -> Option<Reported> {
    DIALECTS.iter().find_map(|dialect| dialect.read(page, rank))
}

impl Dialect {
    fn read(&self, page: &str, rank: Option<u32>) -> Option<Reported> {
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
            // Ranks have caches of their own: the fullest counts.
            Usage::Share(name) => all(name).into_iter().fold(0.0, f64::max),
            Usage::Of(used, total) => match sum(&all(total)) {
                total if total > 0.0 => sum(&all(used)) / total,
                _ => 0.0,
            },
        };
        Some(Reported {
            waiting: sum(&waiting) as u32,
            running: sum(&all(self.running)) as u32,
            // Sums beyond what a number can hold have no quotient: nothing is known then.
            kv_usage: if kv_usage.is_nan() { 0.0 } else { kv_usage.clamp(0.0, 1.0) },
        })
    }
}

/// Labels and value of what follows a metric's name; nothing if the name only begins so.
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

    fn reported(waiting: u32, running: u32, kv_usage: f64) -> Option<Reported> {
        Some(Reported { waiting, running, kv_usage })
    }

    #[test]
    fn ranks_are_told_apart_and_the_whole_engine_is_their_sum() {
        assert_eq!(read(VLLM, Some(1)), reported(4, 2, 0.75));
        assert_eq!(read(VLLM, None), reported(7, 3, 0.75));
        assert_eq!(read(VLLM, Some(2)), None, "there is no such rank");
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
    fn what_is_no_number_or_nobodys_page_is_no_report() {
        for page in [
            "",
            "<html>",
            "vllm:num_requests_waiting NaN\n",
            "vllm:num_requests_waiting -1\n",
            "vllm:num_requests_waiting{engine=\"0\" 3\n",
        ] {
            assert_eq!(read(page, None), None, "{page}");
        }
        let endless = "maxserve_num_requests_queued 1\nmaxserve_cache_num_used_blocks 1e308\nmaxserve_cache_num_used_blocks 1e308\nmaxserve_cache_num_total_blocks 1e308\nmaxserve_cache_num_total_blocks 1e308\n";
        assert_eq!(read(endless, None), reported(1, 0, 0.0));
        let no_total = "maxserve_num_requests_queued 1\nmaxserve_cache_num_used_blocks 3\n";
        assert_eq!(read(no_total, None), reported(1, 0, 0.0));
    }
}
