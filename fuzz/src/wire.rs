//! Cache events: payloads, recordings of multipart messages, envelopes of brokers and pushed requests.

use std::num::NonZeroUsize;
use wornpath_blocks::HashKey;
use wornpath_events::wire::{
    Batch, Dialect, Envelope, HashForm, Layout, Limits, Message, decode, encode, records,
};
use wornpath_events::{Pushed, Said, Translator};

/// Every way in which a simulated engine may write.
pub const DIALECTS: [Dialect; 6] = {
    const fn dialect(layout: Layout, hashes: HashForm) -> Dialect {
        Dialect { layout, hashes }
    }
    [
        dialect(Layout::Maps, HashForm::Unsigned),
        dialect(Layout::Maps, HashForm::Signed),
        dialect(Layout::Maps, HashForm::Digest),
        dialect(Layout::Arrays, HashForm::Unsigned),
        dialect(Layout::Arrays, HashForm::Signed),
        dialect(Layout::Arrays, HashForm::Digest),
    ]
};

/// A payload: whatever decodes means the same after encoding it in any dialect, and translates or
/// is refused.
pub fn wire_batch(payload: &[u8]) {
    let limits = Limits::default();
    let mut batch = Batch::default();
    if decode(payload, &limits, &mut batch).is_err() {
        assert!(batch.is_empty(), "a refused payload left events behind");
        return;
    }
    let mut written = Vec::new();
    let mut again = Batch::default();
    for dialect in DIALECTS {
        written.clear();
        encode(&batch, dialect, &mut written);
        decode(&written, &limits, &mut again).expect("what we encode, we decode");
        assert!(batch.events().eq(again.events()), "{dialect:?} changed the events");
    }
    translate(&batch);
}

/// A recording of multipart messages, as a socket would deliver them.
pub fn wire_frames(recording: &[u8]) {
    let mut batch = Batch::default();
    for record in records(recording) {
        let Ok(frames) = record else { return };
        let Ok(Message::Batch { payload, .. }) = Message::parse(&frames) else { continue };
        if decode(payload, &Limits::default(), &mut batch).is_ok() {
            translate(&batch);
        }
    }
}

/// An entry of a broker: what parses is written again as it was meant.
pub fn envelope(entry: &[u8]) {
    let Ok(envelope) = Envelope::parse(entry) else { return };
    let mut written = Vec::new();
    envelope.write(&mut written);
    assert_eq!(Envelope::parse(&written), Ok(envelope));
    wire_batch(envelope.payload);
}

/// A pushed request: its path on the first line, its body after that.
pub fn push_request(request: &[u8]) {
    let line = request.iter().position(|byte| *byte == b'\n').unwrap_or(request.len());
    let Ok(path) = std::str::from_utf8(&request[..line]) else { return };
    let body = request.get(line + 1..).unwrap_or_default();
    let Ok(pushed) = Pushed::parse(path, body) else { return };
    for said in pushed.said {
        if let Said::Batch { batch, .. } | Said::Snapshot { batch, .. } = said {
            translate(&batch);
        }
    }
}

pub(crate) fn translate(batch: &Batch) {
    const BLOCK_SIZE: NonZeroUsize = NonZeroUsize::new(16).expect("sixteen is not zero");
    let mut translator = Translator::new(&HashKey::DEFAULT, "fuzzed", BLOCK_SIZE);
    if let Ok(translated) = translator.translate(batch) {
        assert_eq!(translated.events.len() + translated.ignored, batch.len());
    }
}
