//! What a client has got of a stream, as far as a continuation needs it: the text, the number of
//! its tokens, and what the stream is called.
//!
//! Parsing every event would cost more than relaying it. But the events of a stream differ in their
//! text only. So the first event with text is parsed, and what is before and after its text is
//! kept; later events are compared with that. The text is kept as it is written in JSON, which is
//! how the next engine gets it.

use super::event::{self, Chunk, Event, IDENTITY, Stop, StreamForm};
use super::framing::{EventBuffer, first_end};
use super::named_stream::{NamedEvent, NamedStream};
use super::reason::NotContinued;
use super::stop_strings::StopStrings;
use super::token_ids::{EventIds, SentIds};
use super::written_text::{decoded, written_end};
use bytes::Bytes;
use std::collections::VecDeque;

/// The ends of the text are known for so many events before the last one.
const KNOWN_ENDS: usize = 64;

/// The values of [`IDENTITY`] as the engine wrote them.
pub(super) type Identity = [Option<Box<[u8]>>; IDENTITY.len()];

/// How far a stream is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Progress {
    /// No event that names it has passed.
    Unnamed,
    /// The answer has begun.
    Begun,
    /// The last choice has passed, and the token counts may follow.
    Finished {
        /// Whether it ended at the limit of tokens.
        at_limit: bool,
    },
    /// The last event has passed.
    Ended,
}

/// What passes of some bytes.
#[derive(Debug)]
pub(super) struct Passed {
    /// The bytes for the client.
    pub(super) bytes: Bytes,
    /// What the event after them is.
    pub(super) stop: Option<Stop>,
}

/// What is around the text of an event.
#[derive(Clone, Debug)]
pub(super) struct Template {
    /// Up to the quote before it.
    pub(super) before: Box<[u8]>,
    /// From the quote after it on.
    pub(super) after: Box<[u8]>,
}

/// Where an answer was after one of its events.
#[derive(Clone, Copy, Debug)]
struct EventEnd {
    /// The end of its text.
    text: usize,
    /// Its tokens.
    tokens: u64,
    /// The end of their ids.
    ids: usize,
}

/// What was sent of a stream.
#[derive(Debug)]
pub(crate) struct SentText {
    form: StreamForm,
    /// The events of a stream in which they have names.
    named: Option<NamedStream>,
    buffer: EventBuffer,
    template: Option<Template>,
    /// As in JSON, without quotes.
    text: Vec<u8>,
    ends: VecDeque<EventEnd>,
    /// Events with a choice.
    events: u64,
    /// The ids of the tokens, or one for each event where they are not known.
    tokens: u64,
    /// Tokens that the client has beside those, which the next engine generates again.
    again: u64,
    /// Those before the first text.
    leading: u64,
    ids: SentIds,
    identity: Identity,
    has_opening: bool,
    has_counts: bool,
    progress: Progress,
}

/// What the next engine gets of the text, and what it must generate again.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Resent {
    /// As in JSON, without quotes.
    pub(super) text: Vec<u8>,
    /// The tokens of that.
    pub(super) tokens: u64,
    /// The rest of the text, which the client has.
    pub(super) overlap: String,
    /// Prompt and text as token ids, if they are resent as such.
    pub(super) ids: Option<ResentIds>,
}

/// Prompt and text as token ids.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct ResentIds {
    /// As an array.
    pub(super) prompt: Vec<u8>,
    /// Where those of the text end among all of the answer.
    end: usize,
}

impl SentText {
    pub(super) fn new(form: StreamForm) -> Self {
        Self {
            form,
            named: NamedStream::new(form),
            buffer: EventBuffer::default(),
            template: None,
            text: Vec::new(),
            ends: VecDeque::new(),
            events: 0,
            tokens: 0,
            again: 0,
            leading: 0,
            ids: SentIds::default(),
            identity: Identity::default(),
            has_opening: false,
            has_counts: false,
            progress: Progress::Unnamed,
        }
    }

    pub(super) const fn form(&self) -> StreamForm {
        self.form
    }

    pub(super) const fn progress(&self) -> Progress {
        self.progress
    }

    /// The tokens that the client has.
    pub(super) const fn tokens(&self) -> u64 {
        self.tokens + self.again
    }

    /// Whether the event that begins a message has passed.
    pub(super) const fn has_opening(&self) -> bool {
        self.has_opening
    }

    /// Whether the event with the token counts has passed.
    pub(super) const fn has_counts(&self) -> bool {
        self.has_counts
    }

    pub(super) const fn identity(&self) -> &Identity {
        &self.identity
    }

    /// The form of its events with text, once one has passed.
    pub(super) const fn template(&self) -> Option<&Template> {
        self.template.as_ref()
    }

    /// The events of a stream in which they have names.
    pub(super) const fn named(&self) -> Option<&NamedStream> {
        self.named.as_ref()
    }

    /// The text as it is written in JSON, without quotes.
    pub(super) fn text(&self) -> &[u8] {
        &self.text
    }

    /// The last event of its form.
    pub(super) const fn last_event(&self) -> &'static [u8] {
        match self.form {
            StreamForm::Messages => b"event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n",
            _ => b"data: [DONE]\n\n",
        }
    }

    /// The bytes that it keeps, but for those that it can do without.
    pub(super) fn len(&self) -> usize {
        // The end of a response repeats its text, which is kept for that.
        let times = if self.form == StreamForm::Responses { 2 } else { 1 };
        let named = self.named.as_ref().map_or(0, NamedStream::len);
        times * (self.text.len() + named) + self.buffer.len()
    }

    /// The bytes of token ids that it keeps.
    pub(super) fn ids_len(&self) -> usize {
        self.ids.len()
    }

    /// Forgets the token ids.
    pub(super) fn lose_ids(&mut self) {
        self.ids.lose();
    }

    /// The next bytes of the stream, and the token ids of its events.
    pub(super) fn pass(&mut self, data: Bytes, ids: &mut VecDeque<EventIds>) -> Passed {
        let bytes = self.buffer.whole(data);
        let mut at = 0;
        while let Some(end) = first_end(&bytes[at..]) {
            match self.event(&bytes[at..at + end], ids.pop_front().as_ref()) {
                Ok(()) => at += end,
                Err(stop @ Stop::Failed(_)) => {
                    self.buffer.rest();
                    return Passed { bytes: bytes.slice(..at), stop: Some(stop) };
                }
                Err(stop @ Stop::NotContinued(_)) => {
                    let bytes = [&bytes[..], &self.buffer.rest()].concat().into();
                    return Passed { bytes, stop: Some(stop) };
                }
            }
        }
        Passed { bytes, stop: None }
    }

    /// The beginning of an event that has not come to its end.
    pub(super) fn rest(&mut self) -> Bytes {
        self.buffer.rest()
    }

    fn event(&mut self, event: &[u8], ids: Option<&EventIds>) -> Result<(), Stop> {
        if let Some(named) = &mut self.named {
            let read = named.read(event)?;
            self.named_event(event, &read);
            return Ok(());
        }
        if let Some(ids) = ids {
            self.ids.begin(ids);
        }
        if self.progress == Progress::Begun
            && let Some(text) = self.template.as_ref().and_then(|template| template.text_of(event))
        {
            self.text.extend_from_slice(text);
            self.count(text.is_empty(), ids);
            return Ok(());
        }
        match event::read(event, self.form).map_err(Stop::NotContinued)? {
            Event::Comment => {}
            Event::Done => self.progress = Progress::Ended,
            Event::Failed(failure) => return Err(Stop::Failed(failure)),
            Event::Chunk(chunk) => self.chunk(event, &chunk, ids)?,
        }
        Ok(())
    }

    fn named_event(&mut self, event: &[u8], read: &NamedEvent) {
        if let NamedEvent::Text(at) = read {
            self.text.extend_from_slice(&event[at.start + 1..at.end - 1]);
            if at.len() > 2 {
                self.count(false, None);
            }
        }
        let Some(named) = &self.named else { return };
        self.has_counts = named.has_counts();
        self.progress = if named.has_ended() {
            Progress::Ended
        } else if named.is_closed() {
            Progress::Finished { at_limit: false }
        } else if named.has_begun() {
            Progress::Begun
        } else {
            Progress::Unnamed
        };
    }

    fn chunk(&mut self, event: &[u8], chunk: &Chunk, ids: Option<&EventIds>) -> Result<(), Stop> {
        if self.progress == Progress::Unnamed {
            self.progress = Progress::Begun;
            for (value, at) in self.identity.iter_mut().zip(&chunk.identity) {
                *value = at.clone().map(|at| event[at].into());
            }
        }
        let Some(choice) = &chunk.choice else {
            self.has_counts |= chunk.usage.is_some();
            return Ok(());
        };
        if self.progress != Progress::Begun {
            return Err(Stop::NotContinued(NotContinued::Field));
        }
        if choice.is_opening() {
            self.has_opening = true;
            return Ok(());
        }
        if let Some(at) = &choice.text {
            self.text.extend_from_slice(&event[at.start + 1..at.end - 1]);
            if !choice.is_last {
                self.template = Some(Template {
                    before: event[..=at.start].into(),
                    after: event[at.end - 1..].into(),
                });
            }
        }
        let at_limit = choice.is_last && memchr::memmem::find(event, b"\"length\"").is_some();
        // An end without text is the token that ended the answer, unless its limit did.
        let has_ids = ids.is_some_and(|ids| ids.answer.is_some());
        if has_ids || !(at_limit && choice.is_empty()) {
            self.count(choice.is_empty(), ids);
        }
        if choice.is_last {
            self.progress = Progress::Finished { at_limit };
        }
        Ok(())
    }

    fn count(&mut self, is_empty: bool, ids: Option<&EventIds>) {
        let tokens = self.ids.add(ids);
        self.events += 1;
        self.tokens += tokens;
        self.again = 0;
        if is_empty && self.text.is_empty() {
            self.leading += tokens;
        }
        if self.ends.len() == KNOWN_ENDS {
            self.ends.pop_front();
        }
        let end = EventEnd { text: self.text.len(), tokens: self.tokens, ids: self.ids.end() };
        self.ends.push_back(end);
    }

    /// What the next engine gets as token ids; none if they are not known, or do not do.
    ///
    /// Without a template no text was sent. An engine that holds text back generates it again only
    /// from the text that it was held back for.
    pub(super) fn resent_ids(&self, stops: &StopStrings) -> Option<Resent> {
        if stops.held_back() > 0 || !self.ids.are_known() {
            return None;
        }
        let text = decoded(&self.text).ok()?;
        let end = if let Progress::Finished { .. } = self.progress {
            EventEnd { text: self.text.len(), tokens: self.tokens, ids: self.ids.end() }
        } else {
            let most = written_end(&self.text, text.len() - stops.begun(&text));
            self.last_shown(most)?
        };
        let overlap = decoded(&self.text[end.text..]).ok()?;
        let prompt = self.ids.prompt_of(end.ids)?;
        Some(Resent {
            text: self.text[..end.text].to_owned(),
            tokens: end.tokens,
            overlap,
            ids: Some(ResentIds { prompt, end: end.ids }),
        })
    }

    /// The last event with text up to `most`: what those without text begin was not sent.
    fn last_shown(&self, most: usize) -> Option<EventEnd> {
        for (at, end) in self.ends.iter().enumerate().rev() {
            let before = if at == 0 { 0 } else { self.ends[at - 1].text };
            if end.text <= most && before < end.text {
                return Some(*end);
            }
        }
        None
    }

    /// The next engine generates what follows `resent`.
    pub(super) fn continued_after(&mut self, resent: &Resent) {
        let end = match &resent.ids {
            Some(ids) => ids.end,
            None if resent.text.is_empty() => 0,
            None => {
                // The next engine makes other tokens of the text.
                self.ids.lose();
                return;
            }
        };
        if !self.ids.are_known() {
            return;
        }
        self.ids.cut(end);
        self.again += self.tokens - resent.tokens;
        self.tokens = resent.tokens;
        while self.ends.back().is_some_and(|end| end.tokens > resent.tokens) {
            self.ends.pop_back();
        }
    }

    /// What the next engine gets of the text.
    ///
    /// # Errors
    /// If the text is none, or more of it would have to be generated again than is known.
    pub(super) fn resent(&self, stops: &StopStrings) -> Result<Resent, NotContinued> {
        let text = decoded(&self.text)?;
        let is_finished = matches!(self.progress, Progress::Finished { .. });
        let kept = match self.form {
            // A template may cut off blanks at the end of a message.
            StreamForm::Completion => text.len(),
            _ => text.trim_end().len(),
        };
        let begun = if is_finished { 0 } else { stops.begun(&text) };
        let end = kept.min(text.len() - begun);
        let at = written_end(&self.text, end);
        let tokens = self.tokens_of(&text[..end], at, stops)?;
        let overlap = if is_finished { String::new() } else { text[end..].to_owned() };
        Ok(Resent { text: self.text[..at].to_owned(), tokens, overlap, ids: None })
    }

    /// The tokens of the first part of the text, which ends at `at` as it is written.
    fn tokens_of(&self, text: &str, at: usize, stops: &StopStrings) -> Result<u64, NotContinued> {
        if text.is_empty() {
            return Ok(0);
        }
        let held = match self.progress {
            Progress::Finished { at_limit: true } => 0,
            // Events without text, which would count the tokens held back, are not sent.
            _ if self.named.is_some() => 0,
            _ => stops.held_back(),
        };
        if held == 0 {
            // Not those without text: what they begin was not sent.
            let ends = self.ends.iter().enumerate().rev();
            let before = |number: usize| if number == 0 { 0 } else { self.ends[number - 1].text };
            let mut shown = ends.filter(|(number, end)| end.text <= at && before(*number) < at);
            if let Some((_, end)) = shown.next() {
                return Ok(end.tokens);
            }
            let all_known = self.events as usize <= KNOWN_ENDS;
            return if all_known { Ok(0) } else { Err(NotContinued::Overlap) };
        }
        let length = text.chars().count();
        if length < held {
            return Ok(self.leading * length as u64 / held as u64);
        }
        let shown: String = text.chars().take(length - held).collect();
        let shown = written_end(&self.text, shown.len());
        match self.ends.iter().rev().find(|end| end.text <= shown) {
            Some(end) => Ok(end.tokens),
            None if self.ends.len() == KNOWN_ENDS => Err(NotContinued::Overlap),
            None => Ok(0),
        }
    }
}

impl Template {
    /// The text of an event that is like this one but for its text.
    fn text_of<'a>(&self, event: &'a [u8]) -> Option<&'a [u8]> {
        let text = event.strip_prefix(&*self.before)?.strip_suffix(&*self.after)?;
        let mut rest = text;
        while let Some(at) = memchr::memchr3(b'"', b'\\', b'\n', rest) {
            if rest[at] != b'\\' {
                return None;
            }
            rest = rest.get(at + 2..)?;
        }
        Some(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chat(text: &str) -> String {
        let text = serde_json::to_string(text).unwrap();
        format!(
            "data: {{\"id\":\"c\",\"created\":7,\"choices\":[{{\"delta\":{{\"content\":{text}}},\
             \"finish_reason\":null}}]}}\n\n"
        )
    }

    fn sent(texts: &[&str]) -> SentText {
        let mut sent = SentText::new(StreamForm::Chat);
        for text in texts {
            let event = chat(text);
            let passed = sent.pass(Bytes::from(event.clone()), &mut VecDeque::new());
            assert_eq!((&passed.bytes[..], passed.stop), (event.as_bytes(), None));
        }
        sent
    }

    fn resent(texts: &[&str], stops: &[&str]) -> (String, u64, String) {
        let all = stops.iter().map(ToString::to_string).collect();
        let resent = sent(texts).resent(&StopStrings { all, are_included: true }).unwrap();
        (decoded(&resent.text).unwrap(), resent.tokens, resent.overlap)
    }

    #[test]
    fn blanks_and_the_beginning_of_a_stop_string_at_the_end_are_generated_again() {
        let of = |text: &str, tokens, overlap: &str| (text.to_owned(), tokens, overlap.to_owned());
        assert_eq!(resent(&["a", " b", "\n"], &[]), of("a b", 2, "\n"));
        assert_eq!(resent(&["a", " b", "", ""], &[]), of("a b", 2, ""));
        assert_eq!(resent(&["a", "", "", "é"], &[]), of("aé", 4, ""));
        assert_eq!(resent(&["a", "<e"], &["<end>"]), of("a", 1, "<e"));
        assert_eq!(resent(&["a", "<e", "x"], &["<end>"]), of("a<ex", 3, ""));
        assert_eq!(resent(&["a", "\"<\\", "\n "], &["\\\n  x"]), of("a\"<", 1, "\\\n "));
        assert_eq!(resent(&[" ", "\n"], &[]), of("", 0, " \n"));
        assert_eq!(resent(&[], &[]), of("", 0, ""));
    }

    #[test]
    fn tokens_whose_text_is_held_back_do_not_count() {
        let stops = StopStrings { all: vec!["1234".to_owned()], are_included: false };
        let tokens = |texts: &[&str]| sent(texts).resent(&stops).unwrap().tokens;
        // One letter a token, of which three are held back.
        assert_eq!(tokens(&["", "", "", "a"]), 1);
        assert_eq!(tokens(&["", "", "", "a", "b", "c"]), 3);
        assert_eq!(tokens(&["", "", "", "a", "b", "c", "d", "e"]), 5);
        // Tokens of four letters.
        assert_eq!(tokens(&["a", "aaaa", "aaaa", "aaaa"]), 3);
    }

    #[test]
    fn an_event_is_only_like_another_if_its_text_is_a_string() {
        let mut sent = sent(&["a", "\"b\\", "\u{1}\n\u{e9}"]);
        let forged = chat("x").replace("\"x\"", "\"x\",\"tool_calls\":[{}],\"content\":\"y\"");
        let passed = sent.pass(forged.clone().into(), &mut VecDeque::new());
        assert_eq!(passed.stop, Some(Stop::NotContinued(NotContinued::Tools)));
        assert_eq!(passed.bytes, forged);
    }

    #[test]
    fn bytes_after_an_engines_failure_do_not_pass() {
        let mut sent = sent(&["a"]);
        let error = "data: {\"error\":{\"code\":500}}\n\n";
        let passed =
            sent.pass(format!("{}{error}data: [DO", chat("b")).into(), &mut VecDeque::new());
        assert!(matches!(passed.stop, Some(Stop::Failed(_))));
        assert_eq!((passed.bytes, sent.tokens()), (chat("b").into(), 2));
        assert!(sent.rest().is_empty());
    }
}
