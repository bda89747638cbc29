//! What engines answer: streams of events, and pages of metrics.

use crate::pieces::pieces;
use bytes::Bytes;
use serde_json::Value;
use std::iter::once;
use wornpath_gateway::fleet::discovery;
use wornpath_gateway::fuzzing;
use wornpath_jobs::{Assembler, StreamError};

/// The first byte says how the stream is cut: it means the same as in one piece. An answer that is put together
/// is JSON.
pub fn answer_stream(bytes: &[u8]) {
    let Some((cuts, stream)) = bytes.split_first() else { return };
    assert_eq!(fuzzing::usage(pieces(stream, *cuts)), fuzzing::usage(once(stream)));
    let whole = assembled(once(stream));
    assert_eq!(assembled(pieces(stream, *cuts)), whole);
    if let Ok(answer) = whole {
        let answer: Value = serde_json::from_slice(&answer).expect("an answer is JSON");
        assert!(answer["choices"].is_array(), "{answer}");
    }
}

fn assembled<'a>(pieces: impl Iterator<Item = &'a [u8]>) -> Result<Bytes, StreamError> {
    let mut assembler = Assembler::default();
    for piece in pieces {
        assembler.feed(piece)?;
    }
    assembler.finish()
}

/// A page of an engine's metrics: what is read of it makes sense, of one rank and of all.
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
