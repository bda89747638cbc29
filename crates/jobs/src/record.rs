//! What is published about a line of the input, once.

use serde::{Deserialize, Serialize};
use std::ops::AddAssign;

/// Where a line's record goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum RecordKind {
    /// Answered: to the output.
    #[serde(rename = "o")]
    Output,
    /// Failed for good: to the errors.
    #[serde(rename = "e")]
    Error,
}

/// The end of a line, whichever it was.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LineRecord {
    /// Which line of the input, counted from 0 among those with a request.
    pub line: u32,
    /// Where it goes.
    pub kind: RecordKind,
    /// One line of JSON, without the newline.
    pub bytes: Vec<u8>,
    /// What the engine counted.
    pub usage: TokenUsage,
}

/// Tokens, as engines count them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct TokenUsage {
    /// Of prompts.
    pub input: u64,
    /// Of those, found in the cache.
    pub cached: u64,
    /// Of answers.
    pub output: u64,
}

impl AddAssign for TokenUsage {
    fn add_assign(&mut self, other: Self) {
        // Engines say what they like; a sum that stands still is better than one that begins anew.
        self.input = self.input.saturating_add(other.input);
        self.cached = self.cached.saturating_add(other.cached);
        self.output = self.output.saturating_add(other.output);
    }
}

/// How far something is. `completed + failed` never exceeds `total`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Counts {
    /// Lines.
    pub total: u32,
    /// Answered.
    pub completed: u32,
    /// Failed for good.
    pub failed: u32,
}

impl Counts {
    /// Lines without a record.
    #[must_use]
    pub const fn pending(&self) -> u32 {
        self.total - self.completed - self.failed
    }

    pub(crate) const fn add(&mut self, kind: RecordKind) {
        match kind {
            RecordKind::Output => self.completed += 1,
            RecordKind::Error => self.failed += 1,
        }
    }
}

/// Takes records, each line's first and no other.
pub trait Publish: Send {
    /// Publishes a group; when this returns, it survives. Returns how many were new. After an error none
    /// counts, and it can be tried again.
    ///
    /// # Errors
    /// If they cannot be written, or are another's to write.
    fn publish(&mut self, records: &[LineRecord]) -> Result<usize, crate::StoreError>;

    /// How far it is.
    fn counts(&self) -> Counts;

    /// Tokens of all that is published.
    fn usage(&self) -> TokenUsage;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_engine_that_counts_beyond_all_bounds_ends_no_batch() {
        let mut sum = TokenUsage { input: 1, cached: 2, output: 3 };
        sum += TokenUsage { input: u64::MAX, cached: 1, output: 0 };
        assert_eq!(sum, TokenUsage { input: u64::MAX, cached: 3, output: 3 });
    }
}
