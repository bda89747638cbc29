//! Every metric there is, declared once: what is exported and what is documented cannot differ.

use std::fmt::{self, Write};

/// What a metric's numbers mean.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MetricKind {
    /// Only grows.
    Counter,
    /// Goes up and down.
    Gauge,
    /// Counts by size.
    Histogram,
}

impl fmt::Display for MetricKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
        })
    }
}

/// A metric's name, labels and meaning.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Family {
    /// Its name.
    pub name: &'static str,
    /// What its numbers mean.
    pub kind: MetricKind,
    /// Its labels, in order.
    pub labels: &'static [&'static str],
    /// What it tells, in one sentence.
    pub help: &'static str,
}

macro_rules! families {
    ($($id:ident = $kind:ident $name:literal [$($label:literal),*] $help:literal;)*) => {
        $(#[doc = $help] pub(crate) const $id: Family =
            Family { name: $name, kind: MetricKind::$kind, labels: &[$($label),*], help: $help };)*

        /// All metrics, in the order of the page.
        pub const FAMILIES: &[Family] = &[$($id),*];
    };
}

families! {
    REQUESTS = Counter "wornpath_requests_total" ["api", "profile", "pod", "status", "end"]
        "Finished requests. `end` is `whole`, `broken` (after the first byte), `client_left` or `refused`; `pod` is empty where none was reached.";
    REQUEST_SECONDS = Histogram "wornpath_request_seconds" ["profile", "pod"]
        "From the request's arrival to the last byte of its answer.";
    FIRST_BYTE_SECONDS = Histogram "wornpath_first_byte_seconds" ["profile", "pod"]
        "From the request's arrival to the first byte of its answer.";
    PROMPT_TOKENS = Counter "wornpath_prompt_tokens_total" ["profile", "pod"]
        "Prompt tokens, by the engine's own count.";
    OUTPUT_TOKENS = Counter "wornpath_output_tokens_total" ["profile", "pod"]
        "Generated tokens, by the engine's own count.";
    TOLD_TOKENS = Counter "wornpath_prompt_tokens_told_total" ["profile", "pod"]
        "Prompt tokens of the answers that told how many of them were cached, by the pod that computed the prompt: what a decode pod took over from it is in no cache of its own.";
    CACHED_TOKENS = Counter "wornpath_cached_tokens_total" ["profile", "pod"]
        "Of those, the cached ones: prompt tokens that no engine had to compute.";
    PREDICTED_TOKENS = Counter "wornpath_cached_tokens_predicted_total" ["profile", "pod"]
        "Prompt tokens that the pod was predicted to have cached, over the predictions that were checked.";
    ACTUAL_TOKENS = Counter "wornpath_cached_tokens_actual_total" ["profile", "pod"]
        "Prompt tokens that the pod did have cached, by its own count, over the same predictions.";
    MISJUDGED_TOKENS = Counter "wornpath_cached_tokens_misjudged_total" ["profile", "pod"]
        "Tokens by which predictions were wrong, in either direction.";
    CHECKED_PREDICTIONS = Counter "wornpath_predictions_checked_total" ["profile", "pod"]
        "Answers whose count of cached tokens was compared with the prediction.";
    WRONG_PREDICTIONS = Counter "wornpath_predictions_wrong_total" ["profile", "pod"]
        "Of those, answers whose prediction was off by more than a tenth of the prompt.";
    SPECULATIVE_PREDICTIONS = Counter "wornpath_predictions_speculative_total" ["profile", "pod"]
        "Answers that are left out of these comparisons: their prediction rested on an earlier request to the pod that no cache event had confirmed when the answer ended.";
    PREDICTIONS_BROKEN = Gauge "wornpath_pod_predictions_broken" ["pod"]
        "1 if a pod's predictions are nearly always wrong: another tokenizer, block size or hash, or no events.";
    EVENTS_SILENT = Gauge "wornpath_pod_events_silent" ["pod"]
        "1 if a pod is configured to send cache events, has answered requests, and has never sent any.";
    DEGRADED = Counter "wornpath_degraded_total" ["profile", "pod"]
        "Answers without a step of the plan that failed or that no pod could take, as prefill on a pod of its own.";
    RETRIES = Counter "wornpath_retries_total" ["profile", "pod"]
        "Attempts after the first, counted for the pod that answered in the end.";
    RETRY_BUDGET = Counter "wornpath_retry_budget_total" ["fate"]
        "Retries over all requests: `spent`, or `refused` because the budget was used up.";
    SERIES_DROPPED = Counter "wornpath_series_dropped_total" []
        "Finished requests that were counted nowhere else, because there were too many combinations of labels.";
    POD_REQUESTS = Gauge "wornpath_pod_requests" ["pod"]
        "Requests sent to the pod and not finished, by the router's own count.";
    POD_PREFILL = Gauge "wornpath_pod_prefill_tokens" ["pod"]
        "Prompt tokens sent, not cached and not computed yet, by the router's own count.";
    POD_DECODE = Gauge "wornpath_pod_decode_tokens" ["pod"]
        "Tokens in the contexts of requests that are decoding, by the router's own count.";
    POD_WAITING = Gauge "wornpath_pod_engine_waiting" ["pod"]
        "Requests that wait inside the engine, as it last reported.";
    POD_KV_USAGE = Gauge "wornpath_pod_kv_usage_ratio" ["pod"]
        "Share of the engine's KV cache in use, as it last reported.";
    POD_HEALTH = Gauge "wornpath_pod_health" ["pod", "health"]
        "1 for the pod's present health: `up`, `draining`, or `down`: it has not said yet what it serves, or its breaker is open.";
    POD_BREAKER = Gauge "wornpath_pod_breaker" ["pod", "breaker"]
        "1 for the present state of the pod's breaker: `closed`, `half_open`, `open`, or `resting` (the pod said that it is busy).";
    POD_TRUST = Gauge "wornpath_pod_event_trust" ["pod", "trust"]
        "1 for how far the pod's cache events can be trusted: `exact`, `unsure`, `partial` or `guessed` (no events).";
    SCRAPES = Counter "wornpath_scrapes_total" ["pod", "result"]
        "Readings of the engine's own metrics: `read` or `missed`.";
    INDEX_PODS = Gauge "wornpath_index_pods" []
        "Pods in the index.";
    INDEX_BLOCKS = Gauge "wornpath_index_blocks" []
        "Distinct blocks in the index.";
    INDEX_ENTRIES = Gauge "wornpath_index_entries" []
        "Blocks over all pods: what the cap on the index counts.";
    INDEX_ENTRIES_LIMIT = Gauge "wornpath_index_entries_limit" []
        "The cap on the index: beyond it blocks are refused.";
    INDEX_REFUSED = Counter "wornpath_index_refused_total" ["pod"]
        "Blocks of the pod's events that the index had no room for: one pod's cap, or that of all, was reached.";
    INDEX_SETS = Gauge "wornpath_index_sets" []
        "Distinct sets of more than one pod.";
    INDEX_BYTES = Gauge "wornpath_index_table_bytes" []
        "Bytes of the index's tables.";
    INDEX_SUSPECTS = Gauge "wornpath_index_suspects" []
        "Pods whose prefixes may have holes, so that queries look at every block.";
    POD_BLOCKS = Gauge "wornpath_pod_blocks" ["pod"]
        "Blocks that the index has for the pod.";
    EVENT_SOURCES = Gauge "wornpath_pod_event_source_info" ["pod", "source"]
        "1 for every source that has spoken of the pod's cache.";
    EVENT_STATE = Gauge "wornpath_pod_event_state" ["pod", "state"]
        "1 for how far the pod's cache is known: `waiting`, `live`, `unsure`, `partial`, `stale` or `quarantined`.";
    EVENT_SEQUENCE = Gauge "wornpath_pod_event_last_sequence" ["pod"]
        "The engine's number of the last batch applied; absent if batches are not numbered.";
    EVENT_RATE = Gauge "wornpath_pod_event_blocks_per_second" ["pod"]
        "Blocks stored and removed, over about the last ten seconds.";
    EVENT_PHANTOM = Gauge "wornpath_pod_phantom_blocks" ["pod"]
        "Blocks that the index had and the engine had not, at least, by the last digest.";
    EVENT_MISSING = Gauge "wornpath_pod_missing_blocks" ["pod"]
        "Blocks that the engine had and the index had not, at least, by the last digest.";
    EVENT_LAG = Gauge "wornpath_pod_event_lag_batches" ["pod"]
        "Batches of cache events that are known to exist and not applied yet.";
    EVENT_AGE = Gauge "wornpath_pod_event_age_seconds" ["pod"]
        "Time since anything was heard of the pod's cache; absent if nothing ever was.";
    EVENT_BATCHES = Counter "wornpath_pod_event_batches_total" ["pod", "fate"]
        "Batches of cache events: `applied`, `repeated`, `outdated`, `unnumbered`, `malformed` or `dropped`.";
    EVENT_GAPS = Counter "wornpath_pod_event_gaps_total" ["pod"]
        "Times at which batches were found missing.";
    EVENT_REPLAYS = Counter "wornpath_pod_event_replays_total" ["pod"]
        "Replays asked for because batches were missing.";
    EVENT_RESYNCS = Counter "wornpath_pod_event_resyncs_total" ["pod"]
        "Times at which the pod's state was fetched whole, or begun anew because it could not be had.";
    EVENT_RESTARTS = Counter "wornpath_pod_restarts_total" ["pod"]
        "New lives of the engine.";
    EVENT_DISAGREEMENTS = Counter "wornpath_pod_digest_disagreements_total" ["pod"]
        "Digests of the pod's cache that did not agree with the index.";
    CACHE_MODE = Gauge "wornpath_profile_cache_mode" ["profile", "mode", "without_events"]
        "1 for what a profile's knowledge of caches rests on: `events`, `mixed` or `approximate` (guessed from what pods were sent), and what it says of pods without events; absent for profiles that do not look.";
    CHECKPOINT_WRITES = Counter "wornpath_checkpoint_writes_total" ["result"]
        "Times at which the checkpoint was `written`, or `failed` to be; absent without a checkpoint, as are the next four.";
    CHECKPOINT_AGE = Gauge "wornpath_checkpoint_age_seconds" []
        "Time since the checkpoint was written; absent before the first time.";
    CHECKPOINT_BYTES = Gauge "wornpath_checkpoint_bytes" []
        "Bytes of the checkpoint as it was last written.";
    CHECKPOINT_PODS = Gauge "wornpath_checkpoint_pods" ["fate"]
        "Pods in the checkpoint as it was last written: `kept`, or `left_out` because they were not sure enough.";
    CHECKPOINT_RECALLED = Gauge "wornpath_checkpoint_recalled_pods" ["state"]
        "Pods that the checkpoint before the start knew: `waiting` to be confirmed, `confirmed`, or `dropped`.";
    STRANGERS = Counter "wornpath_event_strangers_total" []
        "Things said of pods that are not in the fleet.";
    WAITING = Gauge "wornpath_queue_waiting" []
        "Requests that wait for a pod to have room.";
    THREADS_STUCK = Gauge "wornpath_threads_stuck" []
        "Threads that have not moved for 5 s; `/health` and the log name them. While it is not 0, whatever is read from pods, index and events is absent: a stuck thread may have it locked.";
    THREAD_STALLS = Counter "wornpath_thread_stalls_total" []
        "Times at which a thread was found stuck.";
    RELOADS = Counter "wornpath_config_reloads_total" ["result"]
        "Configurations that were to replace the present one: `applied` or `refused`.";
    TRACES = Counter "wornpath_traces_total" ["fate"]
        "Traced requests: `exported`, `failed` (the collector did not take them) or `dropped` (too many waited).";
    BUILD = Gauge "wornpath_build_info" ["version"]
        "1; the label says which version runs.";
}

const HEAD: &str = "\
# Metrics

Written from the code by a test; do not edit. Served at `/metrics` of the client listener and of the admin
listener, in Prometheus' text format. Times are in seconds. No label ever holds a key, a header or a prompt. Requests
of batches have the profile `offline`; what clients wait for is everything else: `profile!=\"offline\"`.

What a histogram counts by, in seconds: ";

const TAIL: &str = "These bounds stay. A percentile
that is taken from them lies somewhere in its bucket: of times around 60 ms, between 50 and 100. The admin plane, and with
it the dashboard and `wornpath top`, count in steps of at most an eighth.";

/// The reference page, as Markdown.
#[must_use]
pub fn reference() -> String {
    let bounds: Vec<_> =
        crate::observe::metrics::histogram::BOUNDS.iter().map(f64::to_string).collect();
    let mut page = format!("{HEAD}{}. {TAIL}\n\n", bounds.join(", "));
    page.push_str("| metric | kind | labels | |\n|---|---|---|---|\n");
    for Family { name, kind, labels, help } in FAMILIES {
        let labels: Vec<_> = labels.iter().map(|label| format!("`{label}`")).collect();
        let _ = writeln!(page, "| `{name}` | {kind} | {} | {help} |", labels.join(", "));
    }
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_follow_prometheus_conventions_and_are_given_once() {
        for (at, family) in FAMILIES.iter().enumerate() {
            let Family { name, kind, .. } = family;
            assert!(name.starts_with("wornpath_"), "{name}");
            assert_eq!(*kind == MetricKind::Counter, name.ends_with("_total"), "{name}");
            assert_eq!(
                *kind == MetricKind::Histogram,
                name.ends_with("_seconds") && *kind != MetricKind::Gauge,
                "{name}"
            );
            assert!(FAMILIES[..at].iter().all(|other| other.name != *name), "{name} twice");
        }
    }
}
