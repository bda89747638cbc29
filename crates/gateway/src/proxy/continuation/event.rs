//! One event of a chat or completion stream: where its text is, and whether it is anything else.
//!
//! Positions, not values: the seam replaces some of them in the engine's bytes and leaves the rest
//! as it is.

use super::reason::NotContinued;
use hyper::StatusCode;
use serde::de::IgnoredAny;
use std::ops::Range;
use wornpath_execution::{JsonScan, NotAnObject};

/// The forms of streams that can be continued.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum StreamForm {
    /// OpenAI's chat completions.
    Chat,
    /// OpenAI's completions.
    Completion,
    /// Anthropic's messages.
    Messages,
    /// OpenAI's responses.
    Responses,
}

/// The members that name a stream: they stay the same when it is continued.
pub(super) const IDENTITY: [&str; 5] = ["id", "object", "created", "model", "system_fingerprint"];

/// The members of a choice that say why the answer ended.
pub(super) const ENDING: [&str; 2] = ["finish_reason", "stop_reason"];

/// What an event is.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "one at a time, on the stack, and most are chunks")]
pub(super) enum Event {
    /// A comment.
    Comment,
    /// `[DONE]`
    Done,
    /// The engine failed.
    Failed(EngineFailure),
    /// A chunk of the answer.
    Chunk(Chunk),
}

/// How an engine failed while it went on answering.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum EngineFailure {
    /// It sent an error.
    Error(StatusCode),
    /// It aborted the request.
    Aborted,
}

/// Why a stream stops being one that is only relayed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Stop {
    /// The engine failed.
    Failed(EngineFailure),
    /// It cannot be continued.
    NotContinued(NotContinued),
}

/// A chunk, by positions in the event.
#[derive(Debug, Default)]
pub(super) struct Chunk {
    /// The values of [`IDENTITY`].
    pub(super) identity: [Option<Range<usize>>; IDENTITY.len()],
    /// The `usage` object.
    pub(super) usage: Option<Range<usize>>,
    /// The only choice; none in the event with the token counts.
    pub(super) choice: Option<Choice>,
}

/// The choice of a chunk.
#[derive(Debug, Default)]
pub(super) struct Choice {
    /// Its text, with quotes.
    pub(super) text: Option<Range<usize>>,
    /// Whether it has the role of a message.
    pub(super) has_role: bool,
    /// Whether it is the last one.
    pub(super) is_last: bool,
    /// Why the answer ended: the members that say so, and their values.
    pub(super) ending: [Option<Range<usize>>; ENDING.len()],
    /// What ended it, as SGLang says it.
    pub(super) matched_stop: Option<Range<usize>>,
}

impl Choice {
    /// Whether it says nothing but that a message begins.
    pub(super) fn is_opening(&self) -> bool {
        self.has_role && !self.is_last && self.is_empty()
    }

    /// Whether it has no text.
    pub(super) fn is_empty(&self) -> bool {
        self.text.as_ref().is_none_or(|text| text.len() <= 2)
    }
}

/// Reads an event.
///
/// # Errors
/// Why a stream with such an event cannot be continued.
pub(super) fn read(event: &[u8], form: StreamForm) -> Result<Event, NotContinued> {
    let Some(data) = payload(event)? else { return Ok(Event::Comment) };
    let json = &event[data.clone()];
    if json == b"[DONE]" {
        return Ok(Event::Done);
    }
    if serde_json::from_slice::<IgnoredAny>(json).is_err() {
        return Err(NotContinued::Field);
    }
    chunk(event, data, form).unwrap_or(Err(NotContinued::Field))
}

/// The position of the only `data` of an event of a chat; none if it is a comment.
fn payload(event: &[u8]) -> Result<Option<Range<usize>>, NotContinued> {
    data(event, |line| matches!(line, b"event: error" | b"event: error\r"))
}

/// The position of the only `data` of an event that may have a name; none if it is a comment.
pub(super) fn data_of(event: &[u8]) -> Result<Option<Range<usize>>, NotContinued> {
    data(event, |line| line.starts_with(b"event:"))
}

fn data(
    event: &[u8],
    is_name: impl Fn(&[u8]) -> bool,
) -> Result<Option<Range<usize>>, NotContinued> {
    let mut found = None;
    let mut at = 0;
    for line in event.split(|byte| *byte == b'\n') {
        let start = at;
        at += line.len() + 1;
        if let Some(value) = line.strip_prefix(b"data:") {
            let first = start + 5 + (value.len() - value.trim_ascii_start().len());
            let data = first..(first + value.trim_ascii().len());
            if found.replace(data).is_some() {
                return Err(NotContinued::Field);
            }
        } else if !matches!(line, b"" | b"\r" | [b':', ..]) && !is_name(line) {
            return Err(NotContinued::Field);
        }
    }
    Ok(found)
}

type Read<T> = Result<Result<T, NotContinued>, NotAnObject>;

fn chunk(event: &[u8], data: Range<usize>, form: StreamForm) -> Read<Event> {
    let mut chunk = Chunk::default();
    let mut choices = Vec::new();
    let mut error = None;
    JsonScan::new(event, data).object(|scan, name| {
        if name.is("choices") && scan.next_byte()? == b'[' {
            return scan.array(|scan| {
                choices.push(scan.skip()?);
                Ok(())
            });
        }
        let value = scan.skip()?;
        if name.is("usage") && event[value.start] == b'{' {
            chunk.usage = Some(value);
        } else if name.is("error") && !is_nothing(&event[value.clone()]) {
            error = Some(value);
        } else if let Some(at) = IDENTITY.iter().position(|field| name.is(field)) {
            chunk.identity[at] = Some(value);
        }
        Ok(())
    })?;
    if let Some(error) = error {
        return failure(event, error).map(|failure| failure.map(Event::Failed));
    }
    match &choices[..] {
        [] => {}
        [only] => match choice(event, only.clone(), form)? {
            Ok(Some(choice)) => chunk.choice = Some(choice),
            Ok(None) => return Ok(Ok(Event::Failed(EngineFailure::Aborted))),
            Err(why) => return Ok(Err(why)),
        },
        _ => return Ok(Err(NotContinued::Choices)),
    }
    Ok(Ok(Event::Chunk(chunk)))
}

/// An engine's error: of the engine, unless it has the status of an error of the request.
fn failure(event: &[u8], error: Range<usize>) -> Read<EngineFailure> {
    let mut status = StatusCode::INTERNAL_SERVER_ERROR;
    if event[error.start] == b'{' {
        JsonScan::new(event, error).object(|scan, name| {
            let value = scan.skip()?;
            if name.is("code")
                && let Ok(code) = StatusCode::from_bytes(&event[value])
            {
                status = code;
            }
            Ok(())
        })?;
    }
    if status.is_client_error() {
        return Ok(Err(NotContinued::Final));
    }
    Ok(Ok(EngineFailure::Error(status)))
}

/// The only choice of a chunk; none if it says that the request was aborted.
fn choice(event: &[u8], at: Range<usize>, form: StreamForm) -> Read<Option<Choice>> {
    let mut choice = Choice::default();
    let mut why = None;
    let mut is_aborted = false;
    let mut others = Vec::new();
    JsonScan::new(event, at).object(|scan, name| {
        if name.is("delta") && form == StreamForm::Chat && scan.next_byte()? == b'{' {
            return delta(scan, event, &mut choice, &mut why);
        }
        let range = scan.skip()?;
        let value = &event[range.clone()];
        if let Some(at) = ENDING.iter().position(|field| name.is(field)) {
            choice.ending[at] = Some(range.clone());
        }
        if name.is("matched_stop") {
            choice.matched_stop = Some(range.clone());
        }
        if name.is("text") && form == StreamForm::Completion && value[0] == b'"' {
            choice.text = Some(range);
        } else if name.is("finish_reason") && value != b"null" {
            choice.is_last = true;
            is_aborted = value == b"\"abort\"";
        } else if name.is("index") && value != b"0" {
            why = Some(NotContinued::Choices);
        } else if name.is("logprobs") && !is_nothing(value) {
            why = Some(NotContinued::Logprobs);
        } else if !name.is("index") && !is_nothing(value) {
            others.push(range);
        }
        Ok(())
    })?;
    // With the end of an answer engines say why it ended, such as the stop string that they found.
    if !others.is_empty() && !choice.is_last {
        why = why.or(Some(NotContinued::Field));
    }
    Ok(match why {
        Some(why) => Err(why),
        None => Ok((!is_aborted).then_some(choice)),
    })
}

fn delta<'a>(
    scan: &mut JsonScan<'a>,
    event: &[u8],
    choice: &mut Choice,
    why: &mut Option<NotContinued>,
) -> Result<(), NotAnObject> {
    scan.object(|scan, name| {
        let range = scan.skip()?;
        let value = &event[range.clone()];
        if name.is("content") && value[0] == b'"' {
            choice.text = Some(range);
        } else if is_nothing(value) {
        } else if name.is("role") {
            choice.has_role = true;
        } else if name.is("tool_calls") || name.is("function_call") {
            *why = Some(NotContinued::Tools);
        } else if name.is("reasoning_content") || name.is("reasoning") {
            *why = Some(NotContinued::Reasoning);
        } else {
            *why = Some(NotContinued::Field);
        }
        Ok(())
    })?;
    Ok(())
}

/// Whether a value says nothing.
pub(super) fn is_nothing(value: &[u8]) -> bool {
    matches!(value, b"null" | b"[]" | b"{}" | b"\"\"" | b"false")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chunk(event: &str) -> Chunk {
        match read(event.as_bytes(), StreamForm::Chat) {
            Ok(Event::Chunk(chunk)) => chunk,
            other => panic!("{event}: {other:?}"),
        }
    }

    #[test]
    fn the_text_is_found_however_an_engine_writes_the_rest() {
        for event in [
            r#"data: {"id":"a","choices":[{"index":0,"delta":{"content":"x"}}]}"#,
            r#"data:{"choices" : [ {"delta": {"role":null,"content":"x","tool_calls":[]}, "logprobs":null} ] }"#,
            "data: {\"choices\":[{\"delta\":{\"content\":\"x\",\"reasoning_content\":null},\"finish_reason\":null}]}\r\n\r\n",
        ] {
            let choice = chunk(event).choice.unwrap();
            assert_eq!(&event[choice.text.clone().unwrap()], "\"x\"", "{event}");
            assert!(!choice.is_last && !choice.is_opening(), "{event}");
        }
        let opening = r#"data: {"choices":[{"delta":{"role":"assistant","content":""}}]}"#;
        assert!(chunk(opening).choice.unwrap().is_opening());
        let last = r#"data: {"choices":[{"delta":{},"finish_reason":"stop","matched_stop":7}]}"#;
        assert!(chunk(last).choice.unwrap().is_last);
        let usage = r#"data: {"choices":[],"usage":{"prompt_tokens":3}}"#;
        assert!(chunk(usage).choice.is_none() && chunk(usage).usage.is_some());
    }

    #[test]
    fn what_cannot_be_continued_says_why() {
        for (choice, why) in [
            (r#"{"index":1,"delta":{"content":"x"}}"#, NotContinued::Choices),
            (r#"{"delta":{}},{"delta":{}}"#, NotContinued::Choices),
            (r#"{"delta":{"content":"x"},"logprobs":{"content":[1]}}"#, NotContinued::Logprobs),
            (r#"{"delta":{"reasoning_content":"x"}}"#, NotContinued::Reasoning),
            (r#"{"delta":{"reasoning":"x"}}"#, NotContinued::Reasoning),
            (r#"{"delta":{"tool_calls":[{"index":0}]}}"#, NotContinued::Tools),
            (r#"{"delta":{"audio":{"id":"x"}}}"#, NotContinued::Field),
            (r#"{"delta":{"content":"x"},"token_ids":[1]}"#, NotContinued::Field),
        ] {
            let event = format!("data: {{\"choices\":[{choice}]}}\n\n");
            let found = read(event.as_bytes(), StreamForm::Chat);
            assert_eq!(found.err(), Some(why), "{event}");
        }
        for event in ["data: {\"choices\":[", "event: x\ndata: {}", "data: {}\ndata: {}", "data: 3"]
        {
            let found = read(event.as_bytes(), StreamForm::Chat);
            assert_eq!(found.err(), Some(NotContinued::Field), "{event}");
        }
    }

    #[test]
    fn an_error_of_the_engine_is_a_failure_and_one_of_the_request_is_final() {
        let read = |text: &str| read(text.as_bytes(), StreamForm::Chat);
        let failed = |text| match read(text) {
            Ok(Event::Failed(failure)) => failure,
            other => panic!("{text}: {other:?}"),
        };
        let internal = EngineFailure::Error(StatusCode::INTERNAL_SERVER_ERROR);
        assert_eq!(failed(r#"data: {"error":{"message":"m","code":500}}"#), internal);
        assert_eq!(failed(r#"data: {"error":"died"}"#), internal);
        let aborted = r#"data: {"choices":[{"delta":{},"finish_reason":"abort"}]}"#;
        assert_eq!(failed(aborted), EngineFailure::Aborted);
        let found = read(r#"data: {"error":{"message":"m","code":400}}"#);
        assert_eq!(found.err(), Some(NotContinued::Final));
        assert!(matches!(read(": ping"), Ok(Event::Comment)));
        assert!(matches!(read("data: [DONE]\n\n"), Ok(Event::Done)));
    }
}
