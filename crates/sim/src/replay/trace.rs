//! Recorded or generated traffic: arrival times, prompts and output lengths.
//!
//! One JSON object a line, in one of two forms:
//! - blocks: `timestamp` (ms), `input_length`, `output_length` (tokens) and `hash_ids`, one per
//!   block, equal where whole prefixes are equal, the last block possibly partial: the Mooncake
//!   format;
//! - text: `timestamp`, `prompt` (a string) or `messages`, and `output_length`. Four bytes count as
//!   a token.
//!
//! Either may belong to a session: `session_id`, and on all turns but the first `delay` (ms after
//! the end of the turn before) in place of `timestamp`. Sessions are closed loops: a slow engine
//! delays later turns, as it does with people and agents.

use super::block_sizes::BlockSizes;
use serde::Deserialize;
use serde_json::Value;
use std::collections::{HashMap, HashSet};
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;
use wornpath_blocks::{BlockHash, HashKey, TextHasher};
use wornpath_routing::Rng;

const BYTES_PER_TOKEN: usize = 4;

/// How many bad lines an error lists.
const LISTED_LINES: usize = 10;
/// Some thirty thousand years: beyond any clock, and far below what a `Duration` holds.
const MAX_MILLISECONDS: f64 = 1e15;
/// Far beyond any engine's output, and sums of it do not overflow.
const MAX_OUTPUT_TOKENS: usize = 1 << 30;

/// When a turn starts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TraceStart {
    /// At a fixed time.
    At(Duration),
    /// After another turn has ended.
    After {
        /// The index of that turn.
        turn: usize,
        /// The time between its end and this start.
        delay: Duration,
    },
}

/// One request of a trace.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TraceTurn {
    /// When it starts.
    pub start: TraceStart,
    /// Tokens of its prompt.
    pub prompt_tokens: usize,
    /// Tokens of its output.
    pub output_tokens: usize,
    /// The ids of its blocks; only full ones can be reused.
    pub blocks: Arc<[u64]>,
    /// The session it belongs to.
    pub session: Option<usize>,
    /// The tenant that sends it.
    pub tenant: Option<u32>,
}

impl TraceTurn {
    /// Parses a line of blocks as a request of a queue: it starts at once, and the line's time is
    /// ignored.
    ///
    /// # Errors
    /// The problem of the line.
    pub fn queued(line: &Value, block_size: NonZeroUsize) -> Result<Self, String> {
        let line = TraceLine::deserialize(line).map_err(|error| error.to_string())?;
        let ids = line.hash_ids.as_deref().ok_or("no `hash_ids`")?;
        Ok(Self {
            start: TraceStart::At(Duration::ZERO),
            prompt_tokens: line.length_of(ids, block_size)?,
            output_tokens: line.output_tokens()?,
            blocks: ids.into(),
            session: None,
            tenant: None,
        })
    }

    /// The names of its full blocks.
    #[must_use]
    pub fn full_blocks(&self, block_size: NonZeroUsize) -> &[u64] {
        &self.blocks[..(self.prompt_tokens / block_size).min(self.blocks.len())]
    }
}

/// A trace.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Trace {
    /// Tokens per block.
    pub block_size: NonZeroUsize,
    /// Requests; a turn comes after the one it follows.
    pub turns: Vec<TraceTurn>,
}

/// A line that is no request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BadLine {
    /// Counted from 1.
    pub number: usize,
    /// What is wrong with it.
    pub problem: String,
}

/// A trace that cannot be replayed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum TraceError {
    /// Some lines are no requests.
    #[error("{file}: {count} invalid lines\n{}", listed(lines))]
    BadLines {
        /// The name that the caller passed.
        file: String,
        /// The number of bad lines.
        count: usize,
        /// The first of them.
        lines: Vec<BadLine>,
    },
    /// The trace has no requests.
    #[error("{file}: no requests; a trace has one JSON object per line")]
    Empty {
        /// The name that the caller passed.
        file: String,
    },
}

fn listed(lines: &[BadLine]) -> String {
    let line = |line: &BadLine| format!("  line {}: {}", line.number, line.problem);
    lines.iter().map(line).collect::<Vec<_>>().join("\n")
}

#[derive(Deserialize)]
pub(super) struct TraceLine {
    timestamp: Option<f64>,
    delay: Option<f64>,
    session_id: Option<Value>,
    pub(super) input_length: Option<usize>,
    output_length: usize,
    pub(super) hash_ids: Option<Vec<u64>>,
    prompt: Option<String>,
    messages: Option<Value>,
}

impl TraceLine {
    /// Tokens of a prompt of these blocks.
    fn length_of(&self, ids: &[u64], block_size: NonZeroUsize) -> Result<usize, String> {
        let tokens = self.input_length.ok_or("`hash_ids` without `input_length`")?;
        let full = tokens / block_size;
        let all = tokens.div_ceil(block_size.get());
        if tokens == 0 || ids.len() < full || ids.len() > all {
            return Err(format!(
                "`input_length` is {tokens} and there are {} `hash_ids`; {all} are expected, one per {block_size} tokens; \
                 {}",
                ids.len(),
                BlockSizes::fitting(tokens, ids.len()).hint()
            ));
        }
        Ok(tokens)
    }

    fn output_tokens(&self) -> Result<usize, String> {
        let tokens = self.output_length;
        if tokens > MAX_OUTPUT_TOKENS {
            return Err(format!(
                "`output_length` is {tokens}; it must be at most {MAX_OUTPUT_TOKENS}"
            ));
        }
        Ok(tokens)
    }
}

impl Trace {
    /// Parses a trace; errors name `file`.
    ///
    /// # Errors
    /// If lines are invalid, or there are none.
    pub fn read(file: &str, text: &str, block_size: NonZeroUsize) -> Result<Self, TraceError> {
        let mut reader = TraceReader { block_size, turns: Vec::new(), sessions: HashMap::new() };
        let mut bad = Vec::new();
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        for (number, line) in (1..).zip(text.lines()) {
            if line.trim().is_empty() {
                continue;
            }
            if let Err(problem) = reader.add(line) {
                bad.push(BadLine { number, problem });
            }
        }
        let file = file.to_owned();
        if !bad.is_empty() {
            let count = bad.len();
            bad.truncate(LISTED_LINES);
            return Err(TraceError::BadLines { file, count, lines: bad });
        }
        if reader.turns.is_empty() {
            return Err(TraceError::Empty { file });
        }
        Ok(Self { block_size, turns: reader.turns }.rebased())
    }

    /// Shifts the times so that the first request starts at zero, if they are wall clock times.
    /// Times that start more than a day after zero are taken for such.
    fn rebased(mut self) -> Self {
        const DAY: Duration = Duration::from_secs(24 * 3600);
        let starts = self.turns.iter_mut().filter_map(|turn| match &mut turn.start {
            TraceStart::At(time) => Some(time),
            TraceStart::After { .. } => None,
        });
        let starts: Vec<&mut Duration> = starts.collect();
        let first = starts.iter().map(|time| **time).min().unwrap_or_default();
        if first > DAY {
            starts.into_iter().for_each(|time| *time -= first);
        }
        self
    }

    /// The same traffic `speed` times as fast. Of sessions only the starts move: think time does
    /// not depend on the load.
    #[must_use]
    pub fn faster(mut self, speed: f64) -> Self {
        for turn in &mut self.turns {
            if let TraceStart::At(time) = &mut turn.start {
                *time = time.div_f64(speed);
            }
        }
        self
    }

    /// The same traffic with every arrival up to `most` later, at random.
    #[must_use]
    pub fn jittered(mut self, most: Duration, seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        for turn in &mut self.turns {
            if let TraceStart::At(time) = &mut turn.start {
                *time += most.mul_f64(rng.unit());
            }
        }
        self
    }

    /// Every session `copies` times. A copy shares the blocks that several sessions share, has its
    /// own blocks for the rest, and starts at its own random time. Requests without a session are
    /// not copied.
    #[must_use]
    pub fn cloned(mut self, copies: usize, seed: u64) -> Self {
        let shared = self.blocks_of_several_sessions();
        let starts = self.turns.iter().filter_map(|turn| match turn.start {
            TraceStart::At(time) => Some(time),
            TraceStart::After { .. } => None,
        });
        let span = starts.max().unwrap_or_default();
        let mut rng = Rng::new(seed);
        let originals = self.turns.clone();
        let sessions = 1 + originals.iter().filter_map(|turn| turn.session).max().unwrap_or(0);
        let highest =
            originals.iter().flat_map(|turn| turn.blocks.iter()).max().copied().unwrap_or(0);
        for copy in 1..copies {
            let mut copied = HashMap::new();
            for (at, turn) in originals.iter().enumerate() {
                let Some(session) = turn.session else { continue };
                copied.insert(at, self.turns.len());
                let own = |id: &u64| match shared.contains(id) {
                    true => *id,
                    false => copied_id(*id, copy as u64, highest),
                };
                let start = match turn.start {
                    TraceStart::At(_) => TraceStart::At(span.mul_f64(rng.unit())),
                    TraceStart::After { turn, delay } => {
                        TraceStart::After { turn: copied[&turn], delay }
                    }
                };
                let blocks = turn.blocks.iter().map(own).collect();
                let session = Some(session + sessions * copy);
                self.turns.push(TraceTurn { start, blocks, session, ..turn.clone() });
            }
        }
        self
    }

    fn blocks_of_several_sessions(&self) -> HashSet<u64> {
        let mut first = HashMap::new();
        let mut shared = HashSet::new();
        for turn in &self.turns {
            for id in turn.blocks.iter() {
                if *first.entry(*id).or_insert(turn.session) != turn.session {
                    shared.insert(*id);
                }
            }
        }
        shared
    }

    /// Prompt tokens that one engine with an unlimited cache would find cached, if each request
    /// arrived after the one before it had finished. The last token of a prompt is always computed.
    #[must_use]
    pub fn ideal_hit_tokens(&self) -> u64 {
        let mut seen = HashSet::new();
        let mut tokens = 0;
        for (turn, reply) in self.turns.iter().zip(self.replies()) {
            let full = turn.full_blocks(self.block_size);
            let reusable = (turn.prompt_tokens - 1) / self.block_size;
            let found = full.iter().take(reusable).take_while(|id| seen.contains(*id)).count();
            tokens += (found * self.block_size.get()) as u64;
            seen.extend(full.iter().chain(reply).copied());
        }
        tokens
    }

    /// Prompt tokens of all requests.
    #[must_use]
    pub fn prompt_tokens(&self) -> u64 {
        self.turns.iter().map(|turn| turn.prompt_tokens as u64).sum()
    }
}

/// A copy's own id for a block: beyond all ids of the trace, or another hash where ids are hashes
/// and leave no room beyond.
fn copied_id(id: u64, copy: u64, highest: u64) -> u64 {
    let beyond = highest.checked_add(1).and_then(|all| all.checked_mul(copy)?.checked_add(id));
    beyond.unwrap_or_else(|| {
        let mut mixed = id ^ copy.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    })
}

struct TraceReader {
    block_size: NonZeroUsize,
    turns: Vec<TraceTurn>,
    sessions: HashMap<String, SessionState>,
}

/// A session's number and its last turn so far.
#[derive(Clone, Copy)]
struct SessionState {
    number: usize,
    last_turn: usize,
}

impl TraceReader {
    fn add(&mut self, line: &str) -> Result<(), String> {
        let line: TraceLine = serde_json::from_str(line).map_err(|error| error.to_string())?;
        let name = line.session_id.as_ref().map(Value::to_string);
        let before = name.as_ref().and_then(|name| self.sessions.get(name)).copied();
        let start = match (line.timestamp, line.delay, before) {
            (_, Some(delay), Some(session)) => {
                TraceStart::After { turn: session.last_turn, delay: milliseconds("delay", delay)? }
            }
            (_, None, Some(session)) => {
                TraceStart::After { turn: session.last_turn, delay: Duration::ZERO }
            }
            (Some(time), _, None) => TraceStart::At(milliseconds("timestamp", time)?),
            (None, _, None) => {
                return Err("no `timestamp`; only later turns of a session have none".to_owned());
            }
        };
        let (prompt_tokens, blocks) = self.prompt(&line)?;
        let output_tokens = line.output_tokens()?;
        let session = name.map(|name| {
            let number = before.map_or(self.sessions.len(), |session| session.number);
            self.sessions.insert(name, SessionState { number, last_turn: self.turns.len() });
            number
        });
        let tenant = None;
        self.turns.push(TraceTurn { start, prompt_tokens, output_tokens, blocks, session, tenant });
        Ok(())
    }

    fn prompt(&self, line: &TraceLine) -> Result<(usize, Arc<[u64]>), String> {
        let text = match (&line.hash_ids, &line.prompt, &line.messages) {
            (Some(ids), ..) => {
                let tokens = line.length_of(ids, self.block_size)?;
                return Ok((tokens, ids.clone().into()));
            }
            (None, Some(prompt), _) => prompt.clone(),
            (None, None, Some(messages)) => messages.to_string(),
            (None, None, None) => {
                return Err("neither `hash_ids` nor `prompt` nor `messages`".to_owned());
            }
        };
        let chunk = self
            .block_size
            .saturating_mul(const { NonZeroUsize::new(BYTES_PER_TOKEN).expect("not zero") });
        let mut hashes = Vec::new();
        TextHasher::new(&HashKey::DEFAULT, chunk).hash_text(
            text.as_bytes(),
            BlockHash(0),
            &mut hashes,
        );
        let tokens = text.len().div_ceil(BYTES_PER_TOKEN).max(1);
        Ok((tokens, hashes.iter().map(|hash| hash.0).collect()))
    }
}

fn milliseconds(field: &str, value: f64) -> Result<Duration, String> {
    if (0.0..=MAX_MILLISECONDS).contains(&value) {
        return Ok(Duration::from_secs_f64(value / 1e3));
    }
    Err(format!("`{field}` is {value}; it must be milliseconds, from zero to {MAX_MILLISECONDS}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const FOUR: NonZeroUsize = NonZeroUsize::new(4).unwrap();

    const SESSIONS: &str = r#"
{"session_id": "a", "timestamp": 10, "input_length": 6, "output_length": 1, "hash_ids": [1, 2]}
{"session_id": "b", "timestamp": 90, "input_length": 8, "output_length": 1, "hash_ids": [1, 3]}
{"session_id": "a", "delay": 5, "input_length": 9, "output_length": 2, "hash_ids": [1, 4, 5]}
"#;

    #[test]
    fn turns_of_a_session_follow_each_other() {
        let trace = Trace::read("t", SESSIONS, FOUR).unwrap();
        let starts: Vec<_> = trace.turns.iter().map(|turn| turn.start).collect();
        let at = TraceStart::At;
        let ms = Duration::from_millis;
        assert_eq!(starts, [at(ms(10)), at(ms(90)), TraceStart::After { turn: 0, delay: ms(5) }]);
        assert_eq!(trace.turns[0].full_blocks(FOUR), [1]);
        assert_eq!(trace.ideal_hit_tokens(), 4 + 4);
        assert_eq!(trace.faster(2.0).turns[1].start, at(ms(45)));
    }

    #[test]
    fn a_copy_of_a_session_shares_what_sessions_share() {
        let trace = Trace::read("t", SESSIONS, FOUR).unwrap().cloned(2, 7);
        assert_eq!(trace.turns.len(), 6);
        assert_eq!(*trace.turns[3].blocks, [1, 8]);
        assert_eq!(*trace.turns[5].blocks, [1, 10, 11]);
        assert_eq!(trace.turns[5].session, Some(2));
        assert!(matches!(trace.turns[5].start, TraceStart::After { turn: 3, .. }));
        assert!(
            matches!(trace.turns[4].start, TraceStart::At(time) if time <= Duration::from_millis(90))
        );
    }

    #[test]
    fn copies_of_sessions_whose_ids_are_hashes_have_ids_of_their_own() {
        let text = SESSIONS.replace("[1, 4, 5]", "[1, 4, 18446744073709551615]");
        let trace = Trace::read("t", &text, FOUR).unwrap().cloned(3, 7);
        let own: HashSet<_> = [2, 5, 8].map(|turn| trace.turns[turn].blocks[2]).into();
        assert_eq!(own.len(), 3, "{own:?}");
    }

    #[test]
    fn texts_with_a_common_prefix_share_its_blocks() {
        let line = |prompt: &str| {
            format!(r#"{{"timestamp": 1, "prompt": "{prompt}", "output_length": 3}}"#)
        };
        let text = [line(&"a".repeat(40)), line(&format!("{}b", "a".repeat(32)))].join("\n");
        let trace = Trace::read("t", &text, FOUR).unwrap();
        assert_eq!((trace.turns[0].prompt_tokens, trace.turns[1].prompt_tokens), (10, 9));
        assert_eq!(trace.turns[0].blocks[..2], trace.turns[1].blocks[..]);
    }

    #[test]
    fn bad_lines_are_listed_with_their_numbers() {
        let text = "{\"timestamp\": 1, \"input_length\": 4, \"output_length\": 1, \"hash_ids\": [1]}\n\
            nonsense\n\
            {\"timestamp\": 1, \"input_length\": 9, \"output_length\": 1, \"hash_ids\": [1]}\n\
            {\"timestamp\": -1, \"input_length\": 4, \"output_length\": 1, \"hash_ids\": [1]}\n\
            {\"delay\": 1, \"input_length\": 4, \"output_length\": 1, \"hash_ids\": [1]}\n\
            {\"timestamp\": 1e18, \"input_length\": 4, \"output_length\": 1, \"hash_ids\": [1]}\n\
            {\"timestamp\": 1, \"input_length\": 4, \"output_length\": 2000000000, \"hash_ids\": [1]}\n";
        let error = Trace::read("t.jsonl", text, FOUR).unwrap_err().to_string();
        assert!(error.starts_with("t.jsonl: 6 invalid lines\n  line 2: "), "{error}");
        assert!(
            error.contains("line 3: `input_length` is 9 and there are 1 `hash_ids`; 3 are"),
            "{error}"
        );
        assert!(error.contains("line 4: `timestamp` is -1"), "{error}");
        assert!(error.contains("line 5: no `timestamp`"), "{error}");
        assert!(
            error.contains("line 6: `timestamp` is 1000000000000000000; it must be"),
            "{error}"
        );
        assert!(
            error.contains("line 7: `output_length` is 2000000000; it must be at most"),
            "{error}"
        );
        assert!(Trace::read("t", "\n", FOUR).unwrap_err().to_string().contains("no requests"));
    }
}
