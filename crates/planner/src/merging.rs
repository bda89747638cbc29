//! The forest of a queue whose chains do not fit into memory.
//!
//! The reader of such a queue sorts it part by part ([`Forest::with_copies`], then
//! [`Queue::drop_chains`]), stores the sorted parts elsewhere, and returns them one request at a
//! time: merging needs one chain of each part. The order equals that of sorting everything at once,
//! so the plan is the same.

use crate::forest::Forest;
use crate::queue::{JobId, Queue, shared};
use crate::sorting::{Tie, compare_chains, tie};
use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;
use wornpath_blocks::BlockHash;

/// A part of a queue in depth-first order, read one request after the other.
pub trait SortedPart {
    /// Why the part cannot be read.
    type Error;

    /// The next request. `chain` holds the chain of the previous one, empty at first, and is
    /// replaced by the chain of the returned one.
    ///
    /// # Errors
    /// If the part cannot be read.
    fn next(&mut self, chain: &mut Vec<BlockHash>) -> Result<Option<JobId>, Self::Error>;
}

/// The next request of a part.
struct Head {
    chain: Vec<BlockHash>,
    tie: Tie,
    part: usize,
}

impl Ord for Head {
    /// The first in depth-first order is the greatest, because `BinaryHeap` pops the greatest.
    fn cmp(&self, other: &Self) -> Ordering {
        let by_chain = compare_chains(&other.chain, &self.chain, 0);
        by_chain.then_with(|| other.tie.cmp(&self.tie))
    }
}

impl PartialOrd for Head {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Head {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Head {}

impl Forest {
    /// The forest of the wanted requests of a queue, merged from parts that contain each of them
    /// once.
    ///
    /// # Errors
    /// If a part cannot be read.
    pub fn merge<P: SortedPart>(
        queue: &Queue,
        mut parts: Vec<P>,
        wanted: impl Fn(JobId) -> bool,
    ) -> Result<Self, P::Error> {
        let mut heads = BinaryHeap::with_capacity(parts.len());
        for (number, part) in parts.iter_mut().enumerate() {
            let mut chain = Vec::new();
            if let Some(job) = next_wanted(part, &mut chain, &wanted)? {
                heads.push(Head { chain, tie: tie(queue, job), part: number });
            }
        }
        let mut order = Vec::new();
        let mut shares = Vec::new();
        let mut last = Vec::new();
        while let Some(mut head) = heads.peek_mut() {
            order.push(head.tie.job);
            shares.push(shared(&last, &head.chain, 0) as u32);
            last.clone_from(&head.chain);
            let part = &mut parts[head.part];
            match next_wanted(part, &mut head.chain, &wanted)? {
                Some(job) => head.tie = tie(queue, job),
                None => drop(PeekMut::pop(head)),
            }
        }
        Ok(Self::sorted(queue, order, shares))
    }
}

fn next_wanted<P: SortedPart>(
    part: &mut P,
    chain: &mut Vec<BlockHash>,
    wanted: &impl Fn(JobId) -> bool,
) -> Result<Option<JobId>, P::Error> {
    loop {
        match part.next(chain)? {
            Some(job) if !wanted(job) => {}
            found => return Ok(found),
        }
    }
}
