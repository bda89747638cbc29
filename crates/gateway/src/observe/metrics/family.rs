//! The declarations of all metrics. The page and its documentation are both generated from them, so
//! they cannot differ.

use std::fmt::{self, Write};

/// The type of a metric.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MetricKind {
    /// Only grows.
    Counter,
    /// Goes up and down.
    Gauge,
    /// Counts values by bucket.
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
    /// The name in the exposition format.
    pub name: &'static str,
    /// Counter, gauge or histogram.
    pub kind: MetricKind,
    /// The names of the labels, in order.
    pub labels: &'static [&'static str],
    /// The help text.
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
        "Finished requests. `end` is `whole` (complete response), `broken` (after the first byte), `client_left` (client disconnected) or `refused`; `pod` is empty if no pod was reached.";
    REQUEST_SECONDS = Histogram "wornpath_request_seconds" ["profile", "pod"]
        "Time from the request's arrival to the last byte of its response.";
    FIRST_BYTE_SECONDS = Histogram "wornpath_first_byte_seconds" ["profile", "pod"]
        "Time from the request's arrival to the first byte of its response.";
    PROMPT_TOKENS = Counter "wornpath_prompt_tokens_total" ["profile", "pod", "source"]
        "Prompt tokens, as counted by the `engine`, or by the `router` for responses in which the engine reported none.";
    OUTPUT_TOKENS = Counter "wornpath_output_tokens_total" ["profile", "pod", "source"]
        "Generated tokens, as counted by the `engine`, or by the `router` (events of the stream) for streams in which the engine reported none.";
    TOLD_TOKENS = Counter "wornpath_prompt_tokens_told_total" ["profile", "pod"]
        "Prompt tokens of the responses that reported cached tokens, by the pod that computed the prompt (with disaggregated prefill, the prefill pod).";
    CACHED_TOKENS = Counter "wornpath_cached_tokens_total" ["profile", "pod"]
        "Of `wornpath_prompt_tokens_told_total`, the tokens served from a prefix cache.";
    UNIQUE_TOKENS = Counter "wornpath_cached_tokens_unique_total" ["profile", "pod"]
        "Of `wornpath_cached_tokens_total`, the tokens that no other pod held when the request was routed: what would be computed again without this pod.";
    GIVEN_AWAY = Counter "wornpath_prefill_given_away_tokens_total" ["profile", "reason"]
        "Cached prompt tokens that another pod held beyond the chosen one when the request was routed, by the reason why that pod was not chosen: `load` (another pod had the better total), `health` (down, draining or on trial), `role`, `excluded` (it had failed in an earlier attempt), `hold` (full: the request would have waited), `subset` (the data plane did not allow it) or `filter`.";
    SHADOW_DECISIONS = Counter "wornpath_shadow_decisions_total" ["profile", "shadow", "result"]
        "Requests that the shadow profile decided as well: it `agreed`, `differed`, or would have `held` or `refused` the request. This and the next two metrics are absent without `shadow`.";
    SHADOW_TOKENS = Counter "wornpath_shadow_cached_tokens_total" ["profile", "shadow", "choice"]
        "Predicted cached tokens on the `chosen` pod and on the pod of the `shadow`, over the requests that both decided.";
    SHADOW_FIRST_TOKEN = Counter "wornpath_shadow_predicted_first_token_seconds_total" ["profile", "shadow", "choice"]
        "Predicted times to first token on the `chosen` pod and on the pod of the `shadow`, over the requests that both decided.";
    PREDICTED_TOKENS = Counter "wornpath_cached_tokens_predicted_total" ["profile", "pod"]
        "Prompt tokens predicted to be cached on the pod, over the checked predictions; approximate where `wornpath_pod_mode` is.";
    ACTUAL_TOKENS = Counter "wornpath_cached_tokens_actual_total" ["profile", "pod"]
        "Prompt tokens that were cached on the pod, as reported by the engine, over the checked predictions.";
    MISJUDGED_TOKENS = Counter "wornpath_cached_tokens_misjudged_total" ["profile", "pod"]
        "Absolute difference between predicted and actual cached tokens, summed over the checked predictions.";
    CHECKED_PREDICTIONS = Counter "wornpath_predictions_checked_total" ["profile", "pod"]
        "Responses whose reported cached tokens were compared with the prediction.";
    WRONG_PREDICTIONS = Counter "wornpath_predictions_wrong_total" ["profile", "pod"]
        "Checked predictions that were off by more than a tenth of the prompt.";
    SPECULATIVE_PREDICTIONS = Counter "wornpath_predictions_speculative_total" ["profile", "pod"]
        "Responses excluded from the comparison: their prediction relied on an earlier request to the pod that no cache event had confirmed by the end of the response.";
    PREDICTIONS_BROKEN = Gauge "wornpath_pod_predictions_broken" ["pod"]
        "1 if the pod's predictions are nearly always wrong: tokenizer, block size or hash differ, or cache events are missing.";
    EVENTS_SILENT = Gauge "wornpath_pod_events_silent" ["pod"]
        "1 if the pod is configured to send cache events and has answered requests, but no event was received.";
    DEGRADED = Counter "wornpath_degraded_total" ["profile", "pod"]
        "Responses that skipped a step of the plan because it failed or no pod could take it, such as prefill on a separate pod.";
    RETRIES = Counter "wornpath_retries_total" ["profile", "pod"]
        "Attempts after the first, counted for the pod that answered in the end.";
    RETRY_BUDGET = Counter "wornpath_retry_budget_total" ["fate"]
        "Retries over all requests: `spent`, or `refused` because the retry budget was exhausted.";
    CONTINUATIONS = Counter "wornpath_continuations_total" ["outcome", "reason"]
        "Streams that broke after their first byte: `continued` on another pod, with what broke them (`lost`, `stalled`, `engine_error`, or `drained` for those that were moved), or `broken`, with why they were not continued ([operations.md](operations.md#streams-that-survive-their-pod)).";
    CONTINUATION_BYTES = Gauge "wornpath_continuation_bytes" []
        "Bytes of request bodies and texts that are kept of streams, so that they can be continued; limited by `wornpath_continuation_bytes_limit`.";
    CONTINUATION_BYTES_LIMIT = Gauge "wornpath_continuation_bytes_limit" []
        "Limit on `wornpath_continuation_bytes` (`continuation.memory`).";
    POISON_REFUSED = Counter "wornpath_poison_requests_refused_total" []
        "Requests that were refused because the same request had broken the connections to two pods within the last minute.";
    TRAFFIC_REQUESTS = Counter "wornpath_traffic_requests_total" ["profile", "model", "tenant", "status", "end"]
        "Finished requests by model and tenant. This and the next metrics of `wornpath_traffic_` have no label for the pod, and only so many models and tenants have series of their own (`metrics.models`, `metrics.tenants`): the others share `other`. `profile` and `model` are empty for requests that were refused before they were routed, `tenant` where there are none.";
    TRAFFIC_PROMPT_TOKENS = Counter "wornpath_traffic_prompt_tokens_total" ["profile", "model", "tenant", "source"]
        "As `wornpath_prompt_tokens_total`, by model and tenant.";
    TRAFFIC_OUTPUT_TOKENS = Counter "wornpath_traffic_output_tokens_total" ["profile", "model", "tenant", "source"]
        "As `wornpath_output_tokens_total`, by model and tenant.";
    TRAFFIC_TOLD_TOKENS = Counter "wornpath_traffic_prompt_tokens_told_total" ["profile", "model", "tenant"]
        "As `wornpath_prompt_tokens_told_total`, by model and tenant.";
    TRAFFIC_CACHED_TOKENS = Counter "wornpath_traffic_cached_tokens_total" ["profile", "model", "tenant"]
        "As `wornpath_cached_tokens_total`, by model and tenant.";
    TRAFFIC_FIRST_TOKEN_SECONDS = Histogram "wornpath_traffic_first_token_seconds" ["profile", "model", "tenant"]
        "Time from the arrival of a request to the first event of its response, of streams.";
    TRAFFIC_INTER_TOKEN_SECONDS = Histogram "wornpath_traffic_inter_token_seconds" ["profile", "model", "tenant"]
        "Time between two events of a stream, each of which is about one token. Counted when the response ends.";
    TRAFFIC_QUEUE_SECONDS = Histogram "wornpath_traffic_queue_seconds" ["profile", "model", "tenant"]
        "Time of a routed request in the wait queue, or in waiting for the first pod of its model; 0 for most.";
    TRAFFIC_REQUEST_SECONDS = Histogram "wornpath_traffic_request_seconds" ["profile", "model", "tenant"]
        "Time from the arrival of a request to the last byte of its response.";
    POD_FIRST_TOKEN_SECONDS = Histogram "wornpath_pod_first_token_seconds" ["pod"]
        "Time from the decision to the first event of the response, of streams that were not retried, by the pod that computed the prompt. Without batches. What requests wait in the router is not in it.";
    POD_INTER_TOKEN_SECONDS = Histogram "wornpath_pod_inter_token_seconds" ["pod"]
        "As `wornpath_traffic_inter_token_seconds`, by pod, without batches and without streams that another pod continued.";
    POD_SLOW = Gauge "wornpath_pod_slow" ["pod", "time"]
        "1 if the pod's time to the `first_token`, or its `inter_token` time, was at least three times that of half of the pods with the same models and roles, in two measurements in a row. Pods that compute more of their prompts may take longer by as much. A measurement takes some seconds, or up to a minute where there are few requests, and three such pods.";
    SERIES_DROPPED = Counter "wornpath_series_dropped_total" []
        "Finished requests counted in no other series, because the limit on label combinations was reached.";
    POD_REQUESTS = Gauge "wornpath_pod_requests" ["pod"]
        "Requests in flight on the pod, as counted by the router.";
    POD_PREFILL = Gauge "wornpath_pod_prefill_tokens" ["pod"]
        "Uncached prompt tokens sent to the pod and not computed yet, as counted by the router.";
    POD_DECODE = Gauge "wornpath_pod_decode_tokens" ["pod"]
        "Context tokens of the requests that are decoding, as counted by the router.";
    POD_WAITING = Gauge "wornpath_pod_engine_waiting" ["pod"]
        "Requests queued inside the engine, as last reported.";
    POD_KV_USAGE = Gauge "wornpath_pod_kv_usage_ratio" ["pod"]
        "Share of the engine's KV cache in use, as last reported.";
    POD_HEALTH = Gauge "wornpath_pod_health" ["pod", "health"]
        "1 for the pod's current health: `up`, `draining`, or `down` (its models are not known yet, or its circuit breaker is open).";
    POD_BREAKER = Gauge "wornpath_pod_breaker" ["pod", "breaker"]
        "1 for the current state of the pod's circuit breaker: `closed`, `half_open`, `open`, `resting` (backing off because the pod reported overload while another pod had room), or `avoided` (the same while no other pod had room: used only if no other pod can take the request).";
    POD_TRUST = Gauge "wornpath_pod_event_trust" ["pod", "trust"]
        "1 for the trust in the pod's cache events: `exact`, `unsure`, `partial` or `guessed` (no events; the cache is approximated).";
    POD_MODE = Gauge "wornpath_pod_mode" ["pod", "mode"]
        "1 for how predictions for the pod are made: `exact` (by the tokens of its model and its cache events) or `approximate` (`GET /pods` says why, with the cure).";
    SCRAPES = Counter "wornpath_scrapes_total" ["pod", "result"]
        "Scrapes of the engine's metrics: `read` or `missed`.";
    INDEX_PODS = Gauge "wornpath_index_pods" []
        "Pods in the index.";
    INDEX_BLOCKS = Gauge "wornpath_index_blocks" []
        "Distinct blocks in the index.";
    INDEX_ENTRIES = Gauge "wornpath_index_entries" []
        "Blocks in the index, summed over all pods; limited by `wornpath_index_entries_limit`.";
    INDEX_ENTRIES_LIMIT = Gauge "wornpath_index_entries_limit" []
        "Limit on `wornpath_index_entries`; blocks beyond it are refused.";
    INDEX_REFUSED = Counter "wornpath_index_refused_total" ["pod"]
        "Blocks from the pod's events that were refused, because the limit of the pod or of the whole index was reached.";
    INDEX_SETS = Gauge "wornpath_index_sets" []
        "Distinct sets of more than one pod.";
    INDEX_BYTES = Gauge "wornpath_index_table_bytes" []
        "Size of the index's tables in bytes.";
    INDEX_SUSPECTS = Gauge "wornpath_index_suspects" []
        "Pods with more gaps in their prefixes than lookups can check one by one: these pods' blocks are read one after another.";
    POD_BLOCKS = Gauge "wornpath_pod_blocks" ["pod"]
        "Blocks in the index for the pod.";
    EVENT_SOURCES = Gauge "wornpath_pod_event_source_info" ["pod", "source"]
        "1 for every source that has delivered events of the pod's cache.";
    EVENT_STATE = Gauge "wornpath_pod_event_state" ["pod", "state"]
        "1 for the state of the pod's event feed: `waiting`, `live`, `unsure`, `partial`, `stale` or `quarantined`.";
    EVENT_SEQUENCE = Gauge "wornpath_pod_event_last_sequence" ["pod"]
        "Sequence number of the last batch applied; absent if batches are not numbered.";
    EVENT_RATE = Gauge "wornpath_pod_event_blocks_per_second" ["pod"]
        "Blocks stored and removed per second, over about the last ten seconds.";
    EVENT_PHANTOM = Gauge "wornpath_pod_phantom_blocks" ["pod"]
        "Lower bound on the blocks in the index that the engine does not hold, by the last digest.";
    EVENT_MISSING = Gauge "wornpath_pod_missing_blocks" ["pod"]
        "Lower bound on the blocks that the engine holds and the index lacks, by the last digest.";
    EVENT_LAG = Gauge "wornpath_pod_event_lag_batches" ["pod"]
        "Batches of cache events known to exist and not applied yet.";
    EVENT_AGE = Gauge "wornpath_pod_event_age_seconds" ["pod"]
        "Time since the last message from the pod's event source; absent before the first.";
    EVENT_BATCHES = Counter "wornpath_pod_event_batches_total" ["pod", "fate"]
        "Batches of cache events: `applied`, `repeated`, `outdated`, `unnumbered`, `malformed` or `dropped`.";
    EVENT_GAPS = Counter "wornpath_pod_event_gaps_total" ["pod"]
        "Gaps detected in the sequence of batches.";
    EVENT_REPLAYS = Counter "wornpath_pod_event_replays_total" ["pod"]
        "Replays requested because of a gap.";
    EVENT_RESYNCS = Counter "wornpath_pod_event_resyncs_total" ["pod"]
        "Full resynchronizations: the pod's state was fetched as a snapshot, or cleared because none was available.";
    EVENT_RESTARTS = Counter "wornpath_pod_restarts_total" ["pod"]
        "Restarts of the engine.";
    EVENT_DISAGREEMENTS = Counter "wornpath_pod_digest_disagreements_total" ["pod"]
        "Digests of the pod's cache that did not match the index.";
    EVENT_THROTTLED = Counter "wornpath_pod_event_throttled_total" ["pod"]
        "Times that reading the pod's events was paused for 100 ms or longer, because the engine sent more than 10,000 messages per second that name no blocks.";
    CACHE_MODE = Gauge "wornpath_profile_cache_mode" ["profile", "mode", "without_events"]
        "1 for the source of a profile's cache knowledge: `events`, `mixed` or `approximate` (from the prompts routed to each pod), with its `without_events` setting; absent for profiles that ignore caches.";
    CHECKPOINT_WRITES = Counter "wornpath_checkpoint_writes_total" ["result"]
        "Checkpoint writes: `written` or `failed`. This and the next four metrics are absent if no checkpoint is configured.";
    CHECKPOINT_AGE = Gauge "wornpath_checkpoint_age_seconds" []
        "Time since the last checkpoint write; absent before the first.";
    CHECKPOINT_BYTES = Gauge "wornpath_checkpoint_bytes" []
        "Size of the last checkpoint in bytes.";
    CHECKPOINT_PODS = Gauge "wornpath_checkpoint_pods" ["fate"]
        "Pods in the last checkpoint: `kept`, or `left_out` because their state was not certain enough.";
    CHECKPOINT_RECALLED = Gauge "wornpath_checkpoint_recalled_pods" ["state"]
        "Pods restored from the checkpoint at start: `waiting` for confirmation, `confirmed`, or `dropped`.";
    STRANGERS = Counter "wornpath_event_strangers_total" []
        "Event messages about pods that are not in the fleet.";
    BODY_BYTES = Gauge "wornpath_body_bytes" []
        "Bytes of request bodies in memory, from their first byte until the response begins, without bodies up to 64 KiB; limited by `wornpath_body_bytes_limit`.";
    BODY_BYTES_LIMIT = Gauge "wornpath_body_bytes_limit" []
        "Limit on `wornpath_body_bytes` (`limits.bodies`).";
    BODIES_REFUSED = Counter "wornpath_bodies_refused_total" ["reason"]
        "Request bodies that were not read to their end: `budget` (no room in `limits.bodies`, 503), `share` (no room in the share of the tenant or client address, 503) or `slow` (below the minimum rate, 408).";
    WAITING = Gauge "wornpath_queue_waiting" []
        "Requests in the wait queue, and those that wait for the first pod of their model.";
    EXCHANGE_ROUTERS = Gauge "wornpath_exchange_routers" []
        "Other routers that this one hears from (`exchange`): within the last two seconds, over an open connection. 0 without `exchange`.";
    MODEL_WAITING = Gauge "wornpath_model_waiting_requests" ["model"]
        "Requests for the model that wait for room on a pod, or for its first pod. This and the next four metrics have a line for every model that is configured or served, also while it has no pod: they are meant for autoscalers.";
    MODEL_WAITING_SECONDS = Gauge "wornpath_model_waiting_seconds" ["model"]
        "How long the first of the requests that wait for the model has waited; 0 if none waits.";
    MODEL_PODS = Gauge "wornpath_model_pods" ["model"]
        "Pods that serve the model and are up; neither draining nor down.";
    MODEL_PREFILL = Gauge "wornpath_model_prefill_tokens" ["model"]
        "Uncached prompt tokens sent to the model's pods that are up and not computed yet, as counted by the router.";
    MODEL_KV_USAGE = Gauge "wornpath_model_kv_usage_ratio" ["model"]
        "Mean share of the KV cache in use over the model's pods that are up, as last reported; 0 without pods.";
    THREADS_STUCK = Gauge "wornpath_threads_stuck" []
        "Threads without progress for 5 s; `/health` and the log name them. While it is not 0, metrics read from pods, index and events are absent, because a stuck thread may hold their locks.";
    THREAD_STALLS = Counter "wornpath_thread_stalls_total" []
        "Times a thread was found stuck.";
    UNTOKENIZED = Counter "wornpath_prompts_untokenized_total" ["reason"]
        "Prompts routed by load, without their tokens and without a prediction: `too_long` (for the context of every pod, or `limits.prompt_tokens`), `no_split_point` (1 MiB of text that must be tokenized in one go), `timeout` (`limits.tokenize_time`), `queue_full` (`limits.waiting`), `no_template` (a chat, and the model's folder has no chat template), `template_failed` (the template refuses the conversation or fails), `tokenizer_failed` or `unknown_reading` (a field whose effect on the prompt, or on the use of the cache, is not known).";
    RELOADS = Counter "wornpath_config_reloads_total" ["result"]
        "Configuration reloads: `applied` or `refused`.";
    TRACES = Counter "wornpath_traces_total" ["fate"]
        "Traced requests: `exported`, `failed` (the collector refused them) or `dropped` (export queue full).";
    ACCESS_LOG_LINES = Counter "wornpath_access_log_lines_total" ["fate"]
        "Lines of the access log: `written`, `failed` (they could not be written), or `dropped` (the queue was full, because the disk or the reader of the pipe is slower than the requests).";
    METRIC_EXPORTS = Counter "wornpath_metric_exports_total" ["fate"]
        "Exports of all metrics by OTLP: `exported`, or `failed` (the collector refused them, or was not reached).";
    BUILD = Gauge "wornpath_build_info" ["version", "revision"]
        "Always 1; the labels are the running version, and the commit that it was built from (`WORNPATH_REVISION` at build time; empty without).";
    PROCESS_CPU = Counter "process_cpu_seconds_total" []
        "CPU time of the router. This and the next metrics of `process_` come from Linux's `/proc`, and are absent elsewhere.";
    PROCESS_START = Gauge "process_start_time_seconds" []
        "When the router was started, in seconds since 1970.";
    PROCESS_RESIDENT = Gauge "process_resident_memory_bytes" []
        "Resident memory of the router.";
    PROCESS_VIRTUAL = Gauge "process_virtual_memory_bytes" []
        "Virtual memory of the router.";
    PROCESS_THREADS = Gauge "process_threads" []
        "Threads of the router.";
    PROCESS_FDS = Gauge "process_open_fds" []
        "Open files and connections of the router.";
    PROCESS_MAX_FDS = Gauge "process_max_fds" []
        "Limit on `process_open_fds`.";
}

const HEAD: &str = "\
# Metrics

Generated from the code by a test; do not edit. Served at `/metrics` of the client listener and of the admin
listener, in Prometheus' text format, or as OpenMetrics if the scrape asks for it (`Accept: application/openmetrics-text`). OpenMetrics
adds exemplars to histograms: the trace id of the last traced request in each bucket, if `telemetry` exports traces. Times are in seconds. No label ever contains a key, a header or a prompt. Requests
of batches have the profile `offline`; select online traffic with `profile!=\"offline\"`.

Histogram bounds, in seconds: ";

const TAIL: &str = "These bounds are stable. A percentile
computed from them is only as exact as its bucket: for times around 60 ms, between 50 and 100 ms. The admin plane, and with
it the dashboard and `wornpath top`, use finer buckets, each at most an eighth wide.";

/// The reference page, as Markdown.
#[must_use]
pub fn reference() -> String {
    let bounds: Vec<_> = crate::observe::buckets::BOUNDS.iter().map(f64::to_string).collect();
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
            let is_named = ["wornpath_", "process_"].iter().any(|it| name.starts_with(it));
            assert!(is_named, "{name}");
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
