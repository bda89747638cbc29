//! Streams of engines that give token ids, broken at every byte, on engines that are functions of
//! the ids of their whole prompt: other tokens of the same text would be answered otherwise.

use super::event::{Stop, StreamForm};
use super::reason::NotContinued;
use super::request::continued;
use super::seam::Seam;
use super::sent::{Progress, SentText};
use super::tests::unnamed;
use super::token_ids::{TokenIdFilter, asked};
use bytes::Bytes;
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::hash::{DefaultHasher, Hash, Hasher};

/// The texts of ids: several have the same, and three in a row are one character.
const WORDS: [&str; 12] = ["", "", "\u{1f600}", "a", "a", " a", " ", " ", "\n", "\"", "ab", "b"];
/// The tokens of a prompt and its answer.
const CONTEXT: u64 = 80;
/// Tokens of one character, each of which but the last shows nothing.
const CHARACTER: std::ops::Range<u32> = 0..3;

/// An engine as vLLM writes its streams.
#[derive(Clone, Copy)]
struct IdEngine {
    number: u64,
    /// Tokens of an event.
    interval: usize,
    /// Whether it gives ids to requests that ask.
    gives_ids: bool,
}

impl IdEngine {
    /// The client's form of a stream is `form`; a chat may be continued as a completion.
    fn stream(&self, body: &Value) -> Vec<u8> {
        let asks = self.gives_ids && body["return_token_ids"] == true;
        let prompt = prompt(body);
        let form = if body["prompt"].is_null() { StreamForm::Chat } else { StreamForm::Completion };
        let limit =
            ["max_completion_tokens", "max_tokens"].iter().find_map(|it| body[*it].as_u64());
        let has_no_limit = form == StreamForm::Chat || body.get("max_tokens") == Some(&Value::Null);
        let limit = limit.unwrap_or(if has_no_limit { CONTEXT - prompt.len() as u64 } else { 16 });
        let (ids, has_stopped) = generated(&prompt, limit as usize, body["stop"].as_str());
        let reason = if has_stopped { "stop" } else { "length" };
        let mut out = String::new();
        let list = |ids: &[u32]| if asks { json!(ids) } else { Value::Null };
        let mut first = Some(list(&prompt));
        if form == StreamForm::Chat {
            let choice = json!({"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": null, "finish_reason": null});
            self.event(
                form,
                &json!([choice]),
                &[("prompt_token_ids", first.take().unwrap())],
                &mut out,
            );
        }
        let events = ids.chunks(self.interval).count();
        for (at, ids) in ids.chunks(self.interval).enumerate() {
            let text: String = ids.iter().map(|id| WORDS[*id as usize]).collect();
            let is_last = at + 1 == events;
            let reason = if is_last { json!(reason) } else { Value::Null };
            let choice = match form {
                StreamForm::Chat if is_last => {
                    json!({"index": 0, "delta": {"content": text}, "logprobs": null, "finish_reason": reason, "stop_reason": null, "token_ids": list(ids)})
                }
                StreamForm::Chat | StreamForm::Messages | StreamForm::Responses => {
                    json!({"index": 0, "delta": {"content": text}, "logprobs": null, "finish_reason": reason, "token_ids": list(ids)})
                }
                StreamForm::Completion => {
                    let prompt = first.take().unwrap_or_default();
                    json!({"index": 0, "text": text, "logprobs": null, "finish_reason": reason, "stop_reason": null, "token_ids": list(ids), "prompt_token_ids": prompt})
                }
            };
            self.event(form, &json!([choice]), &[], &mut out);
        }
        if body["stream_options"]["include_usage"] == true {
            let tokens = json!({"prompt_tokens": prompt.len(), "total_tokens": prompt.len() + ids.len(), "completion_tokens": ids.len()});
            self.event(form, &json!([]), &[("usage", tokens)], &mut out);
        }
        out.push_str("data: [DONE]\n\n");
        out.into_bytes()
    }

    fn event(&self, form: StreamForm, choices: &Value, more: &[(&str, Value)], out: &mut String) {
        let object = match form {
            StreamForm::Completion => "text_completion",
            _ => "chat.completion.chunk",
        };
        let number = self.number;
        let mut event = json!({"id": format!("cmpl-{number}"), "object": object, "created": number, "model": format!("m{number}"), "choices": choices});
        for (name, value) in more {
            event[*name] = value.clone();
        }
        out.push_str(&format!("data: {event}\n\n"));
    }
}

/// The ids of a prompt: those of its bytes are not those of generated tokens.
fn prompt(body: &Value) -> Vec<u32> {
    match &body["prompt"] {
        Value::Array(ids) => ids.iter().map(|id| id.as_u64().unwrap() as u32).collect(),
        Value::String(text) => text.bytes().map(|byte| 1000 + u32::from(byte)).collect(),
        _ => body["messages"].to_string().bytes().map(|byte| 2000 + u32::from(byte)).collect(),
    }
}

/// The ids that follow a prompt, and whether a stop string that stays in the text ended them.
fn generated(prompt: &[u32], limit: usize, stop: Option<&str>) -> (Vec<u32>, bool) {
    let mut all = prompt.to_vec();
    let mut text = String::new();
    // What was generated for an earlier part of the answer counts, as all follows from the ids.
    while all.len() < prompt.len() + limit {
        let mut hasher = DefaultHasher::new();
        all.hash(&mut hasher);
        let next = match all.last() {
            Some(last) if CHARACTER.contains(last) && *last + 1 < CHARACTER.end => *last + 1,
            _ => {
                let id = (hasher.finish() % WORDS.len() as u64) as u32;
                if CHARACTER.contains(&id) { CHARACTER.start } else { id }
            }
        };
        all.push(next);
        text.push_str(WORDS[next as usize]);
        if stop.is_some_and(|stop| text.contains(stop)) {
            return (all.split_off(prompt.len()), true);
        }
    }
    (all.split_off(prompt.len()), false)
}

/// What a client gets if its engines break after so many bytes, one after another.
fn broken(body: &Value, engine: IdEngine, breaks: &[usize]) -> Result<String, NotContinued> {
    let form = if body["prompt"].is_null() { StreamForm::Chat } else { StreamForm::Completion };
    let request = asked(body.to_string().as_bytes()).unwrap();
    let mut filter = TokenIdFilter::default();
    let mut sent = SentText::new(form);
    let mut seam: Option<Seam> = None;
    let mut next: Value = serde_json::from_slice(&request).unwrap();
    let mut out = Vec::new();
    for (number, most) in breaks.iter().copied().chain([usize::MAX]).enumerate() {
        let stream = IdEngine { number: number as u64, ..engine }.stream(&next);
        let stream = &stream[..stream.len().min(most)];
        for chunk in stream.chunks(48 + (most ^ 37) % 331) {
            let mut ids = VecDeque::new();
            let chunk = filter.take(Bytes::copy_from_slice(chunk), &mut ids);
            let chunk = match &mut seam {
                None => chunk,
                Some(seam) => {
                    let passed = seam.pass(chunk, &mut ids);
                    if let Some(Stop::NotContinued(why)) = passed.stop {
                        return Err(why);
                    }
                    passed.bytes
                }
            };
            let passed = sent.pass(chunk, &mut ids);
            assert_eq!(passed.stop, None);
            assert!(ids.is_empty(), "each event has its ids");
            out.extend_from_slice(&passed.bytes);
        }
        filter.rest();
        sent.rest();
        let asks = body["stream_options"]["include_usage"] == true && !sent.has_counts();
        match sent.progress() {
            Progress::Ended => break,
            Progress::Finished { .. } if !asks => {
                out.extend_from_slice(b"data: [DONE]\n\n");
                break;
            }
            _ => {}
        }
        let continuing = continued(&request, &sent)?;
        seam = Seam::after(&sent, &continuing);
        sent.continued_after(&continuing.resent);
        next = serde_json::from_slice(&continuing.body).unwrap();
    }
    Ok(String::from_utf8(out).unwrap())
}

fn bodies() -> Vec<Value> {
    let mut bodies = Vec::new();
    for prompt in [
        json!({"messages": [{"role": "user", "content": "hi"}], "n": 1, "tool_choice": "none"}),
        json!({"messages": [{"role": "user", "content": "no limit"}], "logprobs": false}),
        json!({"prompt": "once"}),
    ] {
        for limit in [None, Some(5), Some(24)] {
            for asks in [true, false] {
                let mut body = prompt.clone();
                if let Some(limit) = limit {
                    let is_chat = prompt["prompt"].is_null();
                    let name = if is_chat { "max_completion_tokens" } else { "max_tokens" };
                    body[name] = json!(limit);
                }
                if asks {
                    body["stream_options"] = json!({"include_usage": true});
                }
                bodies.push(body);
            }
        }
    }
    bodies
}

/// Compares with the stream of one engine that was not asked for ids.
#[track_caller]
fn assert_unbroken(body: &Value, engine: IdEngine, breaks: &[usize]) {
    let whole = String::from_utf8(engine.stream(body)).unwrap();
    let found = broken(body, engine, breaks).unwrap_or_else(|why| panic!("{why:?} at {breaks:?}"));
    let lines = |stream: &str| unnamed(stream).lines().map(str::to_owned).collect::<Vec<_>>();
    let differs = std::iter::zip(lines(&found), lines(&whole)).find(|(one, other)| one != other);
    let is_same = unnamed(&found) == unnamed(&whole);
    assert!(is_same, "broken at {breaks:?}, {body}: {differs:#?} of:\n{whole}");
    let is_named = !whole.starts_with(&found[..found.find("\n\n").unwrap_or(0)]);
    let first = whole.find("\n\n").unwrap() + 2;
    // The names of the first engine stay once an event has passed; its ids take more bytes.
    assert!(!is_named || breaks[0] < 2 * first + 4096, "{breaks:?}");
}

const ENGINE: IdEngine = IdEngine { number: 0, interval: 1, gives_ids: true };

#[test]
fn a_stream_with_ids_broken_at_any_byte_is_the_same_for_its_client() {
    // Each twentieth byte, or all in the long run.
    let step = if std::env::var_os("WORNPATH_THOROUGH").is_some() { 1 } else { 20 };
    let mut breaks = 0;
    for interval in [1, 3] {
        let engine = IdEngine { interval, ..ENGINE };
        for body in bodies() {
            if interval > 1 && body["max_tokens"] == 5 {
                continue;
            }
            let asking = asked(body.to_string().as_bytes()).unwrap();
            let length = engine.stream(&serde_json::from_slice(&asking).unwrap()).len();
            for at in (breaks % step..length).step_by(step) {
                breaks += 1;
                assert_unbroken(&body, engine, &[at]);
            }
        }
    }
    println!("{breaks} breaks");
    assert!(breaks >= 90_000 / step, "{breaks}");
}

#[test]
fn a_stream_with_ids_may_break_again_and_again() {
    let all = bodies();
    for body in [&all[4], &all[6], &all[16]] {
        for first in (0..4500).step_by(233) {
            for second in (0..3000).step_by(271) {
                assert_unbroken(body, ENGINE, &[first, second, 700 + second / 2]);
            }
        }
    }
}

#[test]
fn a_stop_string_that_stays_in_the_text_is_found_across_a_break() {
    let mut stopped = 0;
    for stop in ["aab", "ba", "a a"] {
        for mut body in bodies() {
            body["stop"] = json!(stop);
            body["include_stop_str_in_output"] = json!(true);
            stopped +=
                usize::from(String::from_utf8(ENGINE.stream(&body)).unwrap().contains("stop\""));
            for at in (0..5000).step_by(97) {
                assert_unbroken(&body, ENGINE, &[at]);
            }
        }
    }
    assert!(stopped > 5, "{stopped} streams were stopped");
}

#[test]
fn the_next_engine_gets_the_ids_and_nothing_of_the_chat() {
    let body = json!({
        "messages": [{"role": "user", "content": "hi"}], "max_completion_tokens": 9, "model": "m",
        "stream": true, "temperature": 0, "tool_choice": "none", "parallel_tool_calls": true,
    });
    let request = asked(body.to_string().as_bytes()).unwrap();
    let asking: Value = serde_json::from_slice(&request).unwrap();
    let stream = ENGINE.stream(&asking);
    let mut found = VecDeque::new();
    let events = TokenIdFilter::default().take(stream.into(), &mut found);
    let text = std::str::from_utf8(&events).unwrap();
    let begun: Vec<_> = text.split_inclusive("\n\n").take(6).collect();
    let mut sent = SentText::new(StreamForm::Chat);
    sent.pass(begun.concat().into(), &mut found);
    let continuing = continued(&request, &sent).unwrap();
    let next: Value = serde_json::from_slice(&continuing.body).unwrap();
    let tokens = continuing.resent.tokens;
    assert!((1..=5).contains(&tokens), "{tokens}");
    let ids = prompt(&asking);
    let expected = [&ids[..], &generated(&ids, 9, None).0[..tokens as usize]].concat();
    assert_eq!(
        next,
        json!({
            "model": "m", "stream": true, "temperature": 0, "return_token_ids": true,
            "max_tokens": 9 - tokens, "prompt": expected,
        })
    );
}

/// Engines that do not give ids, or no longer, are continued by their text.
#[test]
fn without_all_ids_the_text_is_sent() {
    let body = json!({"prompt": "x", "max_tokens": 9});
    let request = asked(body.to_string().as_bytes()).unwrap();
    for gives_ids in [true, false] {
        let engine = IdEngine { gives_ids, ..ENGINE };
        let stream = engine.stream(&serde_json::from_slice(&request).unwrap());
        let mut found = VecDeque::new();
        let events = TokenIdFilter::default().take(stream.into(), &mut found);
        let text = std::str::from_utf8(&events).unwrap();
        let mut sent = SentText::new(StreamForm::Completion);
        let begun: Vec<_> = text.split_inclusive("\n\n").take(6).collect();
        sent.pass(begun.concat().into(), &mut found);
        let next = continued(&request, &sent).unwrap();
        assert_eq!(next.resent.ids.is_some(), gives_ids);
        sent.lose_ids();
        assert!(continued(&request, &sent).unwrap().resent.ids.is_none());
    }
}
