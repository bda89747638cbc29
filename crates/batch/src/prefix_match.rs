//! Assigns the segments of a plan to the pods that already cache their prefixes: after a restart,
//! or because online requests or another batch share them. This is only known of pods that publish
//! cache events, for a model with a tokenizer.

use wornpath_index::{Depths, Index, PodId};
use wornpath_planner::{Plan, Queue, match_pods};

pub(crate) fn match_to_caches(plan: &mut Plan, queue: &Queue, index: &Index, pods: &[PodId]) {
    let mut reader = index.reader();
    let mut answer = Depths::default();
    match_pods(plan, queue, |chain, depths| {
        reader.lookup(chain, &mut answer);
        for (depth, pod) in depths.iter_mut().zip(pods) {
            *depth = answer.depth(pod.slot());
        }
    });
}
