//! What engines return: streams of events, one after another's, and pages of metrics.

use crate::client::pieces;
use bytes::Bytes;
use serde_json::Value;
use std::iter::once;
use wornpath_gateway::fleet::discovery;
use wornpath_gateway::{Api, fuzzing};
use wornpath_jobs::{Assembler, StreamError};

/// The first byte chooses how the stream is split: the result equals that of one piece. An
/// assembled answer is JSON.
pub fn answer_stream(bytes: &[u8]) {
    let Some((cuts, stream)) = bytes.split_first() else { return };
    assert_eq!(fuzzing::usage(pieces(stream, *cuts)), fuzzing::usage(once(stream)));
    let whole = assemble(once(stream));
    assert_eq!(assemble(pieces(stream, *cuts)), whole);
    if let Ok(answer) = whole {
        let answer: Value = serde_json::from_slice(&answer).expect("an answer is JSON");
        assert!(answer["choices"].is_array(), "{answer}");
    }
}

/// The streams of two engines, of which the second continues the first: `0xff` separates them, the
/// first byte chooses the API and how they are split. The client gets the same however they are
/// split, and whole events only.
pub fn continued_stream(bytes: &[u8]) {
    let Some((choice, streams)) = bytes.split_first() else { return };
    let path = if choice & 1 == 0 { "/v1/chat/completions" } else { "/v1/completions" };
    let api = Api::at(path);
    let mut streams = streams.splitn(2, |byte| *byte == 0xff);
    let first = streams.next().unwrap_or_default();
    let second = streams.next().unwrap_or_default();
    let whole = fuzzing::continued_stream(api, once(first), once(second));
    let cut = fuzzing::continued_stream(api, pieces(first, *choice), pieces(second, *choice));
    assert_eq!(String::from_utf8_lossy(&cut), String::from_utf8_lossy(&whole));
}

fn assemble<'a>(pieces: impl Iterator<Item = &'a [u8]>) -> Result<Bytes, StreamError> {
    let mut assembler = Assembler::default();
    for piece in pieces {
        assembler.feed(piece)?;
    }
    assembler.finish()
}

/// A page of an engine's metrics: parsed values are in range, for one rank and for all.
pub fn engine_metrics(page: &[u8]) {
    let page = String::from_utf8_lossy(page);
    if let Some(tokens) = discovery::block_size(&page) {
        assert!(tokens.get() <= 1 << 16, "{tokens}");
    }
    for rank in [None, Some(0), Some(1)] {
        if let Some(read) = discovery::read(&page, rank) {
            assert!((0.0..=1.0).contains(&read.kv_usage), "{read:?}");
        }
    }
}
