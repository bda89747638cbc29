//! The report of `plan`, as text and as JSON.

use super::forest;
use super::prompts::Prompts;
use serde_json::{Value, json};
use std::io::Write;
use std::time::Duration;
use wornpath_planner::lint::Finding;
use wornpath_planner::{Cohorts, Forest, PromptGroups, Queue};
use wornpath_sim::KvReads;

/// Groups of requests that the text lists.
const LISTED: usize = 8;

/// A gain below this share counts as small.
const LITTLE: f64 = 0.05;

/// A method of running the file, and its simulated cost.
pub(super) struct PlanMethod {
    pub(super) name: &'static str,
    pub(super) computed: u64,
    pub(super) makespan: Duration,
    pub(super) kv_reads: KvReads,
}

/// A prefix that several requests share.
pub(super) struct SharedPrefix {
    pub(super) tokens: usize,
    pub(super) requests: usize,
    pub(super) saved_tokens: u64,
    pub(super) line: usize,
    pub(super) begins: String,
    /// The text that sets it apart from the other prefixes beside it.
    pub(super) name: String,
}

/// Totals of a file of which only a part was simulated.
pub(super) struct WholeFile {
    pub(super) requests: usize,
    pub(super) prompt_tokens: u64,
    pub(super) least_tokens: u64,
}

pub(super) struct PlanReport {
    pub(super) file: String,
    pub(super) requests: usize,
    pub(super) pods: usize,
    pub(super) engine: String,
    pub(super) exact: bool,
    pub(super) prompt_tokens: u64,
    pub(super) least_tokens: u64,
    pub(super) least_time: Duration,
    pub(super) ways: Vec<PlanMethod>,
    pub(super) biggest: Vec<SharedPrefix>,
    pub(super) cohorts: Cohorts,
    /// Groups of requests that the plan decodes apart.
    pub(super) decode_groups: usize,
    pub(super) kv_bytes_per_token: u64,
    /// Whether the engines read a prefix that all sequences of a step share once.
    pub(super) has_cascade: bool,
    pub(super) findings: Vec<Finding>,
    /// Totals of the whole file, if only its first requests were simulated.
    pub(super) whole: Option<WholeFile>,
    /// The KV cache of each engine of `--pod`, a sentence each.
    pub(super) asked: Vec<String>,
    pub(super) price_per_hour: Option<f64>,
}

pub(super) fn biggest(
    queue: &Queue,
    forest: &Forest,
    groups: &PromptGroups,
    prompts: &Prompts,
) -> Vec<SharedPrefix> {
    let block = queue.block_size().get();
    let ids = groups.biggest(LISTED).into_iter();
    ids.map(|id| {
        let group = &groups.all()[id.index()];
        let first = forest.order()[group.positions.start].index();
        let text = prompts.text(first);
        SharedPrefix {
            tokens: group.blocks * block,
            requests: group.positions.len(),
            saved_tokens: group.saved_blocks(groups.blocks_above(group)) * block as u64,
            line: prompts.line(first),
            name: forest::name(groups, group, forest, prompts),
            begins: text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(48).collect(),
        }
    })
    .collect()
}

/// A number with three digits that count.
pub(super) fn small(value: f64) -> String {
    let digits = if value > 0.0 { (2.0 - value.log10().floor()).clamp(0.0, 9.0) } else { 0.0 };
    format!("{value:.0$}", digits as usize)
}

impl PlanReport {
    /// The share of prompt tokens that need not be computed.
    pub(super) fn sharable(&self) -> f64 {
        1.0 - self.least_tokens as f64 / self.prompt_tokens as f64
    }

    pub(super) fn hit_rate(&self, way: &PlanMethod) -> f64 {
        1.0 - way.computed as f64 / self.prompt_tokens as f64
    }

    pub(super) fn pod_hours(&self, way: &PlanMethod) -> f64 {
        way.makespan.as_secs_f64() * self.pods as f64 / 3_600.0
    }

    /// Gigabytes of KV cache that a decode step reads.
    pub(super) fn gigabytes_per_step(&self, way: &PlanMethod) -> f64 {
        way.kv_reads.tokens_per_step() * self.kv_bytes_per_token as f64 / 1e9
    }

    /// What shared prefixes mean for decoding, in a sentence.
    pub(super) fn decoding(&self) -> String {
        let plan = self.ways.iter().find(|way| way.name == "plan");
        let cascade = plan.map_or(0.0, |way| way.kv_reads.cascade_share());
        let Cohorts { tokens_read, tokens_read_shared, cascade_share } = self.cohorts;
        match (self.has_cascade, self.decode_groups) {
            (true, 0) => {
                "The engines can read a prefix once for all sequences of a step; by their step times it does not pay here to decode any requests apart.".to_owned()
            }
            (true, groups) => format!(
                "{groups} groups of requests decode apart, so that their prefix is read once; {:.0}% of the plan's decode steps do so.",
                cascade * 100.0
            ),
            (false, _) => format!(
                "A decode step reads {tokens_read:.0} tokens of context, {tokens_read_shared:.0} if shared prefixes are read once; vLLM's cascade attention could run in {:.0}% of steps.",
                cascade_share * 100.0
            ),
        }
    }

    /// The conclusion, in a sentence.
    pub(super) fn verdict(&self) -> String {
        let (planned, others): (Vec<_>, Vec<_>) =
            self.ways.iter().partition(|it| it.name == "plan");
        let fastest = others.into_iter().min_by_key(|way| way.makespan);
        let (Some(plan), Some(other)) = (planned.first(), fastest) else {
            return String::new();
        };
        let name = &other.name;
        let gain = 1.0 - plan.makespan.as_secs_f64() / other.makespan.as_secs_f64();
        let percent = gain * 100.0;
        match gain {
            gain if gain < 0.0 => {
                format!("Planning gains nothing here: {name} is {:.1}% faster.", -percent)
            }
            gain if gain < LITTLE && self.sharable() < LITTLE => {
                format!(
                    "Planning gains little here ({percent:.1}% of the time): the prompts share almost nothing."
                )
            }
            gain if gain < LITTLE => format!(
                "Planning gains little over {name} here ({percent:.1}% of the time): the shared prefixes fit into the caches."
            ),
            _ => format!("Planning takes {percent:.0}% less time than {name}."),
        }
    }

    pub(super) fn write(&self, out: &mut impl Write) -> anyhow::Result<()> {
        let unit = if self.exact { "tokens" } else { "tokens (4 bytes each)" };
        if let Some(WholeFile { requests, prompt_tokens, least_tokens }) = &self.whole {
            let sharable = 100.0 * (1.0 - *least_tokens as f64 / *prompt_tokens as f64);
            writeln!(
                out,
                "{}: {requests} requests, {prompt_tokens} prompt {unit}; {sharable:.1}% of them can be shared\nthe rest of this report is about the first {} requests, which were simulated\n",
                self.file, self.requests
            )?;
        }
        for line in &self.asked {
            writeln!(out, "{line}")?;
        }
        writeln!(
            out,
            "{}: {} requests, {} prompt {unit}",
            self.file, self.requests, self.prompt_tokens
        )?;
        let least = self.least_tokens;
        let sharable = self.sharable() * 100.0;
        writeln!(out, "{sharable:.1}% of them can be shared; at least {least} must be computed")?;
        let time = self.least_time.as_secs_f64();
        writeln!(
            out,
            "on {} engines {}, simulated; no order takes less than {time:.1} s\n",
            self.pods, self.engine
        )?;
        let cost = if self.price_per_hour.is_some() { "cost" } else { "pod hours" };
        writeln!(
            out,
            "{:<16} {:>14} {:>9} {:>9} {:>11} {:>10} {:>12}",
            "", "prefill tokens", "to least", "hit rate", "makespan", cost, "KV per step"
        )?;
        for way in &self.ways {
            writeln!(
                out,
                "{:<16} {:>14} {:>8.2}x {:>8.1}% {:>9.1} s {:>10} {:>9.2} GB",
                way.name,
                way.computed,
                way.computed as f64 / self.least_tokens as f64,
                self.hit_rate(way) * 100.0,
                way.makespan.as_secs_f64(),
                small(self.pod_hours(way) * self.price_per_hour.unwrap_or(1.0)),
                self.gigabytes_per_step(way)
            )?;
        }
        writeln!(out, "\n{}", self.verdict())?;
        writeln!(out, "{}", self.decoding())?;
        if !self.biggest.is_empty() {
            writeln!(
                out,
                "\nbiggest shared prefixes\n{:>9} {:>9} {:>13}  first line, and what sets it apart",
                "tokens", "requests", "saved tokens"
            )?;
        }
        for group in &self.biggest {
            let SharedPrefix { tokens, requests, saved_tokens, line, name, .. } = group;
            writeln!(out, "{tokens:>9} {requests:>9} {saved_tokens:>13}  {line}: {name}")?;
        }
        for finding in &self.findings {
            let Finding { kind, example, byte, texts, shared_now, shared_then } = finding;
            writeln!(
                out,
                "\nlint: lines {} and {} diverge at byte {byte} ({}); {} would raise sharing from {:.0}% to {:.0}%\n  {}\n  {}",
                example.0,
                example.1,
                kind.name(),
                kind.cure(),
                shared_now * 100.0,
                shared_then * 100.0,
                texts.0,
                texts.1
            )?;
        }
        Ok(())
    }

    pub(super) fn to_json(&self) -> Value {
        let way = |way: &PlanMethod| {
            json!({
                "name": way.name,
                "prefill_tokens": way.computed,
                "hit_rate": self.hit_rate(way),
                "makespan_seconds": way.makespan.as_secs_f64(),
                "pod_hours": self.pod_hours(way),
                "cost": self.price_per_hour.map(|price| price * self.pod_hours(way)),
                "kv_gigabytes_per_decode_step": self.gigabytes_per_step(way),
                "cascade_share": way.kv_reads.cascade_share(),
            })
        };
        let group = |group: &SharedPrefix| {
            json!({
                "tokens": group.tokens,
                "requests": group.requests,
                "saved_tokens": group.saved_tokens,
                "first_line": group.line,
                "begins": group.begins,
                "name": group.name,
            })
        };
        let finding = |finding: &Finding| {
            json!({
                "what": finding.kind.name(),
                "cure": finding.kind.cure(),
                "lines": [finding.example.0, finding.example.1],
                "byte": finding.byte,
                "texts": [finding.texts.0, finding.texts.1],
                "shared_now": finding.shared_now,
                "shared_then": finding.shared_then,
            })
        };
        json!({
            "file": self.file,
            "requests": self.requests,
            "whole_file": self.whole.as_ref().map(|whole| json!({
                "requests": whole.requests,
                "prompt_tokens": whole.prompt_tokens,
                "least_prefill_tokens": whole.least_tokens,
            })),
            "asked": self.asked,
            "pods": self.pods,
            "engine": self.engine,
            "exact_tokens": self.exact,
            "prompt_tokens": self.prompt_tokens,
            "sharable": self.sharable(),
            "least_prefill_tokens": self.least_tokens,
            "least_makespan_seconds": self.least_time.as_secs_f64(),
            "ways": self.ways.iter().map(way).collect::<Vec<_>>(),
            "verdict": self.verdict(),
            "decode": {
                "context_tokens_per_step": self.cohorts.tokens_read,
                "context_tokens_per_step_shared": self.cohorts.tokens_read_shared,
                "cascade_share": self.cohorts.cascade_share,
                "groups_apart": self.decode_groups,
            },
            "biggest": self.biggest.iter().map(group).collect::<Vec<_>>(),
            "lint": self.findings.iter().map(finding).collect::<Vec<_>>(),
        })
    }
}
