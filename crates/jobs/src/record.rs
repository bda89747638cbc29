//! The record of a line: what is published about it, exactly once.

use serde::{Deserialize, Serialize};
use std::ops::AddAssign;

/// The file that a record goes to.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum RecordKind {
    /// The line succeeded.
    #[serde(rename = "o")]
    Output,
    /// The line failed for good.
    #[serde(rename = "e")]
    Error,
}

impl RecordKind {
    /// Output before errors.
    pub(crate) const fn index(self) -> usize {
        match self {
            Self::Output => 0,
            Self::Error => 1,
        }
    }
}

/// The result of a line.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LineRecord {
    /// The line of the input, counted from 0 among those with a request.
    pub line: u32,
    /// The file that it goes to.
    pub kind: RecordKind,
    /// One line of JSON, without the newline.
    pub bytes: Vec<u8>,
    /// The tokens that the engine counted.
    pub usage: TokenUsage,
}

/// Tokens, as engines count them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct TokenUsage {
    /// Prompt tokens.
    pub input: u64,
    /// Prompt tokens found in the cache.
    pub cached: u64,
    /// Generated tokens.
    pub output: u64,
}

impl AddAssign for TokenUsage {
    fn add_assign(&mut self, other: Self) {
        // Engines are not trusted: a sum that saturates is better than one that wraps.
        self.input = self.input.saturating_add(other.input);
        self.cached = self.cached.saturating_add(other.cached);
        self.output = self.output.saturating_add(other.output);
    }
}

/// Lines by their state. `completed + failed` never exceeds `total`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Counts {
    /// All lines.
    pub total: u32,
    /// Lines that succeeded.
    pub completed: u32,
    /// Lines that failed for good.
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

/// Publishes records: the first of each line and no other.
pub trait Publish: Send {
    /// Publishes a group; when this returns, it is durable. Returns how many were new. After an
    /// error none is published, and a retry is safe.
    ///
    /// # Errors
    /// If they cannot be written, or the lease is lost.
    fn publish(&mut self, records: &[LineRecord]) -> Result<usize, crate::StoreError>;

    /// The lines by their state.
    fn counts(&self) -> Counts;

    /// The tokens of all published records.
    fn usage(&self) -> TokenUsage;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn token_counts_saturate() {
        let mut sum = TokenUsage { input: 1, cached: 2, output: 3 };
        sum += TokenUsage { input: u64::MAX, cached: 1, output: 0 };
        assert_eq!(sum, TokenUsage { input: u64::MAX, cached: 3, output: 3 });
    }
}
