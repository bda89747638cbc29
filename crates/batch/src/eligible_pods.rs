//! The pods that a batch is planned for: those that are up when the plan is made.
//!
//! When a pod goes down, the others take over its work; when it returns, it rejoins the same plan.
//! A new pod, which includes the replacement of an old one, has no part in the plan: so after a
//! while the rest of the batch is planned again.

use crate::batches::{Batches, PAUSE};
use crate::engines::{PlannedPod, PlannedPods};
use crate::model::BatchModel;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::sleep;
use wornpath_index::{Moment, PodId};
use wornpath_jobs::Batch;
use wornpath_routing::Name;

/// How often the plan is compared with the fleet.
const LOOK: Duration = Duration::from_secs(2);
/// Minimum time before replanning for new pods, since more may be starting,
const ANEW: Duration = Duration::from_secs(30);
/// and minimum multiple of the planning time, because no pod computes meanwhile.
pub(crate) const WORTH: u32 = 10;

/// The pods that are up and serve the model; waits until there is one.
pub(crate) async fn pods(batches: &Arc<Batches>, batch: &Batch, model: &BatchModel) -> PlannedPods {
    loop {
        let snapshot = batches.worker.gateway().snapshot();
        let ready = model.ready(&snapshot);
        let pods: Vec<_> = ready.iter().map(|pod| PlannedPod::new(batches, pod.id())).collect();
        if !pods.is_empty() {
            let owner = (!batch.owner.is_empty()).then(|| Name::from(batch.owner.as_str()));
            return PlannedPods { batches: Arc::clone(batches), owner, pods };
        }
        sleep(PAUSE).await;
    }
}

/// Waits until the batch should be planned again: no planned pod is up, or a new one is. `took` is
/// the time that planning took. If all planned pods have left the fleet, it returns at once.
pub(crate) async fn wait_until_outdated(
    batches: &Batches,
    model: &BatchModel,
    planned: &[PodId],
    took: Duration,
) {
    let mut since: Option<Moment> = None;
    loop {
        sleep(LOOK).await;
        let snapshot = batches.worker.gateway().snapshot();
        let now = batches.worker.gateway().now();
        let ready = model.ready(&snapshot);
        if !ready.is_empty() && ready.iter().all(|pod| planned.contains(&pod.id())) {
            since = None;
            continue;
        }
        let waited = now.since(*since.get_or_insert(now));
        let is_left = planned.iter().any(|pod| snapshot.entry(*pod).is_some());
        if !is_left || waited >= ANEW.max(took * WORTH) {
            return;
        }
    }
}
