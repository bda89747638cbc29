//! The seam: turns the stream of the engine that continues into the rest of the first one.
//!
//! The events keep their bytes, but for what names the stream and for the token counts. Text that
//! the client has already is cut off; if the engine generated another text, the seam would show,
//! and the stream ends.

use super::chat_event::{ChatEvent, Replacement, replace};
use super::continued_body::{ContinuedBody, Lacks};
use super::event::{self, Choice, Chunk, Event, IDENTITY, Stop, StreamForm};
use super::framing::{EventBuffer, first_end};
use super::named_writer::{AnswerEnd, Counts, NamedWriter};
use super::reason::NotContinued;
use super::sent::{Identity, Passed, Progress, SentText};
use super::token_ids::{EventIds, join};
use super::written_text::decoded;
use bytes::Bytes;
use serde_json::Value;
use std::collections::VecDeque;
use std::ops::Range;
use wornpath_execution::{JsonScan, NotAnObject};

/// A longer event is none of text.
const MAX_EVENT_BYTES: usize = 1 << 20;

/// Rewrites the events of an engine that continues a stream.
#[derive(Debug)]
pub(super) struct Seam {
    /// The form in which this engine answers.
    form: StreamForm,
    /// The client's, if that is another one.
    chat: Option<ChatEvent>,
    /// Writes named events, if the client gets those.
    named: Option<NamedWriter>,
    /// Token ids of events that did not pass: those of the next event begin with them.
    again_ids: Vec<u8>,
    buffer: EventBuffer,
    identity: Identity,
    has_opening: bool,
    /// Text that must come first, and that the client has.
    overlap: String,
    /// Tokens of the answer that are in the prompt of this engine.
    resent: u64,
    /// Tokens that the client has.
    tokens: u64,
    /// Tokens that this engine generates again, at first.
    again: u64,
    lacks: Lacks,
}

impl Seam {
    /// The seam after what was sent; none if nothing was.
    pub(super) fn after(sent: &SentText, continued: &ContinuedBody) -> Option<Self> {
        if sent.progress() == Progress::Unnamed {
            return None;
        }
        let ContinuedBody { resent, lacks, .. } = continued;
        let is_completion = resent.ids.is_some();
        let named = sent.named().map(|stream| {
            let end = if continued.has_all_tokens { AnswerEnd::Limit } else { AnswerEnd::Turn };
            NamedWriter::after(stream, sent.text(), end)
        });
        let form = match (is_completion, &named) {
            (true, _) => StreamForm::Completion,
            (false, Some(_)) => StreamForm::Chat,
            (false, None) => sent.form(),
        };
        Some(Self {
            form,
            named,
            chat: if is_completion { ChatEvent::of(sent) } else { None },
            again_ids: Vec::new(),
            buffer: EventBuffer::default(),
            identity: sent.identity().clone(),
            has_opening: sent.has_opening(),
            overlap: resent.overlap.clone(),
            resent: resent.tokens,
            tokens: sent.tokens(),
            again: sent.tokens().saturating_sub(resent.tokens),
            lacks: *lacks,
        })
    }

    /// The next bytes of the engine, as the client gets them; `ids` become those of the events that
    /// pass.
    pub(super) fn pass(&mut self, data: Bytes, ids: &mut VecDeque<EventIds>) -> Passed {
        let bytes = self.buffer.whole(data);
        let mut out = Vec::with_capacity(bytes.len());
        let mut rest = &bytes[..];
        let mut found = std::mem::take(ids);
        while let Some(end) = first_end(rest) {
            let (event, later) = rest.split_at(end);
            rest = later;
            let before = out.len();
            if let Err(stop) = self.event(event, &mut out) {
                return Passed { bytes: out.into(), stop: Some(stop) };
            }
            if let Some(found) = found.pop_front() {
                let has_passed = out.len() > before;
                ids.extend(self.ids_of(found, has_passed));
            }
        }
        let is_endless = self.buffer.len() > MAX_EVENT_BYTES;
        let stop = is_endless.then_some(Stop::NotContinued(NotContinued::Diverged));
        Passed { bytes: out.into(), stop }
    }

    /// The token ids of an event that passes, with those of events before it that did not.
    fn ids_of(&mut self, mut found: EventIds, has_passed: bool) -> Option<EventIds> {
        if let (Some(answer), Lacks::Text) = (&found.answer, self.lacks) {
            join(&mut self.again_ids, answer);
            found.answer = Some(std::mem::take(&mut self.again_ids).into());
        } else if found.answer.is_some() {
            // A token that the client does not get.
            found.answer = Some(Box::default());
        }
        if has_passed {
            return Some(found);
        }
        self.again_ids = found.answer.unwrap_or_default().into();
        None
    }

    fn event(&mut self, event: &[u8], out: &mut Vec<u8>) -> Result<(), Stop> {
        let diverged = Stop::NotContinued(NotContinued::Diverged);
        let chunk = match event::read(event, self.form).map_err(|_| diverged)? {
            Event::Done if self.named.is_some() => {
                // It has come too early for a stream without counts.
                let has_ended = self.named.as_ref().is_some_and(NamedWriter::has_ended);
                return if has_ended { Ok(()) } else { Err(diverged) };
            }
            Event::Comment | Event::Done => {
                out.extend_from_slice(event);
                return Ok(());
            }
            Event::Failed(failure) => return Err(Stop::Failed(failure)),
            Event::Chunk(chunk) => chunk,
        };
        if self.named.is_some() {
            return self.named_chunk(event, &chunk, out).map_err(Stop::NotContinued);
        }
        let mut replacements = self.names(&chunk);
        if let Some(choice) = &chunk.choice {
            if choice.is_opening() && self.has_opening || !self.has_place_for(choice) {
                return Ok(());
            }
            let Some(text) = self.without_overlap(event, choice).map_err(Stop::NotContinued)?
            else {
                return Ok(());
            };
            if let Some(chat) = &self.chat {
                let text = text.as_ref().map(|(_, text)| &text[..]);
                chat.write(event, choice, text, out);
                return Ok(());
            }
            replacements.extend(text);
        }
        if let Some(usage) = chunk.usage {
            replacements.extend(self.usage(event, usage).map_err(|_| diverged)?);
        }
        replace(event, replacements, out);
        Ok(())
    }

    /// Writes what an event of the next engine's chat says as events with names.
    fn named_chunk(
        &mut self,
        event: &[u8],
        chunk: &Chunk,
        out: &mut Vec<u8>,
    ) -> Result<(), NotContinued> {
        if let Some(choice) = &chunk.choice
            && !choice.is_opening()
            && self.lacks != Lacks::Counts
        {
            let text = self.without_overlap(event, choice)?.map(|text| match text {
                Some((_, text)) => text,
                None => choice.text.clone().map(|at| event[at].to_vec()).unwrap_or_default(),
            });
            let Some(writer) = &mut self.named else { return Ok(()) };
            writer.text(&text.unwrap_or_default(), out);
            match (choice.is_last, self.lacks) {
                (true, Lacks::Text) => writer.finish(event, choice, out),
                (true, _) => writer.close(out),
                (false, _) => {}
            }
        }
        if let (Some(usage), Some(writer)) = (chunk.usage.clone(), &self.named) {
            let counts = self.named_counts(&event[usage], writer.prompt_tokens());
            let counts = counts.ok_or(NotContinued::Diverged)?;
            if let Some(writer) = &mut self.named {
                writer.counts(counts, out);
            }
        }
        Ok(())
    }

    /// The token counts of both engines. The prompt of the first, if it has told, shows how many
    /// tokens the second one has made of the text.
    fn named_counts(&self, usage: &[u8], prompt: Option<u64>) -> Option<Counts> {
        let usage: Value = serde_json::from_slice(usage).ok()?;
        let read = usage["prompt_tokens"].as_u64()?;
        let resent = prompt.map_or(self.resent, |prompt| read.saturating_sub(prompt));
        let prompt = prompt.unwrap_or_else(|| read.saturating_sub(self.resent));
        let answer = match self.lacks {
            Lacks::Text => usage["completion_tokens"].as_u64()? + resent,
            Lacks::End => self.tokens,
            Lacks::Counts => self.tokens.max(resent),
        };
        let cached = usage["prompt_tokens_details"]["cached_tokens"].as_u64();
        Some(Counts { prompt, answer, cached: cached.map(|cached| cached.min(prompt)) })
    }

    /// Whether the client lacks such an event.
    fn has_place_for(&self, choice: &Choice) -> bool {
        match self.lacks {
            Lacks::Text => true,
            Lacks::End => choice.is_last,
            Lacks::Counts => false,
        }
    }

    /// The names of the first stream.
    fn names(&self, chunk: &Chunk) -> Vec<Replacement> {
        let mut names = Vec::with_capacity(IDENTITY.len());
        for (value, at) in self.identity.iter().zip(&chunk.identity) {
            if let (Some(value), Some(at)) = (value, at) {
                names.push((at.clone(), value.to_vec()));
            }
        }
        names
    }

    /// Cuts off what the client has of the text; none if that is all of the event.
    fn without_overlap(
        &mut self,
        event: &[u8],
        choice: &Choice,
    ) -> Result<Option<Option<Replacement>>, NotContinued> {
        if let (Lacks::End, Some(at)) = (self.lacks, &choice.text) {
            return Ok(Some(Some((at.clone(), b"\"\"".to_vec()))));
        }
        if self.again == 0 && self.overlap.is_empty() || choice.is_opening() {
            return Ok(Some(None));
        }
        let is_needless = self.again > 0 && !choice.is_last;
        self.again = self.again.saturating_sub(1);
        if self.overlap.is_empty() {
            return Ok((!(is_needless && choice.is_empty())).then_some(None));
        }
        let text = match &choice.text {
            Some(at) => decoded(&event[at.start + 1..at.end - 1])?,
            None => String::new(),
        };
        if let (Some(rest), Some(at)) = (text.strip_prefix(&self.overlap), &choice.text) {
            self.overlap.clear();
            let text = Value::from(rest).to_string().into_bytes();
            return Ok((!(is_needless && rest.is_empty())).then(|| Some((at.clone(), text))));
        }
        match self.overlap.strip_prefix(&text) {
            Some(rest) if !choice.is_last => {
                self.overlap = rest.to_owned();
                Ok(None)
            }
            _ => Err(NotContinued::Diverged),
        }
    }

    /// The token counts of both engines: the prompt of the first, the answer of both.
    fn usage(&self, event: &[u8], at: Range<usize>) -> Result<Vec<Replacement>, NotAnObject> {
        let counts: Vec<_> = members(event, at)?;
        let number = |name: &str| {
            let (_, at) = counts.iter().find(|(known, _)| known == name)?;
            std::str::from_utf8(&event[at.clone()]).ok()?.parse::<u64>().ok()
        };
        let prompt = number("prompt_tokens").map(|tokens| tokens.saturating_sub(self.resent));
        let answer = number("completion_tokens").map(|tokens| match self.lacks {
            Lacks::Text => tokens + self.resent,
            Lacks::End | Lacks::Counts => self.tokens,
        });
        let mut replacements = Vec::new();
        for (name, at) in counts {
            let count = match name.as_str() {
                "prompt_tokens" => prompt,
                "completion_tokens" => answer,
                "total_tokens" => prompt.zip(answer).map(|(prompt, answer)| prompt + answer),
                "prompt_tokens_details" if event[at.start] == b'{' => {
                    replacements.extend(cached(event, at, prompt)?);
                    continue;
                }
                _ => None,
            };
            if let Some(count) = count {
                replacements.push((at, count.to_string().into_bytes()));
            }
        }
        Ok(replacements)
    }
}

/// No more tokens of the prompt were cached than it has.
fn cached(
    event: &[u8],
    at: Range<usize>,
    most: Option<u64>,
) -> Result<Option<Replacement>, NotAnObject> {
    let found = members(event, at)?.into_iter().find(|(name, _)| name == "cached_tokens");
    let Some(((_, at), most)) = found.zip(most) else { return Ok(None) };
    let tokens = std::str::from_utf8(&event[at.clone()]).ok().and_then(|text| text.parse().ok());
    Ok(tokens.filter(|tokens: &u64| *tokens > most).map(|_| (at, most.to_string().into_bytes())))
}

/// The members of an object, with the positions of their values.
fn members(event: &[u8], at: Range<usize>) -> Result<Vec<(String, Range<usize>)>, NotAnObject> {
    let mut members = Vec::new();
    JsonScan::new(event, at).object(|scan, name| {
        let name = name.decoded()?.into_owned();
        members.push((name, scan.skip()?));
        Ok(())
    })?;
    Ok(members)
}
