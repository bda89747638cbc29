//! Traffic taken down so that it can be replayed: when requests came, how long they were, and which
//! blocks they share.
//!
//! Only while somebody asks for it, and never a word of a prompt: a block is named by its keyed
//! hash. What nobody fetches in time gives way to what came later, and is counted as missed.

use crate::observe::summary::{RequestEnd, RequestSummary, SummaryObserver, TrafficStream};
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use wornpath_index::Moment;
use wornpath_routing::{Name, Profile, RoutingContext};

/// How long requests are taken down after somebody asked.
const AFTER_ASKING: Duration = Duration::from_secs(10);
/// How much is kept for whoever asks: eight bytes a block.
const MOST_BLOCKS: usize = 4 << 20;
const MOST_REQUESTS: usize = 1 << 16;
/// How many are told at once.
const MOST_TOLD: usize = 1024;

/// Requests that ended while somebody asked for them.
#[derive(Debug, Default)]
pub struct TrafficRecorder {
    /// Milliseconds since the start until which requests are taken down.
    until: AtomicU64,
    kept: Mutex<RecordedBytes>,
}

#[derive(Debug, Default)]
struct RecordedBytes {
    requests: VecDeque<RecordedRequest>,
    /// The blocks of all of them.
    blocks: usize,
    /// How many have given way.
    gone: u64,
}

#[derive(Debug)]
struct RecordedRequest {
    model: Name,
    trail: TrafficStream,
    /// Tokens of its answer, if it was answered to the end.
    output: Option<u64>,
}

impl RecordedRequest {
    fn json(&self) -> Value {
        let TrafficStream { arrived, blocks, block_tokens, prompt_tokens } = &self.trail;
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
    /// What is needed of a prepared request, if it is to be taken down.
    pub(crate) fn trail(
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

    /// What has ended since `after`, a number that an earlier call gave; and that requests which
    /// come from now on are taken down.
    pub fn since(&self, after: Option<u64>, now: Moment) -> Value {
        self.until.store(millis(now + AFTER_ASKING), Relaxed);
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let all = kept.gone + kept.requests.len() as u64;
        let after = after.unwrap_or(all).min(all);
        let missed = kept.gone.saturating_sub(after);
        let from = after + missed;
        let skipped = usize::try_from(from - kept.gone).unwrap_or(usize::MAX);
        let told = kept.requests.iter().skip(skipped).take(MOST_TOLD);
        let requests: Vec<Value> = told.map(RecordedRequest::json).collect();
        let next = from + requests.len() as u64;
        json!({ "now_us": micros(now), "next": next, "missed": missed, "requests": requests })
    }

    fn keep(&self, taken: RecordedRequest) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.blocks += taken.trail.blocks.len();
        kept.requests.push_back(taken);
        while kept.blocks > MOST_BLOCKS || kept.requests.len() > MOST_REQUESTS {
            let Some(oldest) = kept.requests.pop_front() else { break };
            kept.blocks -= oldest.trail.blocks.len();
            kept.gone += 1;
        }
    }
}

impl SummaryObserver for TrafficRecorder {
    fn ended(&self, record: &RequestSummary) {
        let Some(trail) = &record.trail else { return };
        let is_answered = record.ended == RequestEnd::Whole && (200..300).contains(&record.status);
        // An engine that was not asked to count still sends a piece for every token, near enough.
        let output = record.usage.output_tokens.unwrap_or(record.pieces);
        self.keep(RecordedRequest {
            model: record.model.clone(),
            trail: TrafficStream::clone(trail),
            output: is_answered.then_some(output),
        });
    }
}

fn micros(moment: Moment) -> u64 {
    u64::try_from(moment.as_micros()).unwrap_or(u64::MAX)
}

fn millis(moment: Moment) -> u64 {
    u64::try_from(moment.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::summary::{Api, Usage};
    use wornpath_blocks::BlockHash;

    fn record(blocks: usize) -> RequestSummary {
        let trail = TrafficStream {
            arrived: Duration::from_micros(7),
            blocks: (0..blocks as u64).map(BlockHash).collect(),
            block_tokens: 16,
            prompt_tokens: 16 * blocks + 3,
        };
        RequestSummary {
            trail: Some(Box::new(trail)),
            status: 200,
            ended: RequestEnd::Whole,
            ..RequestSummary::new("a", Api::Chat)
        }
    }

    #[test]
    fn whoever_asks_gets_what_has_ended_since_and_learns_what_was_missed() {
        let tape = TrafficRecorder::default();
        let first = tape.since(None, Duration::ZERO);
        assert_eq!(first, json!({"now_us": 0, "next": 0, "missed": 0, "requests": []}));
        tape.ended(&RequestSummary {
            usage: Usage { output_tokens: Some(5), ..Usage::default() },
            ..record(2)
        });
        tape.ended(&RequestSummary { pieces: 9, ..record(1) });
        tape.ended(&RequestSummary { ended: RequestEnd::Broken, ..record(1) });
        tape.ended(&RequestSummary { trail: None, ..record(1) });
        let heard = tape.since(Some(0), Duration::ZERO);
        assert_eq!(heard["next"], 3);
        assert_eq!(
            heard["requests"][0],
            json!({
                "arrived_us": 7, "model": "", "block_tokens": 16, "prompt_tokens": 35, "output_tokens": 5,
                "blocks": ["0000000000000000", "0000000000000001"],
            })
        );
        assert_eq!(heard["requests"][1]["output_tokens"], 9, "counted by its pieces");
        assert_eq!(
            heard["requests"][2]["output_tokens"],
            Value::Null,
            "how long it would have been is not known"
        );
        (0..MOST_REQUESTS).for_each(|_| tape.ended(&record(0)));
        let late = tape.since(Some(1), Duration::ZERO);
        assert_eq!((&late["missed"], &late["next"]), (&json!(2), &json!(MOST_TOLD + 3)));
        assert_eq!(
            late["requests"].as_array().map(Vec::len),
            Some(MOST_TOLD),
            "the rest when asked again"
        );
        assert_eq!(tape.since(Some(u64::MAX), Duration::ZERO)["requests"], json!([]));
    }

    #[test]
    fn many_blocks_give_way_like_many_requests() {
        let tape = TrafficRecorder::default();
        (0..5).for_each(|_| tape.ended(&record(MOST_BLOCKS / 4)));
        assert_eq!(tape.since(Some(0), Duration::ZERO)["missed"], 1);
    }
}
