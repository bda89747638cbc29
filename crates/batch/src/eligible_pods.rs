//! The pods of a batch: those that are up when the plan is made, and those that come later.
//!
//! When a pod goes down, the others take over its work; when it returns, it rejoins the same plan.
//! A new pod, which includes the replacement of an old one, joins the run at once and takes work
//! over from the busiest. Only when none of the pods is left in the fleet, the batch is planned
//! again.

use crate::batches::{Batches, PAUSE};
use crate::engines::PlannedPods;
use crate::model::BatchModel;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::sleep;
use wornpath_jobs::Batch;
use wornpath_routing::Name;

/// How often the pods of a batch are compared with the fleet.
const LOOK: Duration = Duration::from_secs(2);
/// Minimum time of a run, as a multiple of the time that planning took: no pod computes meanwhile.
pub(crate) const WORTH: u32 = 10;

/// The pods that are up and serve the model; waits until there is one.
pub(crate) async fn pods(batches: &Arc<Batches>, batch: &Batch, model: &BatchModel) -> PlannedPods {
    loop {
        let snapshot = batches.worker.gateway().snapshot();
        let ready: Vec<_> = model.ready(&snapshot).iter().map(|pod| pod.id()).collect();
        if !ready.is_empty() {
            let owner = (!batch.owner.is_empty()).then(|| Name::from(batch.owner.as_str()));
            return PlannedPods::new(batches, owner, model, ready);
        }
        sleep(PAUSE).await;
    }
}

/// Waits until none of the pods is left in the fleet.
pub(crate) async fn wait_until_gone(pods: &PlannedPods) {
    loop {
        sleep(LOOK).await;
        if !pods.are_left() {
            return;
        }
    }
}
