//! Identical requests, computed once.
//!
//! Only requests with an identity take part, which their owner has to ask for. Which of them is computed does
//! not depend on the order of the input, except among requests that nothing tells apart; the one with the
//! earliest deadline is, so that nobody waits longer for a copy than for an answer of their own.

use crate::queue::{JobId, Queue};
use std::collections::BTreeMap;

/// Takes requests out of `order` that can have another's answer: pairs of copy and original. What each shares with the one
/// before it stays true.
pub(crate) fn take_out(
    queue: &Queue,
    order: &mut Vec<JobId>,
    shared: &mut Vec<u32>,
) -> Vec<(JobId, JobId)> {
    if !queue.has_identities() {
        return Vec::new();
    }
    let urgency = |job: JobId| (queue.deadline(job).is_none(), queue.deadline(job), job);
    let mut originals = BTreeMap::new();
    for job in &*order {
        if let Some(identity) = queue.identity(*job) {
            let original = originals.entry(identity).or_insert(*job);
            if urgency(*job) < urgency(*original) {
                *original = *job;
            }
        }
    }
    let (mut copies, mut kept, mut least) = (Vec::new(), 0, u32::MAX);
    for place in 0..order.len() {
        let job = order[place];
        // In a sorted order, two share what the least of the neighbours between them do.
        least = least.min(shared[place]);
        match queue.identity(job).map_or(job, |identity| originals[&identity]) {
            original if original == job => {
                (order[kept], shared[kept]) = (job, least);
                (kept, least) = (kept + 1, u32::MAX);
            }
            original => copies.push((job, original)),
        }
    }
    order.truncate(kept);
    shared.truncate(kept);
    copies
}
