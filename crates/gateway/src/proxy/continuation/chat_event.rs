//! Events of a chat for the text of a completion, by which an engine goes on with token ids.

use super::event::{Choice, ENDING};
use super::sent::SentText;
use memchr::memmem;
use std::ops::Range;

/// A part of an event, and what it becomes.
pub(super) type Replacement = (Range<usize>, Vec<u8>);

/// The form of a chat's events, for the text of a completion.
#[derive(Clone, Debug)]
pub(super) struct ChatEvent {
    before: Box<[u8]>,
    after: Box<[u8]>,
    /// The values in `after` that say why the answer ended, where the events have them.
    ending: [Option<Range<usize>>; ENDING.len()],
}

impl ChatEvent {
    /// That of the events that have passed; none if there was none with text.
    pub(super) fn of(sent: &SentText) -> Option<Self> {
        let template = sent.template()?;
        let after = &template.after;
        let ending = ENDING.map(|field| {
            let member = format!("\"{field}\":null");
            let end = memmem::find(after, member.as_bytes())? + member.len();
            Some(end - b"null".len()..end)
        });
        ending[0].as_ref()?;
        let before = template.before.clone();
        Some(Self { before, after: after.clone(), ending })
    }

    /// Appends the event with the text and the ending of a completion's choice; `text` replaces
    /// its own.
    pub(super) fn write(
        &self,
        event: &[u8],
        choice: &Choice,
        text: Option<&[u8]>,
        out: &mut Vec<u8>,
    ) {
        out.extend_from_slice(&self.before);
        let text = text.or_else(|| choice.text.clone().map(|at| &event[at]));
        // Both have a quote on each side.
        let text = text.unwrap_or(b"\"\"");
        out.extend_from_slice(&text[1..text.len() - 1]);
        let mut ending = Vec::new();
        let mut last = 0;
        for (field, (place, value)) in ENDING.iter().zip(self.ending.iter().zip(&choice.ending)) {
            let Some(value) = value.clone().map(|at| &event[at]) else { continue };
            if let Some(place) = place {
                last = place.end;
                ending.push((place.clone(), value.to_vec()));
            } else if choice.is_last {
                // Only the last event has it.
                let member = [format!(",\"{field}\":").as_bytes(), value].concat();
                ending.push((last..last, member));
            }
        }
        replace(&self.after, ending, out);
    }
}

/// Appends an event in which parts are replaced.
pub(super) fn replace(event: &[u8], mut replacements: Vec<Replacement>, out: &mut Vec<u8>) {
    replacements.sort_by_key(|(at, _)| at.start);
    let mut done = 0;
    for (at, value) in replacements {
        out.extend_from_slice(&event[done..at.start]);
        out.extend_from_slice(&value);
        done = at.end;
    }
    out.extend_from_slice(&event[done..]);
}
