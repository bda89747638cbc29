//! Lines that get the answer of another, once it is there.
//!
//! There may be millions of them, so a few at a time are read and made into records, as many as may wait to be written. Should
//! the process die in between, the answered line is done and the rest is not: one of them is computed, and goes on for the others.

use crate::problem::StoreError;
use crate::reader::LineReader;
use crate::record::LineRecord;
use crate::reply::{LineReply, ReplyError};
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use wornpath_planner::Plan;

/// Which lines get whose answers.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct DedupGroups {
    /// The line that is computed, and one that gets its answer; sorted.
    pairs: Vec<(u32, u32)>,
}

impl DedupGroups {
    /// Those of a plan whose jobs have the numbers of their lines.
    #[must_use]
    pub fn of(plan: &Plan) -> Self {
        let mut pairs: Vec<_> = plan.copies().iter().map(|(copy, job)| (job.0, copy.0)).collect();
        pairs.sort_unstable();
        Self { pairs }
    }

    /// How many lines are not computed.
    #[must_use]
    pub const fn count(&self) -> usize {
        self.pairs.len()
    }

    fn range(&self, line: u32) -> Range<usize> {
        let start = self.pairs.partition_point(|(original, _)| *original < line);
        let behind = self.pairs[start..].partition_point(|(original, _)| *original == line);
        start..start + behind
    }
}

/// What came for a line, shared by those that are equal to it.
type Arrived = Arc<Result<LineReply, ReplyError>>;

/// Answers that are still to be copied.
pub(crate) struct CopyProgress {
    copies: DedupGroups,
    answers: VecDeque<(Arrived, Range<usize>)>,
    /// Lines that are being read.
    underway: usize,
}

/// Some lines, and what came for them.
pub(crate) struct Portion {
    lines: Vec<u32>,
    came: Arrived,
}

impl CopyProgress {
    pub(crate) const fn of(copies: DedupGroups) -> Self {
        Self { copies, answers: VecDeque::new(), underway: 0 }
    }

    /// Whether everything that can be copied has been.
    pub(crate) fn is_done(&self) -> bool {
        self.answers.is_empty() && self.underway == 0
    }

    /// A line has its record: the same goes to those that wait for it.
    pub(crate) fn add(&mut self, line: u32, came: Result<LineReply, ReplyError>) {
        let range = self.copies.range(line);
        if !range.is_empty() {
            self.answers.push_back((Arc::new(came), range));
        }
    }

    /// At most so many lines to be made into records.
    pub(crate) fn next(&mut self, most: usize) -> Option<Portion> {
        let (came, range) = self.answers.front_mut()?;
        let end = range.end.min(range.start + most);
        let lines = self.copies.pairs[range.start..end].iter().map(|(_, copy)| *copy).collect();
        let portion = Portion { lines, came: Arc::clone(came) };
        range.start = end;
        if end == range.end {
            self.answers.pop_front();
        }
        self.underway += portion.lines.len();
        Some(portion)
    }

    /// So many have become records.
    pub(crate) const fn made(&mut self, lines: usize) {
        self.underway -= lines;
    }
}

impl Portion {
    pub(crate) const fn len(&self) -> usize {
        self.lines.len()
    }

    /// The records of its lines. Tokens count where they were computed.
    ///
    /// # Errors
    /// If they cannot be read, but for lines that are gone for good: those fail.
    pub(crate) fn records(&self, reader: &LineReader) -> Result<Vec<LineRecord>, StoreError> {
        let record = |line: &u32| match reader.named(*line) {
            Ok((owner, ..)) => Ok(owner.copy(&self.came)),
            Err(error) if reader.fails_alone(&error) => {
                let came = Err(ReplyError::Unreadable(error.to_string()));
                Ok(reader.nameless(*line).record(&came))
            }
            Err(error) => Err(error),
        };
        self.lines.iter().map(record).collect()
    }
}
