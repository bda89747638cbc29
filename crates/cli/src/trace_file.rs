//! Files of traces, and the block size that they have.

use crate::input;
use anyhow::anyhow;
use std::num::NonZeroUsize;
use std::path::Path;
use wornpath_sim::replay::{InferredBlockSize, Trace, TraceError};

/// Reads a trace, at the given block size or at that of its lines.
pub(crate) fn read(path: &Path, block_size: Option<NonZeroUsize>) -> anyhow::Result<Trace> {
    let file = path.display().to_string();
    let text = input::read_lines(path)?;
    let Some(given) = block_size else {
        let size = InferredBlockSize::of(&file, &text)?.size;
        return Ok(Trace::read(&file, &text, size)?);
    };
    match Trace::read(&file, &text, given) {
        Ok(trace) => Ok(trace),
        Err(error) => Err(with_fitting_size(error, given, &file, &text)),
    }
}

/// The error, or that another block size would do, if it would.
fn with_fitting_size(
    error: TraceError,
    given: NonZeroUsize,
    file: &str,
    text: &str,
) -> anyhow::Error {
    match InferredBlockSize::of(file, text) {
        Ok(InferredBlockSize { size, fitting: Some(fitting) }) if !fitting.contains(given) => {
            anyhow!(
                "{file}: --block-size {given} does not fit: its prompts have blocks of {fitting}; \
                 give --block-size {size}, or leave it out"
            )
        }
        _ => error.into(),
    }
}
