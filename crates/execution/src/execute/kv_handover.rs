//! KV cache that one step's pod produces and the next step's pod loads, how a failed load is
//! detected, and what follows it.
//!
//! The pod that fails to load is healthy; the one that produced the KV cache may be dead. So the
//! producer is blamed, probed and excluded, and the consumer stays a candidate.
//!
//! vLLM reports a request whose KV cache it could not load as an internal server error, without the
//! cause. Before the first token, and with KV cache to load, hardly anything else has this form:
//! what else fails so, such as a grammar that does not compile, has failed in the prefill step
//! already. Responses of vLLM 0.32 whose prefill engine was killed:
//!
//! | API | whole | as a stream, with status 200 |
//! |---|---|---|
//! | completions | 500 `{"error": {"message": "Internal server error", …}}` | an event with the same, `[DONE]` |
//! | chat | the same | an empty delta with the role, and then as above |
//! | Anthropic messages | the same | `message_start`, and an error event about the event above |
//! | responses | the same | `response.created`, `response.in_progress`, and the connection is closed |
//!
//! Up to 0.28 the streams of completions and chats lack the error event: they end without a token.

use super::{PlanExecution, PrefillResult, Router, RunStop};
use crate::breaker::CallOutcome;
use crate::failure::CallError;
use crate::response::EngineResponse;
use crate::retry::{Producer, RetryDecision};
use crate::transfer::offers_kv;
use bytes::Bytes;
use hyper::StatusCode;
use hyper::header::CONTENT_TYPE;
use serde_json::Value;
use std::time::Duration;
use wornpath_index::Moment;
use wornpath_routing::{AfterFailure, PlanStep};

/// The bytes of a response that are inspected. A longer one is no error message.
const MAX_BYTES: usize = 64 << 10;

/// vLLM's message for a request that failed inside the engine.
const FAILED: &str = "Internal server error";

/// The same, quoted in the error of vLLM's conversion from one API to another.
const FAILED_AND_CONVERTED: &str = "{'error': {'message': 'In...";

/// The lease of a step that says nothing about it; vLLM's default.
pub(super) const DEFAULT_LEASE: Duration = Duration::from_secs(30);

/// KV cache that the engine of an earlier step holds.
pub(super) struct KvHeld {
    pub(super) lease: Option<Duration>,
    pub(super) since: Moment,
    /// Whether the engine holds it for another engine to load.
    pub(super) is_offered: bool,
}

impl KvHeld {
    fn until(&self) -> Moment {
        self.since + self.lease.unwrap_or(DEFAULT_LEASE)
    }
}

impl<R: Router> PlanExecution<'_, R> {
    /// Notes a step that has produced KV cache for the next one. Returns whether it has.
    pub(super) fn produced(&mut self, step: &PlanStep, answer: Bytes) -> bool {
        if !offers_kv(&step.mutations) {
            return false;
        }
        let pod = step.pod;
        self.prefill = Some(Box::new(PrefillResult { pod, cache: step.cache.clone(), answer }));
        self.producer = Some(Producer { pod, failure: step.failure });
        true
    }

    /// The step's engine could not load the KV cache: the plan restarts without the pod that
    /// produced it, or the step computes the prompt itself.
    pub(super) fn load_failed(&mut self, step: &PlanStep) -> Result<(), RunStop> {
        let name = step.name.clone();
        let Some(producer) = self.producer else {
            return Err(self.stop(RetryDecision::GiveUp, name, CallError::KvLoad));
        };
        let budget = self.options.budget;
        let now = self.router.now();
        if let Some(target) = producer.pod.and_then(|pod| self.router.target(pod)) {
            target.endpoint.record_outcome(CallOutcome::Suspect, Some(self.options.request), now);
        }
        match self.retries.load_failed(producer, step.failure.then, || budget.spend(now)) {
            RetryDecision::Skip => {
                self.compute_without_prefill();
                Ok(())
            }
            next => Err(self.stop(next, name, CallError::KvLoad)),
        }
    }

    /// The prefill engine may have freed its KV cache: a decode step could read another request's
    /// blocks.
    pub(super) fn lease_expired(&mut self, step: &PlanStep) -> RunStop {
        self.withdraw(step);
        let budget = self.options.budget;
        let now = self.router.now();
        let next = self.retries.exhausted(AfterFailure::Restart, || budget.spend(now));
        self.stop(next, step.name.clone(), CallError::LeaseExpired)
    }

    /// The current step loads nothing and computes the prompt itself.
    pub(super) fn compute_without_prefill(&mut self) {
        self.skip_transfer();
        self.prefill = None;
        self.producer = None;
        let held = self.held.take().filter(|held| !held.is_offered);
        self.hold(held);
    }

    /// The steps after a skipped prefill step have nothing to load.
    pub(super) const fn skip_transfer(&mut self) {
        self.transfer.is_skipped = true;
        self.is_degraded = true;
    }

    /// Sets what engines hold for the next step, and reports until when.
    pub(super) fn hold(&mut self, held: Option<KvHeld>) {
        let offered = held.as_ref().filter(|held| held.is_offered);
        self.router.kv_held_until(offered.map(KvHeld::until));
        self.held = held;
    }
}

/// What the first events of a stream tell.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum StreamHead {
    /// Nothing yet.
    Nothing,
    /// No more than the request was accepted, which vLLM sends before it loads.
    InProgress,
    /// A token, or another event for the client.
    Output,
    /// The request failed, or ended without a token.
    Failed,
}

/// Returns the response unless it reports a failed load. Waits for the first token of a stream.
///
/// # Errors
/// [`CallError::KvLoad`] if it does, and any error of the call until that is known.
pub(super) async fn check_load(mut response: EngineResponse) -> Result<EngineResponse, CallError> {
    let status = response.head.status;
    let is_failed = if status == StatusCode::INTERNAL_SERVER_ERROR {
        is_failure(&response.look_ahead(MAX_BYTES, |_| false).await?)
    } else if status.is_success() && is_stream(&response) {
        let mut head = StreamHead::Nothing;
        let looked = response
            .look_ahead(MAX_BYTES, |seen| {
                head = stream_head(seen);
                matches!(head, StreamHead::Output | StreamHead::Failed)
            })
            .await;
        match looked {
            Err(CallError::Broken(_)) if head == StreamHead::InProgress => true,
            looked => looked.map(|_| head == StreamHead::Failed)?,
        }
    } else {
        false
    };
    if is_failed { Err(CallError::KvLoad) } else { Ok(response) }
}

fn is_stream(response: &EngineResponse) -> bool {
    const EVENTS: &[u8] = b"text/event-stream";
    let kind = response.head.headers.get(CONTENT_TYPE).map_or(&b""[..], |kind| kind.as_bytes());
    kind.get(..EVENTS.len()).is_some_and(|kind| kind.eq_ignore_ascii_case(EVENTS))
}

/// Whether a body is vLLM's error for a request that failed inside the engine.
fn is_failure(json: &[u8]) -> bool {
    serde_json::from_slice(json).is_ok_and(|value: Value| has_failed(&value))
}

fn has_failed(value: &Value) -> bool {
    let message = value["error"]["message"].as_str().unwrap_or_default();
    message == FAILED || message.contains(FAILED_AND_CONVERTED)
}

/// What the complete events of a stream tell so far.
fn stream_head(stream: &[u8]) -> StreamHead {
    let text = String::from_utf8_lossy(stream).replace("\r\n", "\n");
    let mut head = StreamHead::Nothing;
    let Some((whole, _rest)) = text.rsplit_once("\n\n") else { return head };
    for line in whole.lines() {
        let Some(data) = line.strip_prefix("data:") else { continue };
        match event_head(data.trim()) {
            StreamHead::Nothing => {}
            StreamHead::InProgress => head = StreamHead::InProgress,
            known => return known,
        }
    }
    head
}

fn event_head(data: &str) -> StreamHead {
    if data == "[DONE]" {
        return StreamHead::Failed;
    }
    let Ok(event) = serde_json::from_str::<Value>(data) else { return StreamHead::Output };
    if has_failed(&event) {
        return StreamHead::Failed;
    }
    match (event["type"].as_str(), event["choices"].as_array()) {
        (Some("response.created" | "response.in_progress"), _) => StreamHead::InProgress,
        (Some("message_start" | "ping"), _) => StreamHead::Nothing,
        (_, Some(choices)) if choices.iter().all(is_empty) => StreamHead::Nothing,
        _ => StreamHead::Output,
    }
}

/// Whether a choice of a chunk has neither a token nor a finish reason.
fn is_empty(choice: &Value) -> bool {
    let is_nothing = |value: &Value| match value {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        _ => false,
    };
    let delta = choice["delta"].as_object();
    let mut fields = delta.into_iter().flatten().filter(|(name, _)| *name != "role");
    is_nothing(&choice["finish_reason"])
        && is_nothing(&choice["text"])
        && fields.all(|(_, value)| is_nothing(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_token_or_error_of_a_stream_is_found_wherever_it_is_cut() {
        let role = r#"{"choices":[{"delta":{"role":"assistant","content":"","tool_calls":[]},"finish_reason":null}]}"#;
        let nothing = [role, r#"{"choices":[],"usage":{}}"#, r#"{"type":"ping"}"#];
        let output = [
            r#"{"choices":[{"text":"a","finish_reason":null}]}"#,
            r#"{"choices":[{"text":"","finish_reason":"stop"}]}"#,
            r#"{"choices":[{"delta":{"reasoning":"a"},"finish_reason":null}]}"#,
            r#"{"choices":[{"delta":{"tool_calls":[{"index":0}]},"finish_reason":null}]}"#,
            r#"{"type":"response.output_item.added"}"#,
            r#"{"error":{"message":"EngineCore encountered an issue."}}"#,
            "what is this",
        ];
        let failed = [
            "[DONE]",
            r#"{"error":{"message":"Internal server error","type":"server_error"}}"#,
            r#"{"type":"error","error":{"message":"input_value={'error': {'message': 'In...am': None"}}"#,
        ];
        for line in ["\n", "\r\n"] {
            let before: String =
                nothing.iter().map(|data| format!("data: {data}{line}{line}")).collect();
            assert_eq!(stream_head(before.as_bytes()), StreamHead::Nothing);
            for (all, expected) in
                [(&output[..], StreamHead::Output), (&failed[..], StreamHead::Failed)]
            {
                for data in all {
                    let stream = format!("{before}event: e{line}data:{data}{line}{line}");
                    let known = (0..=stream.len())
                        .map(|cut| stream_head(&stream.as_bytes()[..cut]))
                        .find(|head| *head != StreamHead::Nothing);
                    assert_eq!(known, Some(expected), "{stream}");
                }
            }
        }
    }

    #[test]
    fn only_the_exact_error_of_vllm_is_a_failed_load() {
        assert!(is_failure(br#"{"error":{"message":"Internal server error","code":500}}"#));
        for other in [
            &b""[..],
            b"Internal Server Error",
            b"[]",
            br#"{"error":"Internal server error"}"#,
            br#"{"error":{"message":"Internal server error: out of memory"}}"#,
            br#"{"error":{"message":"Internal server error"}"#,
        ] {
            assert!(!is_failure(other), "{}", String::from_utf8_lossy(other));
        }
    }
}
