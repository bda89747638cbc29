//! Streams broken at every byte, continued by engines that are functions of their whole prompt: the
//! client must get what it would have got of one engine.

use super::event::{EngineFailure, Stop, StreamForm};
use super::reason::NotContinued;
use super::request::continued;
use super::seam::Seam;
use super::sent::{Progress, SentText};
use bytes::Bytes;
use serde_json::{Value, json};
use std::collections::{HashMap, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};

/// How an engine writes its events, and what its template does.
#[derive(Clone, Copy)]
pub(super) struct Maker {
    /// The tokens that it may generate.
    pub(super) words: &'static [&'static str],
    /// Members after the choices.
    pub(super) after: &'static str,
    /// Members of a choice after the text.
    pub(super) in_choice: &'static str,
    /// Whether the last message loses the blanks at its end.
    pub(super) trims: bool,
    /// Whether the last event has no token.
    pub(super) ends_apart: bool,
    pub(super) line: &'static str,
}

const EMOJI: &str = "\u{1f600}";

pub(super) const VLLM: Maker = Maker {
    words: &[" word", " and", "\n", "\"", " \\", "é", EMOJI, "\t", ",", " "],
    after: r#","service_tier":null,"system_fingerprint":"vllm-0.32","prompt_token_ids":null"#,
    in_choice: r#","stop_reason":null,"token_ids":null"#,
    trims: true,
    ends_apart: false,
    line: "\n",
};

pub(super) const SGLANG: Maker = Maker {
    words: &[" a", " b", " c", ".", "\n", "!"],
    after: "",
    in_choice: r#","matched_stop":null"#,
    trims: false,
    ends_apart: true,
    line: "\r\n",
};

/// Every token is a letter.
pub(super) const LETTERS: Maker =
    Maker { words: &["a", "b", "c"], trims: false, ends_apart: false, ..VLLM };

/// An engine.
#[derive(Clone, Copy)]
pub(super) struct Engine {
    pub(super) maker: Maker,
    pub(super) number: u64,
}

impl Engine {
    /// The stream that answers a request.
    pub(super) fn stream(&self, form: StreamForm, body: &Value) -> Vec<u8> {
        let prompt = self.prompt(form, body);
        let limit =
            ["max_completion_tokens", "max_tokens"].iter().find_map(|it| body[*it].as_u64());
        let limit = limit.unwrap_or(16) as usize;
        let stop = body["stop"].as_str().or(body["stop"][0].as_str());
        let (pieces, has_stopped) = self.pieces(&prompt, limit, stop);
        let reason = if has_stopped { "stop" } else { "length" };
        let mut out = String::new();
        if form == StreamForm::Chat {
            self.event(form, Some((r#""role":"assistant","content":"""#, None)), None, &mut out);
        }
        let last = pieces.len() - 1;
        for (at, piece) in pieces.iter().enumerate() {
            let ends = at == last && !self.maker.ends_apart;
            self.text(form, piece, ends.then_some(reason), &mut out);
        }
        if self.maker.ends_apart {
            self.text(form, "", Some(reason), &mut out);
        }
        if let Some(stop) = stop.filter(|_| has_stopped) {
            for name in ["stop_reason", "matched_stop"] {
                let member = format!(r#""{name}":null"#);
                if let Some(at) = out.rfind(&member) {
                    out.replace_range(at..at + member.len(), &format!(r#""{name}":"{stop}""#));
                }
            }
        }
        if body["stream_options"]["include_usage"] == true {
            let prompt = self.count(&prompt);
            let answer = pieces.len();
            let usage = format!(
                r#""usage":{{"prompt_tokens":{prompt},"total_tokens":{},"completion_tokens":{answer}}}"#,
                prompt + answer
            );
            self.event(form, None, Some(&usage), &mut out);
        }
        out.push_str("data: [DONE]");
        out.push_str(self.maker.line);
        out.push_str(self.maker.line);
        out.into_bytes()
    }

    fn text(&self, form: StreamForm, text: &str, reason: Option<&str>, out: &mut String) {
        let text = Value::from(text);
        let member = match form {
            StreamForm::Completion => format!(r#""text":{text}"#),
            _ => format!(r#""content":{text}"#),
        };
        self.event(form, Some((&member, reason)), None, out);
    }

    fn event(
        &self,
        form: StreamForm,
        choice: Option<(&str, Option<&str>)>,
        usage: Option<&str>,
        out: &mut String,
    ) {
        let choice = choice.map_or_else(String::new, |(member, reason)| {
            let reason = reason.map_or("null".to_owned(), |reason| format!("\"{reason}\""));
            let member = match form {
                StreamForm::Completion => member.to_owned(),
                _ => format!(r#""delta":{{{member}}}"#),
            };
            format!(
                r#"{{"index":0,{member},"logprobs":null,"finish_reason":{reason}{}}}"#,
                self.maker.in_choice
            )
        });
        let usage = usage.map_or_else(String::new, |usage| format!(",{usage}"));
        let Self { maker: Maker { after, line, .. }, number } = self;
        out.push_str(&format!(
            r#"data: {{"id":"cmpl-{number}","object":"chunk","created":{number},"model":"m{number}","choices":[{choice}]{after}{usage}}}{line}{line}"#
        ));
    }

    pub(super) fn count(&self, text: &str) -> usize {
        let has_letters = self.maker.words.iter().all(|word| word.len() == 1);
        if has_letters { text.chars().count() } else { tokens(text) }
    }

    /// The prompt as a template renders it.
    pub(super) fn prompt(&self, form: StreamForm, body: &Value) -> String {
        if form == StreamForm::Completion {
            return body["prompt"].as_str().unwrap().to_owned();
        }
        let mut prompt = String::new();
        let messages = body["messages"].as_array().unwrap();
        for message in messages {
            let role = message["role"].as_str().unwrap();
            let content = message["content"].as_str().unwrap();
            let content = if self.maker.trims { content.trim_end() } else { content };
            prompt.push_str(&format!("<{role}>{content}"));
        }
        if body["continue_final_message"] == true {
            assert_eq!(body["add_generation_prompt"], false);
            assert_eq!(messages.last().unwrap()["role"], "assistant");
        } else {
            prompt.push_str("<assistant>");
        }
        prompt
    }

    /// The text that each token shows, and whether a stop string ended it.
    pub(super) fn pieces(
        &self,
        prompt: &str,
        limit: usize,
        stop: Option<&str>,
    ) -> (Vec<String>, bool) {
        let mut prefix = prompt.to_owned();
        let mut pieces = Vec::new();
        let mut shown = 0;
        let held = stop.map_or(0, |stop| stop.chars().count() - 1);
        while pieces.len() < limit {
            let mut hasher = DefaultHasher::new();
            prefix.hash(&mut hasher);
            let word = self.maker.words[(hasher.finish() % self.maker.words.len() as u64) as usize];
            // A character beyond the basic plane takes three tokens, of which the last shows it.
            let is_emoji = word == EMOJI && pieces.len() + 3 <= limit;
            let word = if word == EMOJI && !is_emoji { "é" } else { word };
            if is_emoji {
                pieces.extend([String::new(), String::new()]);
            }
            prefix.push_str(word);
            let text = &prefix[prompt.len()..];
            if let Some(at) = stop.and_then(|stop| text.find(stop)) {
                pieces.push(text[shown.min(at)..at].to_owned());
                return (pieces, true);
            }
            let back = if pieces.len() + 1 == limit { 0 } else { held };
            let end = text.len().saturating_sub(back).max(shown);
            pieces.push(text[shown..end].to_owned());
            shown = end;
        }
        (pieces, false)
    }
}

/// The tokens of a text: a word with the blank before it, or a single character.
fn tokens(text: &str) -> usize {
    let mut tokens = 0;
    let mut is_word = false;
    let mut was_blank = false;
    for character in text.chars() {
        let is_letter = character.is_ascii_alphabetic();
        let goes_on = is_letter && is_word || (is_letter || character == '\\') && was_blank;
        tokens += match character.len_utf8() {
            4 => 3,
            _ if goes_on => 0,
            _ => 1,
        };
        is_word = is_letter;
        was_blank = character == ' ';
    }
    tokens
}

/// The streams of engines by their number and the request: most breaks lead to the same request.
type Answers = HashMap<String, Vec<u8>>;

/// What a client gets if its engines break after so many bytes, one after another.
fn broken(
    form: StreamForm,
    maker: Maker,
    body: &Value,
    breaks: &[usize],
    answers: &mut Answers,
) -> Result<String, NotContinued> {
    let request = Bytes::from(body.to_string());
    let mut sent = SentText::new(form);
    let mut seam: Option<Seam> = None;
    let mut next = body.clone();
    let mut out = Vec::new();
    for (number, most) in breaks.iter().copied().chain([usize::MAX]).enumerate() {
        let engine = Engine { maker, number: number as u64 };
        let key = format!("{number} {next}");
        let stream = answers.entry(key).or_insert_with(|| engine.stream(form, &next));
        let stream = &stream[..stream.len().min(most)];
        // In chunks of different sizes.
        for chunk in stream.chunks(48 + (most ^ 37) % 331) {
            let chunk = Bytes::copy_from_slice(chunk);
            let chunk = match &mut seam {
                None => chunk,
                Some(seam) => {
                    let passed = seam.pass(chunk, &mut VecDeque::new());
                    if let Some(Stop::NotContinued(why)) = passed.stop {
                        return Err(why);
                    }
                    passed.bytes
                }
            };
            let passed = sent.pass(chunk, &mut VecDeque::new());
            assert_eq!(passed.stop, None);
            out.extend_from_slice(&passed.bytes);
        }
        sent.rest();
        let asks = body["stream_options"]["include_usage"] == true && !sent.has_counts();
        match sent.progress() {
            Progress::Ended => break,
            Progress::Finished { .. } if !asks => {
                out.extend_from_slice(format!("data: [DONE]{0}{0}", maker.line).as_bytes());
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

/// A stream without the names of engines, which differ where nothing of the first one has passed.
pub(super) fn unnamed(stream: &str) -> String {
    (0..4).fold(stream.to_owned(), |stream, number| {
        stream
            .replace(&format!("cmpl-{number}"), "cmpl")
            .replace(&format!("\"created\":{number}"), "created")
            .replace(&format!("\"m{number}\""), "m")
    })
}

#[track_caller]
fn assert_same(found: &str, expected: &str, breaks: &[usize]) {
    let differs = found.lines().zip(expected.lines()).find(|(found, expected)| found != expected);
    let lines = [found, expected].map(|stream| stream.lines().count());
    let is_same = found == expected;
    assert!(is_same, "broken at {breaks:?}: {differs:#?}, {lines:?} lines of:\n{expected}");
}

fn bodies(form: StreamForm, text: &str) -> Vec<Value> {
    let prompt = match form {
        StreamForm::Completion => json!({"prompt": text}),
        _ => json!({"messages": [{"role": "user", "content": text}]}),
    };
    let shortest = if form == StreamForm::Chat { Some(5) } else { None };
    [shortest, Some(14), Some(28)]
        .into_iter()
        .flat_map(|limit| [true, false].map(|asks| (limit, asks)))
        .map(|(limit, asks)| {
            let mut body = prompt.clone();
            if let Some(limit) = limit {
                body["max_tokens"] = json!(limit);
            }
            if asks {
                body["stream_options"] = json!({"include_usage": true});
            }
            body
        })
        .collect()
}

#[test]
fn a_stream_broken_at_any_byte_is_the_same_for_its_client() {
    // Each third byte, of each stream other ones; all in the long run.
    let step = if std::env::var_os("WORNPATH_THOROUGH").is_some() { 1 } else { 3 };
    let mut breaks = 0;
    for form in [StreamForm::Chat, StreamForm::Completion] {
        for maker in [VLLM, SGLANG, LETTERS] {
            for text in ["more \"and\" "] {
                for body in bodies(form, text) {
                    let mut answers = Answers::new();
                    let whole = Engine { maker, number: 0 }.stream(form, &body);
                    let text = String::from_utf8(whole).unwrap();
                    let blank = maker.line.repeat(2);
                    let first_event = text.find(&blank).unwrap() + blank.len();
                    for at in (breaks % step..text.len()).step_by(step) {
                        breaks += 1;
                        let found = broken(form, maker, &body, &[at], &mut answers)
                            .unwrap_or_else(|why| panic!("{why:?} at {at} of {text}"));
                        if at < first_event {
                            assert_same(&unnamed(&found), &unnamed(&text), &[at]);
                        } else {
                            assert_same(&found, &text, &[at]);
                        }
                    }
                }
            }
        }
    }
    println!("{breaks} breaks");
    assert!(breaks >= 100_000 / step, "{breaks}");
}

#[test]
fn a_stream_may_break_again_and_again() {
    let mut answers = Answers::new();
    let body = &bodies(StreamForm::Chat, "often")[4];
    let whole = Engine { maker: VLLM, number: 0 }.stream(StreamForm::Chat, body);
    let whole = String::from_utf8(whole).unwrap();
    for first in (0..whole.len()).step_by(151) {
        for second in (0..3000).step_by(173) {
            let breaks = [first, second, 700 + second / 2];
            let found = broken(StreamForm::Chat, VLLM, body, &breaks, &mut answers).unwrap();
            assert_same(&unnamed(&found), &unnamed(&whole), &breaks);
        }
    }
}

#[test]
fn a_stop_string_across_a_break_ends_the_stream() {
    let mut stopped = 0;
    for form in [StreamForm::Chat, StreamForm::Completion] {
        for stop in ["abc", "ca", "bbb", "c"] {
            for text in ["once", "three times", "four"] {
                let mut body = bodies(form, text)[4].clone();
                body["stop"] = json!(stop);
                let mut answers = Answers::new();
                let whole = Engine { maker: LETTERS, number: 0 }.stream(form, &body);
                let whole = String::from_utf8(whole).unwrap();
                stopped += usize::from(whole.contains("\"stop\""));
                for at in (0..whole.len()).step_by(11) {
                    let found = broken(form, LETTERS, &body, &[at], &mut answers)
                        .unwrap_or_else(|why| panic!("{why:?} at {at} of {whole}"));
                    assert_same(&unnamed(&found), &unnamed(&whole), &[at]);
                }
            }
        }
    }
    assert!(stopped > 10, "{stopped} streams were stopped");
}

/// The stream of an engine that goes on with another text than the first one had.
#[test]
fn another_text_is_not_relayed() {
    let mut sent = SentText::new(StreamForm::Chat);
    let engine = Engine { maker: VLLM, number: 0 };
    let mut out = String::new();
    for text in ["a", " b", "\n\n"] {
        engine.text(StreamForm::Chat, text, None, &mut out);
    }
    assert!(sent.pass(out.into(), &mut VecDeque::new()).stop.is_none());
    let request = Bytes::from(bodies(StreamForm::Chat, "x")[0].to_string());
    let continuing = continued(&request, &sent).unwrap();
    let passed = |texts: &[&str], reason| {
        let mut seam = Seam::after(&sent, &continuing).unwrap();
        let mut out = String::new();
        let other = Engine { maker: VLLM, number: 1 };
        for text in texts {
            other.text(StreamForm::Chat, text, reason, &mut out);
        }
        let passed = seam.pass(out.into(), &mut VecDeque::new());
        (String::from_utf8(passed.bytes.to_vec()).unwrap(), passed.stop)
    };
    let mut expected = String::new();
    engine.text(StreamForm::Chat, "c", None, &mut expected);
    assert_eq!(passed(&["\n", "\nc"], None), (expected.clone(), None));
    assert_eq!(passed(&["\n\n", "c"], None), (expected.clone(), None));
    assert_eq!(passed(&["\n\nc"], None), (expected, None));
    let diverged = Some(Stop::NotContinued(NotContinued::Diverged));
    assert_eq!(passed(&["\n", "c"], None), (String::new(), diverged));
    assert_eq!(passed(&[" c"], None), (String::new(), diverged));
    assert_eq!(passed(&["\n"], Some("stop")), (String::new(), diverged));
    let mut seam = Seam::after(&sent, &continuing).unwrap();
    let thinking = r#"data: {"choices":[{"delta":{"reasoning_content":"x"}}]}"#;
    let stop = seam.pass(format!("{thinking}\n\n").into(), &mut VecDeque::new()).stop;
    assert_eq!(stop, diverged);
    let aborted = r#"data: {"choices":[{"delta":{},"finish_reason":"abort"}]}"#;
    let stop = seam.pass(format!("{aborted}\n\n").into(), &mut VecDeque::new()).stop;
    assert_eq!(stop, Some(Stop::Failed(EngineFailure::Aborted)));
}
