//! The pods that a batch is planned for: some must be there, and a plan is for those that were there when it was made.
//!
//! Pods that go leave their work to the others, and come back to the same plan. One that comes anew, which is also what
//! becomes of a pod that is replaced, has no part in it: so after a while the rest is planned anew.

use crate::batches::Batches;
use crate::engines::{PlannedPod, PlannedPods};
use crate::model::BatchModel;
use crate::task::PAUSE;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::sleep;
use wornpath_index::{Moment, PodId};
use wornpath_jobs::Batch;
use wornpath_routing::Name;

/// How often somebody looks whether a plan still fits the fleet.
const LOOK: Duration = Duration::from_secs(2);
/// Pods without a part wait for one at least so long, since others may be about to come,
const ANEW: Duration = Duration::from_secs(30);
/// and so many times as long as it takes to plan, because nobody computes meanwhile.
const WORTH: u32 = 10;

/// The pods that are up and can serve its model; waits until there is one.
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

/// Waits until a plan that took so long to make should be made anew: no pod is ready, or one that it does not know. If all
/// that it knows have left the fleet, that is at once.
pub(crate) async fn outgrown(
    batches: &Batches,
    model: &BatchModel,
    (planned, took): (&[PodId], Duration),
) {
    let mut since: Option<Moment> = None;
    loop {
        sleep(LOOK).await;
        let (snapshot, now) = (batches.worker.gateway().snapshot(), batches.worker.gateway().now());
        let ready = model.ready(&snapshot);
        if !ready.is_empty() && ready.iter().all(|pod| planned.contains(&pod.id())) {
            since = None;
            continue;
        }
        let waited = now.saturating_sub(*since.get_or_insert(now));
        let is_left = planned.iter().any(|pod| snapshot.entry(*pod).is_some());
        if !is_left || waited >= ANEW.max(took * WORTH) {
            return;
        }
    }
}
