//! The token ids of a stream: asked of its engine, taken out of what its client gets, and kept.
//!
//! An answer that another engine goes on with as text is tokenized again, perhaps into other tokens
//! than those that were generated, and what follows other tokens is another text. So engines that
//! can are asked for the ids of the tokens that they read and generate (`return_token_ids`), and
//! the next engine gets those. The client did not ask: where it would have got `null`, it gets that.

use super::framing::{EventBuffer, first_end};
use bytes::{Bytes, BytesMut};
use memchr::memmem;
use std::collections::VecDeque;
use std::ops::Range;

/// The field of requests that asks for them.
pub(super) const FIELD: &str = "return_token_ids";
/// The members of events that have them.
const PROMPT: &[u8] = b"\"prompt_token_ids\"";
const ANSWER: &[u8] = b"\"token_ids\"";
/// A longer event is none of a stream of tokens.
const MAX_EVENT_BYTES: usize = 16 << 20;

/// The body of a request that does not have the field, with the field at its end.
pub(crate) fn asked(body: &[u8]) -> Option<Bytes> {
    let end = body.trim_ascii_end().strip_suffix(b"}")?.len();
    let field = format!(",\"{FIELD}\":true");
    Some([&body[..end], field.as_bytes(), &body[end..]].concat().into())
}

/// The ids in an event, as they are written: numbers between commas.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct EventIds {
    pub(super) prompt: Option<Box<[u8]>>,
    pub(super) answer: Option<Box<[u8]>>,
}

/// Takes the ids out of a stream.
#[derive(Debug, Default)]
pub(crate) struct TokenIdFilter {
    buffer: EventBuffer,
    /// Whether the stream is passed on as it is, because it has no events.
    is_off: bool,
}

impl TokenIdFilter {
    /// What the client gets of the next bytes, in whole events, and the ids of each event.
    pub(super) fn take(&mut self, data: Bytes, found: &mut VecDeque<EventIds>) -> Bytes {
        if self.is_off {
            return data;
        }
        let bytes = self.buffer.whole(data);
        let mut out = BytesMut::new();
        let mut at = 0;
        while let Some(end) = first_end(&bytes[at..]) {
            let event = &bytes[at..at + end];
            let prompt = array(event, PROMPT);
            let answer = array(event, ANSWER);
            let written = |array: &Option<Range<usize>>| array.clone().map(|at| event[at].into());
            let ids = EventIds { prompt: written(&prompt), answer: written(&answer) };
            let mut arrays: Vec<_> = prompt.into_iter().chain(answer).collect();
            arrays.sort_by_key(|array| array.start);
            let mut done = 0;
            for array in arrays {
                out.extend_from_slice(&event[done..array.start - 1]);
                out.extend_from_slice(b"null");
                done = array.end + 1;
            }
            out.extend_from_slice(&event[done..]);
            found.push_back(ids);
            at += end;
        }
        if self.buffer.len() > MAX_EVENT_BYTES {
            self.is_off = true;
            out.extend_from_slice(&self.buffer.rest());
        }
        out.freeze()
    }

    /// What the client gets of the next bytes.
    pub(crate) fn filter(&mut self, data: Bytes) -> Bytes {
        self.take(data, &mut VecDeque::new())
    }

    /// What is left when the stream has ended.
    pub(crate) fn rest(&mut self) -> Bytes {
        self.buffer.rest()
    }

    /// The bytes that it keeps.
    pub(super) fn len(&self) -> usize {
        self.buffer.len()
    }
}

/// The numbers of an array, without its brackets. A member cannot be mistaken for text: in a string
/// its quotes have backslashes.
fn array(event: &[u8], member: &[u8]) -> Option<Range<usize>> {
    let mut at = memmem::find(event, member)? + member.len();
    for expected in *b":[" {
        at += event[at..].len() - event[at..].trim_ascii_start().len();
        if *event.get(at)? != expected {
            return None;
        }
        at += 1;
    }
    let end = at + memchr::memchr(b']', &event[at..])?;
    let is_number = |byte: &u8| byte.is_ascii_digit() || *byte == b',' || *byte == b' ';
    event[at..end].iter().all(is_number).then_some(at..end)
}

/// The ids of an answer so far.
#[derive(Debug, Default)]
pub(super) struct SentIds {
    prompt: Option<Box<[u8]>>,
    answer: Vec<u8>,
    /// Whether tokens have passed whose ids are not known.
    is_lost: bool,
}

impl SentIds {
    /// The bytes that they take.
    pub(super) fn len(&self) -> usize {
        self.prompt.as_ref().map_or(0, |prompt| prompt.len()) + self.answer.len()
    }

    /// Where the ids of the answer end.
    pub(super) const fn end(&self) -> usize {
        self.answer.len()
    }

    /// The ids of the prompt, of which the first engine has the right ones.
    pub(super) fn begin(&mut self, found: &EventIds) {
        if self.prompt.is_none() {
            self.prompt.clone_from(&found.prompt);
        }
    }

    /// Adds those of an event, and returns their number; an event without any has one token.
    pub(super) fn add(&mut self, found: Option<&EventIds>) -> u64 {
        match found.and_then(|found| found.answer.as_deref()) {
            Some(ids) => {
                join(&mut self.answer, ids);
                number(ids)
            }
            None => {
                self.lose();
                1
            }
        }
    }

    /// They are not known from here on.
    pub(super) fn lose(&mut self) {
        *self = Self { prompt: None, answer: Vec::new(), is_lost: true };
    }

    /// Keeps the first `end` bytes of those of the answer.
    pub(super) fn cut(&mut self, end: usize) {
        self.answer.truncate(end);
    }

    /// Those of the prompt and of the first `end` bytes of the answer, as an array; none if they
    /// are not known.
    pub(super) fn prompt_of(&self, end: usize) -> Option<Vec<u8>> {
        let prompt = self.prompt.as_deref().filter(|_| !self.is_lost)?;
        let mut all = prompt.to_vec();
        join(&mut all, self.answer.get(..end)?);
        Some([b"[", &all[..], b"]"].concat())
    }

    /// Whether all are known.
    pub(super) const fn are_known(&self) -> bool {
        self.prompt.is_some() && !self.is_lost
    }
}

/// Appends numbers to numbers.
pub(super) fn join(all: &mut Vec<u8>, more: &[u8]) {
    let more = more.trim_ascii();
    if !all.is_empty() && !more.is_empty() {
        all.push(b',');
    }
    all.extend_from_slice(more);
}

/// How many numbers these are.
fn number(ids: &[u8]) -> u64 {
    if ids.trim_ascii().is_empty() { 0 } else { memchr::memchr_iter(b',', ids).count() as u64 + 1 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filtered(stream: &str, size: usize) -> (String, Vec<EventIds>) {
        let mut filter = TokenIdFilter::default();
        let mut found = VecDeque::new();
        let mut out = Vec::new();
        for chunk in stream.as_bytes().chunks(size) {
            out.extend_from_slice(&filter.take(Bytes::copy_from_slice(chunk), &mut found));
        }
        out.extend_from_slice(&filter.rest());
        (String::from_utf8(out).unwrap(), found.into())
    }

    fn ids(prompt: Option<&str>, answer: Option<&str>) -> EventIds {
        let written = |ids: Option<&str>| ids.map(|ids| ids.as_bytes().into());
        EventIds { prompt: written(prompt), answer: written(answer) }
    }

    #[test]
    fn ids_become_null_however_the_stream_is_split() {
        let stream = concat!(
            "data: {\"choices\":[{\"delta\":{\"role\":\"assistant\"}}],\"prompt_token_ids\":[1,22]}\n\n",
            ": ping\n\n",
            "data: {\"choices\":[{\"text\":\"a \\\"token_ids\\\":[9]\",\"token_ids\" : [ 3, 4 ]}]}\n\n",
            "data: {\"choices\":[{\"token_ids\":[5],\"prompt_token_ids\":[6]}]}\r\n\r\n",
            "data: {\"choices\":[{\"token_ids\":null}]}\n\ndata: {\"token_ids\":[{}]}\n\ndata: [DONE",
        );
        let expected = concat!(
            "data: {\"choices\":[{\"delta\":{\"role\":\"assistant\"}}],\"prompt_token_ids\":null}\n\n",
            ": ping\n\n",
            "data: {\"choices\":[{\"text\":\"a \\\"token_ids\\\":[9]\",\"token_ids\" : null}]}\n\n",
            "data: {\"choices\":[{\"token_ids\":null,\"prompt_token_ids\":null}]}\r\n\r\n",
            "data: {\"choices\":[{\"token_ids\":null}]}\n\ndata: {\"token_ids\":[{}]}\n\ndata: [DONE",
        );
        for size in [1, 7, 50, 1000] {
            let (out, found) = filtered(stream, size);
            assert_eq!(out, expected, "in chunks of {size}");
            let none = EventIds::default();
            let answer = ids(None, Some(" 3, 4 "));
            let both = ids(Some("6"), Some("5"));
            let all = [ids(Some("1,22"), None), none.clone(), answer, both, none.clone(), none];
            assert_eq!(found, all, "in chunks of {size}");
        }
    }

    #[test]
    fn an_event_without_an_end_is_not_held_forever() {
        let mut filter = TokenIdFilter::default();
        let endless = Bytes::from(vec![b'x'; MAX_EVENT_BYTES + 1]);
        assert_eq!(filter.filter(endless.clone()), endless);
        assert_eq!(filter.filter(Bytes::from_static(b"y")), "y");
    }

    #[test]
    fn a_body_asks_for_ids_at_its_end() {
        assert_eq!(asked(b"{\"a\":1} \n").unwrap(), "{\"a\":1,\"return_token_ids\":true} \n");
        assert_eq!(asked(b"[1]"), None);
    }

    #[test]
    fn ids_are_joined_until_one_is_not_known() {
        let mut sent = SentIds::default();
        sent.begin(&ids(Some("1,2"), None));
        assert_eq!(sent.add(Some(&ids(None, Some("3")))), 1);
        assert_eq!(sent.add(Some(&ids(None, Some("4, 5")))), 2);
        let end = sent.end();
        assert_eq!(sent.add(Some(&ids(None, Some("")))), 0);
        assert_eq!(sent.add(Some(&ids(Some("7"), Some("6")))), 1);
        assert_eq!(sent.prompt_of(sent.end()).unwrap(), b"[1,2,3,4, 5,6]");
        assert_eq!(sent.prompt_of(0).unwrap(), b"[1,2]");
        sent.cut(end);
        assert_eq!(sent.prompt_of(sent.end()).unwrap(), b"[1,2,3,4, 5]");
        assert!(sent.are_known());
        assert_eq!(sent.add(Some(&ids(None, None))), 1);
        assert!(!sent.are_known() && sent.prompt_of(0).is_none());
    }
}
