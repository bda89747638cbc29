//! The traffic recorder: arrival, length and shared blocks of requests, so that traffic can be
//! replayed.
//!
//! It records only while a client fetches, and never the text of a prompt: a block is named by its
//! keyed hash. Requests that are not fetched in time are overwritten and counted as missed.

use crate::observe::summary::{RequestEnd, RequestSummary, SummaryObserver, TrafficStream};
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use wornpath_index::Moment;
use wornpath_routing::{Name, Profile, RoutingContext};

/// How long requests are recorded after a fetch.
const RECORD_FOR: Duration = Duration::from_secs(10);
/// Limit on the recorded blocks, of eight bytes each.
const MAX_BLOCKS: usize = 4 << 20;
const MAX_REQUESTS: usize = 1 << 16;
/// Requests per fetch.
const MAX_FETCHED: usize = 1024;

/// A ring buffer of the requests that finished while a client was fetching them.
#[derive(Debug, Default)]
pub struct TrafficRecorder {
    /// Milliseconds since the start until which requests are recorded.
    until: AtomicU64,
    buffer: Mutex<Buffer>,
}

#[derive(Debug, Default)]
struct Buffer {
    requests: VecDeque<RecordedRequest>,
    /// The number of blocks of all requests.
    blocks: usize,
    /// Requests that were overwritten.
    dropped: u64,
}

#[derive(Debug)]
struct RecordedRequest {
    model: Name,
    traffic: TrafficStream,
    /// Tokens of the response, if it was complete.
    output: Option<u64>,
}

impl RecordedRequest {
    fn json(&self) -> Value {
        let TrafficStream { arrived, blocks, block_tokens, prompt_tokens } = &self.traffic;
        let blocks: Vec<String> = blocks.iter().map(|block| format!("{:016x}", block.0)).collect();
        json!({
            "arrived_us": micros(*arrived),
            "model": self.model.as_str(),
            "block_tokens": block_tokens,
            "prompt_tokens": prompt_tokens,
            "output_tokens": self.output,
            "blocks": blocks,
        })
    }
}

impl TrafficRecorder {
    /// The shape of a prepared request, if traffic is being recorded.
    pub(crate) fn prompt_shape(
        &self,
        profile: &Profile,
        context: &RoutingContext,
        arrived: Moment,
    ) -> Option<Box<TrafficStream>> {
        if millis(arrived) >= self.until.load(Relaxed) {
            return None;
        }
        let prompt = profile.prompt_blocks(context)?;
        Some(Box::new(TrafficStream {
            arrived,
            blocks: prompt.chain.as_slice().into(),
            block_tokens: prompt.block_tokens,
            prompt_tokens: prompt.prompt_tokens,
        }))
    }

    /// The requests finished since `after`, the `next` of an earlier call, as JSON. Every call
    /// keeps the recording going.
    pub fn since(&self, after: Option<u64>, now: Moment) -> Value {
        self.until.store(millis(now + RECORD_FOR), Relaxed);
        let buffer = self.buffer.lock().unwrap_or_else(PoisonError::into_inner);
        let all = buffer.dropped + buffer.requests.len() as u64;
        let after = after.unwrap_or(all).min(all);
        let missed = buffer.dropped.saturating_sub(after);
        let from = after + missed;
        let skipped = usize::try_from(from - buffer.dropped).unwrap_or(usize::MAX);
        let fetched = buffer.requests.iter().skip(skipped).take(MAX_FETCHED);
        let requests: Vec<Value> = fetched.map(RecordedRequest::json).collect();
        let next = from + requests.len() as u64;
        json!({ "now_us": micros(now), "next": next, "missed": missed, "requests": requests })
    }

    fn push(&self, request: RecordedRequest) {
        let mut buffer = self.buffer.lock().unwrap_or_else(PoisonError::into_inner);
        buffer.blocks += request.traffic.blocks.len();
        buffer.requests.push_back(request);
        while buffer.blocks > MAX_BLOCKS || buffer.requests.len() > MAX_REQUESTS {
            let Some(oldest) = buffer.requests.pop_front() else { break };
            buffer.blocks -= oldest.traffic.blocks.len();
            buffer.dropped += 1;
        }
    }
}

impl SummaryObserver for TrafficRecorder {
    fn ended(&self, record: &RequestSummary) {
        let Some(traffic) = &record.traffic else { return };
        let is_complete = record.ended == RequestEnd::Whole && (200..300).contains(&record.status);
        // An engine that reports no usage still sends about one chunk per token.
        let output = record.usage.output_tokens.unwrap_or(record.pieces);
        self.push(RecordedRequest {
            model: record.model.clone(),
            traffic: TrafficStream::clone(traffic),
            output: is_complete.then_some(output),
        });
    }
}

fn micros(moment: Moment) -> u64 {
    u64::try_from(moment.since_zero().as_micros()).unwrap_or(u64::MAX)
}

fn millis(moment: Moment) -> u64 {
    u64::try_from(moment.since_zero().as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dialect::Api;
    use crate::observe::summary::Usage;
    use wornpath_blocks::BlockHash;

    fn record(blocks: usize) -> RequestSummary {
        let traffic = TrafficStream {
            arrived: Moment::from_micros(7),
            blocks: (0..blocks as u64).map(BlockHash).collect(),
            block_tokens: 16,
            prompt_tokens: 16 * blocks + 3,
        };
        RequestSummary {
            traffic: Some(Box::new(traffic)),
            status: 200,
            ended: RequestEnd::Whole,
            ..RequestSummary::new("a", Api::CHAT)
        }
    }

    #[test]
    fn a_fetch_returns_the_requests_since_the_last_one_and_the_number_missed() {
        let recorder = TrafficRecorder::default();
        let first = recorder.since(None, Moment::ZERO);
        assert_eq!(first, json!({"now_us": 0, "next": 0, "missed": 0, "requests": []}));
        recorder.ended(&RequestSummary {
            usage: Usage { output_tokens: Some(5), ..Usage::default() },
            ..record(2)
        });
        recorder.ended(&RequestSummary { pieces: 9, ..record(1) });
        recorder.ended(&RequestSummary { ended: RequestEnd::Broken, ..record(1) });
        recorder.ended(&RequestSummary { traffic: None, ..record(1) });
        let fetched = recorder.since(Some(0), Moment::ZERO);
        assert_eq!(fetched["next"], 3);
        assert_eq!(
            fetched["requests"][0],
            json!({
                "arrived_us": 7, "model": "", "block_tokens": 16, "prompt_tokens": 35, "output_tokens": 5,
                "blocks": ["0000000000000000", "0000000000000001"],
            })
        );
        assert_eq!(fetched["requests"][1]["output_tokens"], 9, "counted by its chunks");
        assert_eq!(
            fetched["requests"][2]["output_tokens"],
            Value::Null,
            "the length of a broken response is unknown"
        );
        (0..MAX_REQUESTS).for_each(|_| recorder.ended(&record(0)));
        let late = recorder.since(Some(1), Moment::ZERO);
        assert_eq!((&late["missed"], &late["next"]), (&json!(2), &json!(MAX_FETCHED + 3)));
        assert_eq!(
            late["requests"].as_array().map(Vec::len),
            Some(MAX_FETCHED),
            "the next fetch returns the rest"
        );
        assert_eq!(recorder.since(Some(u64::MAX), Moment::ZERO)["requests"], json!([]));
    }

    #[test]
    fn the_block_limit_drops_the_oldest_requests() {
        let recorder = TrafficRecorder::default();
        (0..5).for_each(|_| recorder.ended(&record(MAX_BLOCKS / 4)));
        assert_eq!(recorder.since(Some(0), Moment::ZERO)["missed"], 1);
    }
}
