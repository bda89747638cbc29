//! Parts of a plan go to the pods that hold their prefixes already: after a restart, or because clients or another batch
//! asked about the same. Only pods that publish what they cache, of a model with a tokenizer, are known to hold anything.

use wornpath_index::{Depths, Index, PodId};
use wornpath_planner::{Plan, Queue, match_pods};

pub(crate) fn match_to_caches(plan: &mut Plan, queue: &Queue, (index, pods): (&Index, &[PodId])) {
    let (mut reader, mut answer) = (index.reader(), Depths::default());
    match_pods(plan, queue, |chain, depths| {
        reader.lookup(chain, &mut answer);
        for (depth, pod) in depths.iter_mut().zip(pods) {
            *depth = answer.depth(pod.slot());
        }
    });
}
