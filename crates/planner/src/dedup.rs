//! Identical requests, computed once.
//!
//! Only requests with an identity take part; their owner opts in. Of equal requests the first one
//! of the queue is computed, and the others take its answer.

use crate::queue::{JobId, Queue};
use std::collections::BTreeMap;

/// Removes requests from `order` that can take another's answer; returns pairs of copy and
/// original. `shared` stays the number of blocks that each request shares with the one before it.
pub(crate) fn remove_copies(
    queue: &Queue,
    order: &mut Vec<JobId>,
    shared: &mut Vec<u32>,
) -> Vec<(JobId, JobId)> {
    if !queue.has_identities() {
        return Vec::new();
    }
    let mut originals = BTreeMap::new();
    for job in &*order {
        if let Some(identity) = queue.identity(*job) {
            let original = originals.entry(identity).or_insert(*job);
            *original = (*original).min(*job);
        }
    }
    let mut copies = Vec::new();
    let mut kept = 0;
    let mut least = u32::MAX;
    for position in 0..order.len() {
        let job = order[position];
        // In a sorted order, two requests share the minimum of what the neighbours between them
        // share.
        least = least.min(shared[position]);
        match queue.identity(job).map_or(job, |identity| originals[&identity]) {
            original if original == job => {
                order[kept] = job;
                shared[kept] = least;
                kept += 1;
                least = u32::MAX;
            }
            original => copies.push((job, original)),
        }
    }
    order.truncate(kept);
    shared.truncate(kept);
    copies
}
