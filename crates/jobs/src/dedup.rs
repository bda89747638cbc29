//! Deduplication: identical lines get the response of one of them.
//!
//! There may be millions of them, so they become records a few at a time, as many as the write
//! queue takes. If the process crashes in between, the computed line is done and the rest is not:
//! one of them is computed then, and its response goes to the others.

use crate::reply::{LineReply, ReplyError};
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use wornpath_planner::Plan;

/// Groups of identical lines: one is computed, and the others get its response.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct DedupGroups {
    /// A line that is computed, and one that gets its response; sorted.
    pairs: Vec<(u32, u32)>,
}

impl DedupGroups {
    /// The groups of a plan whose jobs have the numbers of their lines.
    #[must_use]
    pub fn of(plan: &Plan) -> Self {
        let mut pairs: Vec<_> = plan.copies().iter().map(|(copy, job)| (job.0, copy.0)).collect();
        pairs.sort_unstable();
        Self { pairs }
    }

    /// The number of lines that are not computed.
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

/// The response to a line, shared with those that are identical to it.
type SharedReply = Arc<Result<LineReply, ReplyError>>;

/// Responses that still have to be copied to identical lines.
pub(crate) struct CopyProgress {
    groups: DedupGroups,
    replies: VecDeque<(SharedReply, Range<usize>)>,
    /// Lines whose records are being made.
    in_progress: usize,
}

/// Some lines, and the response that they get.
pub(crate) struct CopyBatch {
    pub(crate) lines: Vec<u32>,
    pub(crate) reply: SharedReply,
}

impl CopyBatch {
    /// The bytes of its records, about.
    pub(crate) fn bytes(&self) -> usize {
        self.lines.len().saturating_mul(body_bytes(&self.reply))
    }
}

fn body_bytes(reply: &Result<LineReply, ReplyError>) -> usize {
    reply.as_ref().map_or(0, |reply| reply.body.len())
}

/// Bytes of copies that are not written yet; they count until this is dropped.
#[derive(Debug)]
pub(crate) struct CopiedBytes {
    all: Arc<AtomicUsize>,
    bytes: usize,
}

impl CopiedBytes {
    pub(crate) fn add(all: &Arc<AtomicUsize>, bytes: usize) -> Self {
        all.fetch_add(bytes, Relaxed);
        Self { all: Arc::clone(all), bytes }
    }
}

impl Drop for CopiedBytes {
    fn drop(&mut self) {
        self.all.fetch_sub(self.bytes, Relaxed);
    }
}

impl CopyProgress {
    pub(crate) const fn of(groups: DedupGroups) -> Self {
        Self { groups, replies: VecDeque::new(), in_progress: 0 }
    }

    /// Whether every response has been copied.
    pub(crate) fn is_done(&self) -> bool {
        self.replies.is_empty() && self.in_progress == 0
    }

    /// A line has its response, which goes to those that are identical to it.
    pub(crate) fn add(&mut self, line: u32, reply: Result<LineReply, ReplyError>) {
        let range = self.groups.range(line);
        if !range.is_empty() {
            self.replies.push_back((Arc::new(reply), range));
        }
    }

    /// The next lines to make records for, at most so many, and of about so many bytes.
    pub(crate) fn next(&mut self, most: usize, most_bytes: usize) -> Option<CopyBatch> {
        let (reply, range) = self.replies.front_mut()?;
        let most = most.min(most_bytes / body_bytes(reply).max(1)).max(1);
        let end = range.end.min(range.start + most);
        let lines = self.groups.pairs[range.start..end].iter().map(|(_, copy)| *copy).collect();
        let batch = CopyBatch { lines, reply: Arc::clone(reply) };
        range.start = end;
        if end == range.end {
            self.replies.pop_front();
        }
        self.in_progress += batch.lines.len();
        Some(batch)
    }

    /// So many lines have their records.
    pub(crate) const fn copied(&mut self, lines: usize) {
        self.in_progress -= lines;
    }
}
