//! Cache events: payloads, recordings of multipart messages, brokers' envelopes and HTTP push.

use std::num::NonZeroUsize;
use wornpath_blocks::HashKey;
use wornpath_events::wire::{
    Envelope, HashForm, WireBatch, WireDialect, WireLayout, WireLimits, WireMessage, decode,
    encode, records,
};
use wornpath_events::{PushedReport, Translator};

/// Every dialect in which engines encode batches.
pub const DIALECTS: [WireDialect; 6] = {
    const fn dialect(layout: WireLayout, hashes: HashForm) -> WireDialect {
        WireDialect { layout, hashes }
    }
    [
        dialect(WireLayout::Maps, HashForm::Unsigned),
        dialect(WireLayout::Maps, HashForm::Signed),
        dialect(WireLayout::Maps, HashForm::Digest),
        dialect(WireLayout::Arrays, HashForm::Unsigned),
        dialect(WireLayout::Arrays, HashForm::Signed),
        dialect(WireLayout::Arrays, HashForm::Digest),
    ]
};

/// A payload: a batch that decodes is equal after encoding it in any dialect, and translates or is
/// refused.
pub fn wire_batch(payload: &[u8]) {
    let limits = WireLimits::default();
    let mut batch = WireBatch::default();
    if decode(payload, &limits, &mut batch).is_err() {
        assert!(batch.is_empty(), "a refused payload left events behind");
        return;
    }
    let mut written = Vec::new();
    let mut again = WireBatch::default();
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
    let mut batch = WireBatch::default();
    for record in records(recording) {
        let Ok(frames) = record else { return };
        let Ok(WireMessage::Batch { payload, .. }) = WireMessage::parse(&frames) else {
            continue;
        };
        if decode(payload, &WireLimits::default(), &mut batch).is_ok() {
            translate(&batch);
        }
    }
}

/// A broker's entry: an envelope that parses is equal after writing and parsing it again.
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
    let Ok(pushed) = PushedReport::parse(path, body) else { return };
    if let Some(batch) = pushed.batch() {
        translate(batch);
    }
}

pub(crate) fn translate(batch: &WireBatch) {
    const BLOCK_SIZE: NonZeroUsize = NonZeroUsize::new(16).expect("sixteen is not zero");
    let mut translator = Translator::new(&HashKey::DEFAULT, "fuzzed", BLOCK_SIZE);
    if let Ok(translated) = translator.translate(batch) {
        assert_eq!(translated.events.len() + translated.ignored, batch.len());
    }
}
