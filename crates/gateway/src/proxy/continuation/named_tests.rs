//! Messages and responses broken at every byte, and continued by chats of other engines: the client
//! must get the events of one engine.

use super::event::{Stop, StreamForm};
use super::reason::NotContinued;
use super::request::continued;
use super::seam::Seam;
use super::sent::{Progress, SentText};
use super::tests::{Engine, LETTERS, Maker, SGLANG, VLLM};
use bytes::Bytes;
use serde_json::{Value, json};
use std::collections::{HashMap, VecDeque};

/// Words of one event each, as engines send no event without text.
const WORDS: Maker =
    Maker { words: &[" word", " and", "\n", "\"", " \\", "é", "\t", ",", " "], ..VLLM };

/// Whether the first event of a message has the tokens of the prompt.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Tells {
    Prompt,
    Nothing,
}

/// Writes named events as an engine does.
struct EventsOf {
    engine: Engine,
    form: StreamForm,
    out: String,
    number: u64,
}

impl EventsOf {
    fn event(&mut self, name: &str, mut event: Value) {
        event["type"] = json!(name);
        if self.form == StreamForm::Responses {
            event["sequence_number"] = json!(self.number);
            self.number += 1;
        }
        let line = self.engine.maker.line;
        self.out.push_str(&format!("event: {name}{line}data: {event}{line}{line}"));
    }

    fn in_text(mut event: Value, number: u64) -> Value {
        event["item_id"] = json!(format!("msg_{number}"));
        event["output_index"] = json!(0);
        event["content_index"] = json!(0);
        event
    }

    fn message(mut self, answer: &Answer, tells: Tells) -> String {
        let start = if tells == Tells::Prompt { answer.prompt } else { 0 };
        let message = json!({
            "id": format!("msg_{}", self.engine.number), "type": "message", "role": "assistant",
            "model": format!("m{}", self.engine.number), "content": [], "stop_reason": null,
            "stop_sequence": null, "usage": {"input_tokens": start, "output_tokens": 0},
        });
        self.event("message_start", json!({"message": message}));
        self.event(
            "content_block_start",
            json!({"index": 0, "content_block": {"type": "text", "text": ""}}),
        );
        for piece in answer.pieces.iter().filter(|piece| !piece.is_empty()) {
            self.event(
                "content_block_delta",
                json!({"index": 0, "delta": {"type": "text_delta", "text": piece}}),
            );
        }
        self.event("content_block_stop", json!({"index": 0}));
        let (reason, stop) = match &answer.stop {
            Some(stop) => ("stop_sequence", json!(stop)),
            None => ("max_tokens", Value::Null),
        };
        let usage = json!({"input_tokens": answer.prompt, "output_tokens": answer.pieces.len()});
        self.event(
            "message_delta",
            json!({"delta": {"stop_reason": reason, "stop_sequence": stop}, "usage": usage}),
        );
        self.event("message_stop", json!({}));
        self.out
    }

    fn response(mut self, answer: &Answer) -> String {
        let number = self.engine.number;
        let part = |text: &str| json!({"type": "output_text", "text": text, "annotations": []});
        let item = |status: &str, content: &[Value]| {
            json!({
                "id": format!("msg_{number}"), "type": "message", "role": "assistant", "status": status, "content": content,
            })
        };
        let mut response = json!({
            "id": format!("resp_{number}"), "created_at": number, "model": format!("m{number}"),
            "status": "in_progress", "temperature": 1.0, "output": [], "usage": null, "incomplete_details": null,
        });
        self.event("response.created", json!({"response": response}));
        self.event("response.in_progress", json!({"response": response}));
        self.event(
            "response.output_item.added",
            json!({"output_index": 0, "item": item("in_progress", &[])}),
        );
        self.event("response.content_part.added", Self::in_text(json!({"part": part("")}), number));
        for piece in answer.pieces.iter().filter(|piece| !piece.is_empty()) {
            let event = Self::in_text(json!({"delta": piece, "logprobs": []}), number);
            self.event("response.output_text.delta", event);
        }
        let text = answer.pieces.concat();
        self.event(
            "response.output_text.done",
            Self::in_text(json!({"text": text, "logprobs": []}), number),
        );
        self.event(
            "response.content_part.done",
            Self::in_text(json!({"part": part(&text)}), number),
        );
        let item = item("completed", &[part(&text)]);
        self.event("response.output_item.done", json!({"output_index": 0, "item": item}));
        if answer.stop.is_none() {
            response["incomplete_details"] = json!({"reason": "max_output_tokens"});
        }
        response["status"] = json!(if answer.stop.is_some() { "completed" } else { "incomplete" });
        response["output"] = json!([item]);
        response["usage"] = json!({
            "input_tokens": answer.prompt, "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": answer.pieces.len(), "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": answer.prompt + answer.pieces.len(),
        });
        self.event("response.completed", json!({"response": response}));
        self.out
    }
}

/// What an engine generates for a request.
struct Answer {
    prompt: usize,
    pieces: Vec<String>,
    /// The stop string that has ended it; else its limit has.
    stop: Option<String>,
}

/// The whole stream of an engine.
fn whole(engine: Engine, form: StreamForm, body: &Value, tells: Tells) -> String {
    let chat = json!({"messages": [
        {"role": "system", "content": body["system"].as_str().or(body["instructions"].as_str()).unwrap()},
        {"role": "user", "content": body["messages"][0]["content"].as_str().or(body["input"].as_str()).unwrap()},
    ]});
    let prompt = engine.prompt(StreamForm::Chat, &chat);
    let limit = body["max_tokens"].as_u64().or(body["max_output_tokens"].as_u64()).unwrap();
    let stop = body["stop_sequences"][0].as_str().or(body["stop"].as_str());
    let (pieces, has_stopped) = engine.pieces(&prompt, limit as usize, stop);
    let stop = stop.filter(|_| has_stopped).map(str::to_owned);
    let answer = Answer { prompt: engine.count(&prompt), pieces, stop };
    let events = EventsOf { engine, form, out: String::new(), number: 0 };
    match form {
        StreamForm::Messages => events.message(&answer, tells),
        _ => events.response(&answer),
    }
}

fn body(form: StreamForm, text: &str, limit: usize, stop: Option<&str>) -> Value {
    let mut body = match form {
        StreamForm::Messages => json!({
            "system": "s", "messages": [{"role": "user", "content": text}], "max_tokens": limit, "stream": true,
        }),
        _ => {
            json!({"instructions": "s", "input": text, "max_output_tokens": limit, "stream": true})
        }
    };
    if let Some(stop) = stop {
        match form {
            StreamForm::Messages => body["stop_sequences"] = json!([stop]),
            _ => body["stop"] = json!(stop),
        }
    }
    body
}

/// One client and its engines.
struct Case {
    form: StreamForm,
    maker: Maker,
    body: Value,
    tells: Tells,
    /// By their number and the request: most breaks lead to the same one.
    answers: HashMap<String, Vec<u8>>,
}

impl Case {
    fn new(form: StreamForm, maker: Maker, body: Value, tells: Tells) -> Self {
        Self { form, maker, body, tells, answers: HashMap::new() }
    }

    fn whole(&self) -> String {
        whole(Engine { maker: self.maker, number: 0 }, self.form, &self.body, self.tells)
    }

    /// What the client gets if its engines break after so many bytes, one after another.
    fn broken(&mut self, breaks: &[usize]) -> Result<String, NotContinued> {
        let request = Bytes::from(self.body.to_string());
        let mut sent = SentText::new(self.form);
        let mut seam: Option<Seam> = None;
        let mut next = self.body.clone();
        let mut out = Vec::new();
        for (number, most) in breaks.iter().copied().chain([usize::MAX]).enumerate() {
            let engine = Engine { maker: self.maker, number: number as u64 };
            let is_chat = next.get("stream_options").is_some();
            let stream = self.answers.entry(format!("{number} {next}")).or_insert_with(|| {
                if is_chat {
                    engine.stream(StreamForm::Chat, &next)
                } else {
                    whole(engine, self.form, &next, self.tells).into_bytes()
                }
            });
            for chunk in stream[..stream.len().min(most)].chunks(48 + (most ^ 37) % 331) {
                let mut chunk = Bytes::copy_from_slice(chunk);
                if let Some(seam) = &mut seam {
                    let passed = seam.pass(chunk, &mut VecDeque::new());
                    if let Some(Stop::NotContinued(why)) = passed.stop {
                        return Err(why);
                    }
                    chunk = passed.bytes;
                }
                let passed = sent.pass(chunk, &mut VecDeque::new());
                assert_eq!(passed.stop, None, "{}", String::from_utf8_lossy(&passed.bytes));
                out.extend_from_slice(&passed.bytes);
            }
            sent.rest();
            match sent.progress() {
                Progress::Ended => break,
                Progress::Finished { .. } if sent.has_counts() => {
                    out.extend_from_slice(sent.last_event());
                    break;
                }
                _ => {}
            }
            let continuing = continued(&request, &sent)?;
            seam = Seam::after(&sent, &continuing);
            next = serde_json::from_slice(&continuing.body).unwrap();
        }
        Ok(String::from_utf8(out).unwrap())
    }

    #[track_caller]
    fn assert_unbroken(&mut self, breaks: &[usize]) {
        let whole = self.whole();
        let found =
            self.broken(breaks).unwrap_or_else(|why| panic!("{why:?} at {breaks:?} of {whole}"));
        let first_event = whole.find(&self.maker.line.repeat(2)).unwrap();
        let [found, expected] =
            [&found, &whole].map(|stream| events(stream, breaks[0] < first_event + 4));
        let differs = found.iter().zip(&expected).find(|(found, expected)| found != expected);
        let is_same = found == expected;
        let lengths = [found.len(), expected.len()];
        assert!(is_same, "broken at {breaks:?}, {}: {differs:#?}, {lengths:?}", self.body);
    }
}

/// The names and the data of the events; without what names the engine, if that may be another.
fn events(stream: &str, is_unnamed: bool) -> Vec<(String, Value)> {
    let stream = stream.replace("\r\n", "\n");
    let mut events = Vec::new();
    for event in stream.split_terminator("\n\n") {
        let (name, data) = event.split_once("\ndata: ").unwrap();
        let mut data = data.to_owned();
        if is_unnamed {
            for number in 0..4 {
                for named in ["\"msg_N\"", "\"resp_N\"", "\"mN\"", "\"created_at\":N"] {
                    data = data.replace(&named.replace('N', &number.to_string()), named);
                }
            }
            data = data.replace("\"created_at\":N", "\"created_at\":0");
        }
        events.push((name.to_owned(), serde_json::from_str(&data).unwrap()));
    }
    events
}

const FORMS: [StreamForm; 2] = [StreamForm::Messages, StreamForm::Responses];

#[test]
fn a_message_or_response_broken_at_any_byte_has_the_events_of_one_engine() {
    // Each eighth byte, of each stream other ones; all in the long run.
    let step = if std::env::var_os("WORNPATH_THOROUGH").is_some() { 1 } else { 8 };
    let mut breaks = 0;
    for form in FORMS {
        for (maker, tells) in
            [(WORDS, Tells::Prompt), (SGLANG, Tells::Nothing), (LETTERS, Tells::Prompt)]
        {
            for (text, limit) in [("more \"and\" ", 5), ("again", 14), ("and", 28)] {
                let mut case = Case::new(form, maker, body(form, text, limit, None), tells);
                let length = case.whole().len();
                for at in (breaks % step..length).step_by(step) {
                    breaks += 1;
                    case.assert_unbroken(&[at]);
                }
            }
        }
    }
    println!("{breaks} breaks");
    assert!(breaks >= 60_000 / step, "{breaks}");
}

#[test]
fn a_message_or_response_may_break_again_and_again() {
    for form in FORMS {
        let mut case = Case::new(form, WORDS, body(form, "often", 24, None), Tells::Prompt);
        for first in (0..case.whole().len()).step_by(211) {
            for second in (0..5000).step_by(307) {
                case.assert_unbroken(&[first, second, 700 + second / 2]);
            }
        }
    }
}

#[test]
fn a_stop_string_across_a_break_ends_a_message_or_response() {
    let mut stopped = 0;
    for form in FORMS {
        for stop in ["abc", "ca", "bbb", "c"] {
            for text in ["once", "three times", "four"] {
                let mut case =
                    Case::new(form, LETTERS, body(form, text, 24, Some(stop)), Tells::Prompt);
                let whole = case.whole();
                let is_stopped = !whole.contains("max_");
                stopped += usize::from(is_stopped);
                let last_piece = whole
                    .rfind("\"text_delta\"")
                    .or(whole.rfind("\"response.output_text.delta\""))
                    .unwrap_or(0);
                let text_end = last_piece + whole[last_piece..].find("\n\n").unwrap() + 2;
                let counts = whole.rfind("\"message_delta\"").unwrap_or(whole.len());
                let counts_end = counts + whole[counts..].find("\n\n").unwrap_or(0) + 2;
                for at in (0..whole.len()).step_by(11) {
                    // Whether a stop string ended the text is not known where that was lost, nor
                    // how many tokens the engine had held back.
                    let is_lost = (text_end..counts_end).contains(&at);
                    match case.broken(&[at]) {
                        _ if is_lost && !is_stopped => {}
                        Err(NotContinued::Field) if is_lost => {}
                        Err(why) => panic!("{why:?} at {at} of {whole}"),
                        Ok(_) => case.assert_unbroken(&[at]),
                    }
                }
            }
        }
    }
    assert!(stopped > 10, "{stopped} streams were stopped");
}

/// A chat with anything but the text that goes on is not relayed.
#[test]
fn a_chat_that_does_not_go_on_ends_the_stream() {
    let request = body(StreamForm::Messages, "x", 9, None);
    let case = Case::new(StreamForm::Messages, WORDS, request, Tells::Prompt);
    let whole = case.whole();
    let at = whole.find("text_delta").unwrap();
    let begun = at + whole[at..].find("\n\n").unwrap() + 2;
    let diverged = Some(Stop::NotContinued(NotContinued::Diverged));
    for event in [
        r#"{"choices":[{"delta":{"reasoning_content":"x"}}]}"#,
        r#"{"choices":[{"delta":{"tool_calls":[{"index":0}]}}]}"#,
        "[DONE]",
    ] {
        let mut sent = SentText::new(StreamForm::Messages);
        sent.pass(Bytes::from(whole[..begun].to_owned()), &mut VecDeque::new());
        let continuing = continued(&case.body.to_string().into(), &sent).unwrap();
        let mut seam = Seam::after(&sent, &continuing).unwrap();
        let passed = seam.pass(format!("data: {event}\n\n").into(), &mut VecDeque::new());
        assert_eq!((passed.stop, passed.bytes.len()), (diverged, 0), "{event}");
    }
}
